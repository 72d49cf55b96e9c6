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

START_LIMIT = 180.0  # seconds; detects a hang; a start takes 15 s where the machine is free
STOP_GRACE = 15.0


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class MiniCluster(Access):
    """A cluster in a directory; the object is a handle, the state is in the directory.

    Args:
        directory: everything the cluster writes lies in here; made by `start`.
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
        secure: bool = False,
        shared: bool = False,
        **lives: int,
    ) -> MiniCluster:
        """Bring every daemon up and wait until all know each other; data of a stopped one is kept.

        Args:
            name: only this daemon, stopped or killed before: same ports, same data; nothing else
                is looked at then.
            ports: given ones, by name ("namenode", "namenode-http", ...); the others are chosen.
            extra: more settings, {"hdfs-site": {key: value}}.
            secure: with Kerberos, in a realm of its own.
            shared: start it without Kerberos as root, too, where other users work on this machine
                (others.SHARED=1 in the environment says the same).
            lives: of tickets and tokens in seconds, see `kerberos.options`.

        Raises:
            ClusterError: one runs here already, a port is taken, a daemon died (with its cause).
            UsageError: as root, not `secure` and not `shared`, and the machine has other users.
        """
        if name is not None:
            self._start_daemon(name)
            return self
        catalogue = daemons.catalogue(datanodes, nodemanagers, secure=secure)
        names = daemons.ports_of(catalogue.values())
        wrong = sorted((ports or {}).keys() - set(names))
        if wrong:
            raise UsageError(
                "no daemon has a port of this name", got=", ".join(wrong), expected=", ".join(names)
            )
        self._state.refuse_foreign_directory()
        with contextlib.ExitStack() as held:
            held.enter_context(self._state.starting_or_stopping())
            if self.is_running():
                raise ClusterError(
                    "a mini cluster is running in this directory already",
                    where=self.directory,
                    remedy="use it (`python -m tools.minicluster env`), or stop it first",
                )
            if not secure:
                others.refuse_root_among_others(shared=shared)
                self.say(others.warning(getpass.getuser()))
            java_home = host.find_java()
            home = jars.fetch(self.say)
            before = self.plan.ports if self._state.exists() else {}
            chosen = held.enter_context(host.reserve_ports(names, ports or {}, before))
            plan = Plan(
                directory=self.directory,
                jars=str(home),
                java_home=java_home,
                user=getpass.getuser(),
                ports=chosen,
                datanodes=datanodes,
                nodemanagers=nodemanagers,
                node_memory_mb=node_memory_mb,
                node_vcores=node_vcores,
                node_gpus=node_gpus,
                extra={site: dict(values) for site, values in (extra or {}).items()},
                kerberos=kerberos.options(**lives) if secure else None,
            )
            try:
                self._bring_up(plan, list(catalogue))
            except BaseException:  # an interrupt too: nothing half-started stays behind
                daemons.end_all(self.directory, grace=2.0)
                self._state.save(plan, {})
                raise
        return self

    def _bring_up(self, plan: Plan, names: list[str]) -> None:
        plan.path("tmp").mkdir(parents=True, exist_ok=True)
        records: dict[str, Record] = {}

        def begin(name: str) -> None:
            records[name] = daemons.start(plan, name, listing=True)
            self._state.save(plan, records)

        self._state.save(plan, records)
        settings.write(plan, names)
        launchers.write(plan)
        plan.conf_dir.joinpath("hive-site.xml").unlink(missing_ok=True)  # of a metastore before
        if plan.kerberos:
            kerberos.make_realm(plan)
            begin(kerberos.NAME)
            self._wait(plan, records, [kerberos.NAME])
        # YARN's daemons do not need HDFS to come up: they start while the NameNode formats.
        for name in names:
            if name.partition("-")[0].endswith("manager"):
                begin(name)
        if not plan.path("namenode", "current", "VERSION").exists():
            self._format(plan)
        storage = [name for name in names if name.partition("-")[0] in ("namenode", "datanode")]
        for name in storage:
            begin(name)
        self._wait(plan, records, storage, watched=records)
        self._contents().make_standard()
        begin("historyserver")  # it wants a place on HDFS
        self._wait(plan, records, records)
        classdata.make(plan, self.say)
        launchers.write(plan)

    def _format(self, plan: Plan) -> None:
        self.say("formatting the NameNode")
        argv = daemons.java_command(
            plan,
            "namenode",
            "org.apache.hadoop.hdfs.server.namenode.NameNode",
            "-format",
            "-nonInteractive",
        )
        record = daemons.spawn(plan, "namenode-format", argv)
        deadline = time.monotonic() + START_LIMIT
        while daemons.alive(record) and time.monotonic() < deadline:
            time.sleep(0.05)
        if not plan.path("namenode", "current", "VERSION").exists():
            raise ClusterError(
                "the NameNode could not be formatted",
                where=record.log,
                got=daemons.cause_of_death(record),
                remedy="read the log; is the disk full?",
            )

    def _unknown(self, plan: Plan, name: str) -> UsageError:
        return UsageError(
            "the mini cluster has no such daemon",
            got=name,
            expected=", ".join(daemons.catalogue_of(plan)),
        )

    def is_running(self) -> bool:
        """Whether any process of this cluster is there."""
        return bool(daemons.marked(self.directory))

    def stop(self, name: str | None = None, *, remove: bool = False) -> None:
        """End one daemon (SIGTERM), or, without a name, everything: no process is left.

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
                    remedy="see what they wait for (/proc/PID/stack), then stop again",
                )
            self._state.save(plan, {})
            if remove:
                shutil.rmtree(self.directory)

    # ------------------------------------------------------------------------------ one daemon
    def kill(self, name: str) -> None:
        """SIGKILL a daemon; returns when it is gone."""
        self._end(name, signal.SIGKILL)

    def pause(self, name: str) -> None:
        """SIGSTOP a daemon: it holds its connections and does not answer."""
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
        """Restart one daemon with settings of its own, {"hdfs-site": {key: value}}; {} undoes it.

        `restore` undoes it too.
        """
        self.stop(name)
        plan = self._state.note_own(name, changes)
        settings.write_own(plan, name)
        self.start(name)

    def restore(self) -> None:
        """Undo what a test did to the daemons: resume the paused, start the others, leave safe
        mode, and wait until all is well."""
        plan, records = self._state.load()
        for name, record in records.items():
            if not daemons.alive(record):
                self._state.note(name, None)  # else others would wait for it
            elif record.paused:
                self.resume(name)
        for name in plan.own:
            self.reconfigure(name, {})
        records = self.records
        for name in daemons.catalogue_of(plan):
            wanted = name != metastore.NAME or plan.path(metastore.NAME).exists()
            if wanted and name not in records:
                self.start(name)
        info = daemons.namenode_info(plan)
        if info and "manually" in info["Safemode"]:
            self.run_as_superuser("hdfs", "dfsadmin", "-safemode", "leave")
        self.wait_healthy()

    def wait_healthy(self, *names: str, timeout: float = START_LIMIT) -> None:
        """Wait until the named daemons, or all that were started, serve and know each other.

        Raises:
            ClusterError: one has died, or does not serve in `timeout` seconds.
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
        daemons.send(record, signal.SIGCONT)  # a paused one would not hear SIGTERM
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
        """Wait until daemons are well; raise if one of them or of `watched` ends."""
        deadline = time.monotonic() + timeout
        waiting = list(names)
        while True:
            for name in sorted(records.keys() & {*waiting, *watched}):
                if not daemons.alive(records[name]):
                    raise ClusterError(
                        f"the {name} has ended",
                        where=records[name].log,
                        got=daemons.cause_of_death(records[name]),
                        remedy="read the log",
                    )
            found = {name: daemons.problem(plan, name, records) for name in waiting}
            problems = {name: text for name, text in found.items() if text}
            if not problems:
                return
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"the mini cluster is not well after {timeout:.0f} s",
                    where=str(plan.path("logs")),
                    got="; ".join(f"{name}: {text}" for name, text in problems.items()),
                    remedy="read the logs",
                )
            time.sleep(0.1)

    def wipe(self) -> None:
        """End all applications, remove all files and tables; what a fresh cluster has is there."""
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
        """thrift://localhost:PORT of a Hive metastore, which is started when first asked for.

        From then on HADOOP_CONF_DIR holds a hive-site.xml, where Spark finds it.
        """
        plan = self.plan
        if metastore.NAME not in self.records:
            self.start(metastore.NAME)
        return metastore.uri(plan)
