"""`MiniCluster`: start, stop, and disturb a real cluster on this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping

from howdah.errors import ClusterError, UsageError
from tools.minicluster import (
    classdata,
    daemons,
    host,
    kerberos,
    launchers,
    metastore,
    others,
    settings,
)
from tools.minicluster.access import Access
from tools.minicluster.daemons import Record
from tools.minicluster.maven import jars
from tools.minicluster.plan import Plan
from tools.minicluster.variants import availability, web

START_LIMIT = 180.0  # seconds; detects a hang; a start takes 15 s where the machine is free
STOP_GRACE = 15.0


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class MiniCluster(Access):
    """A cluster in a directory; the object is a handle, the state is in the directory.

    Args:
        directory: directory of all files of the cluster; created by `start`.
        say: takes lines of progress.
    """

    def __init__(self, directory: str | os.PathLike[str], *, say: Callable[[str], None] = _tell):
        super().__init__(directory)
        self.say = say

    # --------------------------------------------------------------------------- start and stop
    def start(
        self,
        name: str | None = None,
        *,
        datanodes: int = 3,
        nodemanagers: int = 2,
        node_memory_mb: int = 6144,
        node_vcores: int = 8,
        node_gpus: int = 0,
        ports: Mapping[str, int] | None = None,
        extra: Mapping[str, Mapping[str, str]] | None = None,
        hadoop: str = jars.HADOOP_VERSION,
        secure: bool = False,
        ha: bool = False,
        tls: bool = False,
        shared: bool = False,
        **lives: int,
    ) -> MiniCluster:
        """Start every daemon and wait until all are registered; data of earlier starts is kept.

        Args:
            name: start only this daemon, which was stopped or killed, with the same ports and data;
                all other arguments are ignored.
            ports: ports by name ("namenode", "namenode-http", ...); all others are chosen.
            extra: more settings, {"hdfs-site": {key: value}}.
            hadoop: version of Hadoop, one of `jars.VERSIONS`.
            secure: with Kerberos, in its own realm.
            ha: two NameNodes and two ResourceManagers, with automatic failover.
            tls: HTTPS in place of HTTP; with `secure` also encrypted RPC and data transfers.
            shared: allow root without Kerberos although other users work on this machine
                (so does others.SHARED=1 in the environment).
            lives: lifetimes of tickets and tokens in seconds, see `kerberos.options`.

        Raises:
            ClusterError: a cluster already runs here, a port is taken, or a daemon died.
            UsageError: root, without `secure` and `shared`, on a machine with other users.
        """
        if name is not None:
            self._start_daemon(name)
            return self
        catalogue = daemons.catalogue(datanodes, nodemanagers, secure=secure, ha=ha)
        names = daemons.ports_of(catalogue.values())
        wrong = sorted((ports or {}).keys() - set(names))
        if wrong:
            got = ", ".join(wrong)
            raise UsageError("unknown names of ports", got=got, expected=", ".join(names))
        jar_set = jars.of_hadoop(hadoop)
        if secure and hadoop in kerberos.UNTRIED:
            raise UsageError(
                "the mini cluster cannot check the health of such a Hadoop with Kerberos",
                where=f"Hadoop {hadoop}",
                expected="one that leaves /jmx open without a ticket: 3.3 or later",
            )
        self._state.check_directory()
        with contextlib.ExitStack() as held:
            held.enter_context(self._state.starting_or_stopping())
            if self.is_running():
                raise ClusterError(
                    "a mini cluster already runs in this directory",
                    where=self.directory,
                    remedy="use it (`python -m tools.minicluster env`), or stop it first",
                )
            if not secure:
                others.refuse_root_among_others(shared=shared)
                self.say(others.warning(getpass.getuser()))
            java_home = host.find_java()
            home = jars.fetch(self.say, jar_set)
            before = self._ports_before(ha)
            chosen = held.enter_context(host.reserve_ports(names, ports or {}, before))
            plan = Plan(
                directory=self.directory,
                jars=str(home),
                java_home=java_home,
                user=getpass.getuser(),
                ports=chosen,
                datanodes=datanodes,
                nodemanagers=nodemanagers,
                hadoop=hadoop,
                node_memory_mb=node_memory_mb,
                node_vcores=node_vcores,
                node_gpus=node_gpus,
                extra={site: dict(values) for site, values in (extra or {}).items()},
                kerberos=kerberos.options(**lives) if secure else None,
                ha=ha,
                tls=tls,
            )
            try:
                self._bring_up(plan, list(catalogue))
            except BaseException:  # an interrupt too must not leave daemons behind
                daemons.end_all(self.directory, grace=2.0)
                self._state.save(plan, {})
                raise
        return self

    def _ports_before(self, ha: bool) -> dict[str, int]:
        """The ports of the directory's cluster, if there is one; its NameNodes must be as many."""
        if not self._state.exists():
            return {}
        plan = self.plan
        if plan.ha != ha and plan.path("namenode", "current", "VERSION").exists():
            raise UsageError(
                "the HDFS in this directory has another number of NameNodes",
                where=self.directory,
                expected="--ha" if plan.ha else "no --ha",
                remedy="choose another --directory, or stop this one with --remove",
            )
        return plan.ports

    def _bring_up(self, plan: Plan, names: list[str]) -> None:
        plan.path("tmp").mkdir(parents=True, exist_ok=True)
        records: dict[str, Record] = {}

        def begin(name: str) -> None:
            records[name] = daemons.start(plan, name, listing=True)
            self._state.save(plan, records)

        self._state.save(plan, records)
        if plan.tls:
            web.make_certificate(plan)
        settings.write(plan, names)
        launchers.write(plan)
        plan.conf_dir.joinpath("hive-site.xml").unlink(missing_ok=True)  # of an earlier metastore
        if plan.kerberos:
            kerberos.make_realm(plan)
        first = [name for name in names if name == kerberos.NAME or availability.is_first(name)]
        for name in first:
            begin(name)
        self._wait(plan, records, first)
        # YARN's daemons start without HDFS, while the NameNode formats.
        for name in names:
            if availability.kind_of(name).endswith("manager"):
                begin(name)
        if not plan.path("namenode", "current", "VERSION").exists():
            self._format(plan)
        kinds = ("namenode", "zkfc", "datanode")
        storage = [name for name in names if availability.kind_of(name) in kinds]
        for name in storage:
            begin(name)
        self._wait(plan, records, storage, watched=records)
        self._contents().make_standard()
        begin("historyserver")  # needs its directory on HDFS
        self._wait(plan, records, records)
        classdata.make(plan, self.say)
        launchers.write(plan)

    def _format(self, plan: Plan) -> None:
        self.say("formatting the NameNode")
        catalogue = daemons.catalogue_of(plan)
        formats = {"namenode": "-format", **({"zkfc-1": "-formatZK"} if plan.ha else {})}
        records = {}
        for name, option in formats.items():
            words = (catalogue[name].main, option, "-nonInteractive")
            argv = daemons.java_command(plan, name, *words)
            records[name] = daemons.spawn(plan, f"{name}-format", argv)
        deadline = time.monotonic() + START_LIMIT
        while any(map(daemons.alive, records.values())) and time.monotonic() < deadline:
            time.sleep(0.05)
        directory = plan.path("namenode")
        if not (directory / "current" / "VERSION").exists():
            record = records["namenode"]
            raise ClusterError(
                "the NameNode could not be formatted",
                where=record.log,
                got=daemons.cause_of_death(record),
                remedy="see the log: is the disk full?",
            )
        if plan.ha:  # the second one begins with the same empty image
            shutil.copytree(directory, plan.path("namenode-2"))

    def _unknown(self, plan: Plan, name: str) -> UsageError:
        expected = ", ".join(daemons.catalogue_of(plan))
        return UsageError(f"the mini cluster has no daemon {name}", expected=expected)

    def is_running(self) -> bool:
        """Whether any process of this cluster runs."""
        return bool(daemons.marked(self.directory))

    def stop(self, name: str | None = None, *, remove: bool = False) -> None:
        """End one daemon (SIGTERM), or, without a name, all processes.

        Args:
            name: a daemon.
            remove: remove the directory as well (only without a name).
        """
        if name is not None:
            self._end(name, signal.SIGTERM)
            return
        plan = self.plan
        with self._state.starting_or_stopping():
            left = daemons.end_all(self.directory, grace=STOP_GRACE)
            if left:
                raise ClusterError(
                    "processes of the mini cluster cannot be ended",
                    where=self.directory,
                    got=", ".join(str(pid) for pid in left),
                    remedy="see /proc/PID/stack for what they wait for, then stop again",
                )
            self._state.save(plan, {})
            if remove:
                shutil.rmtree(self.directory)

    # ------------------------------------------------------------------------------ one daemon
    def kill(self, name: str) -> None:
        """SIGKILL a daemon and wait for its end."""
        self._end(name, signal.SIGKILL)

    def pause(self, name: str) -> None:
        """SIGSTOP a daemon: it keeps its connections and does not answer."""
        self._signal_paused(name, signal.SIGSTOP, True)

    def resume(self, name: str) -> None:
        """SIGCONT a paused daemon."""
        self._signal_paused(name, signal.SIGCONT, False)

    def _start_daemon(self, name: str) -> None:
        plan, records = self._state.load()
        if name in records and daemons.alive(records[name]):
            return
        if name not in daemons.catalogue_of(plan):
            raise self._unknown(plan, name)
        if name == metastore.NAME:
            metastore.write_conf(plan)
        record = daemons.start(plan, name)
        self._wait(plan, self._state.note(name, record), [name])

    def reconfigure(self, name: str, changes: Mapping[str, Mapping[str, str]]) -> None:
        """Restart one daemon with its own settings, {"hdfs-site": {key: value}}.

        {} or `restore` undoes it.
        """
        self.stop(name)
        plan = self._state.note_own(name, changes)
        settings.write_own(plan, name)
        self.start(name)

    def restore(self) -> None:
        """Undo a test's changes to the daemons: resume or start them, leave safe mode, and wait
        until all are healthy."""
        plan, records = self._state.load()
        for name, record in records.items():
            if not daemons.alive(record):
                self._state.note(name, None)  # otherwise all would wait for it
            elif record.paused and plan.ha and availability.kind_of(name) in availability.MEMBERS:
                self.kill(name)  # another one is active: it would end itself
            elif record.paused:
                self.resume(name)
        for name in plan.own:
            self.reconfigure(name, {})
        records = self.records
        for name in daemons.catalogue_of(plan):
            needed = name != metastore.NAME or plan.path(metastore.NAME).exists()
            if needed and name not in records:
                self.start(name)
        info = daemons.namenode_info(plan, self.active("namenode"))
        if info and "manually" in info["Safemode"]:
            self.run_as_superuser("hdfs", "dfsadmin", "-safemode", "leave")
        self.wait_healthy()

    def wait_healthy(self, *names: str, timeout: float = START_LIMIT) -> None:
        """Wait until the named daemons, or all that were started, serve and are registered.

        Raises:
            ClusterError: a daemon has died, or does not serve within `timeout` seconds.
        """
        plan, records = self._state.load()
        self._wait(plan, records, names or records, timeout)

    def _end(self, name: str, signum: int) -> None:
        plan, records = self._state.load()
        record = records.get(name)
        if record is None:
            if name not in daemons.catalogue_of(plan):
                raise self._unknown(plan, name)
            return
        daemons.send(record, signum)
        daemons.send(record, signal.SIGCONT)  # a paused daemon would not handle SIGTERM
        deadline = time.monotonic() + STOP_GRACE
        while daemons.alive(record):
            if time.monotonic() > deadline:
                daemons.send(record, signal.SIGKILL)
            time.sleep(0.02)
        self._state.note(name, None)

    def _signal_paused(self, name: str, signum: int, paused: bool) -> None:
        record = self.records.get(name)
        if record is None:
            raise ClusterError("the daemon does not run", where=self.directory, got=name)
        daemons.send(record, signum)
        self._state.note(name, dataclasses.replace(record, paused=paused))

    def _wait(
        self,
        plan: Plan,
        records: Mapping[str, Record],
        names: Iterable[str],
        timeout: float = START_LIMIT,
        *,
        watched: Iterable[str] = (),
    ) -> None:
        """Wait until daemons are healthy; raise if one of them or of `watched` ends."""
        deadline = time.monotonic() + timeout
        waiting = list(names)
        while True:
            for name in sorted(records.keys() & {*waiting, *watched}):
                if not daemons.alive(records[name]):
                    raise ClusterError(
                        f"the {name} has ended",
                        where=records[name].log,
                        got=daemons.cause_of_death(records[name]),
                    )
            states = {name: daemons.problem(plan, name, records) for name in waiting}
            problems = {name: text for name, text in states.items() if text}
            if not problems:
                return
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"the mini cluster is not healthy after {timeout:.0f} s",
                    where=str(plan.path("logs")),
                    got="; ".join(f"{name}: {text}" for name, text in problems.items()),
                )
            time.sleep(0.1)

    def wipe(self) -> None:
        """End all applications and remove all files and tables, as in a new cluster."""
        plan = self.plan
        self._contents().wipe()
        if plan.path(metastore.NAME).exists():
            running = metastore.NAME in self.records
            self.stop(metastore.NAME)
            metastore.forget(plan)
            if running:
                self.start(metastore.NAME)

    # --------------------------------------------------------------------------------- services
    @property
    def metastore_uri(self) -> str:
        """thrift://localhost:PORT of a Hive metastore, which the first call starts.

        From then on HADOOP_CONF_DIR has a hive-site.xml, which Spark reads.
        """
        plan = self.plan
        if metastore.NAME not in self.records:
            self.start(metastore.NAME)
        return metastore.uri(plan)
