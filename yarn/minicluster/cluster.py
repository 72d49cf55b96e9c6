"""`MiniCluster`: start, stop, and disturb a real cluster on this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import getpass
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from howdah.errors import ClusterError, NotFound, UsageError
from yarn.minicluster import daemons, jars, kerberos, launchers, metastore, settings
from yarn.minicluster.contents import Contents, RestContents, ShellContents
from yarn.minicluster.daemons import Record
from yarn.minicluster.settings import HOST, Plan

__all__ = ["MiniCluster"]

JAVA_MINIMUM = 17  # Hadoop 3.5's
STATE = "state.json"
STATE_VERSION = 1
# Below what the kernel gives to outgoing connections (ip_local_port_range): a port stays free
# while its daemon is down for a restart.
PORTS = range(20000, 32000)
START_LIMIT = 180.0  # seconds; only to tell a hang, a start takes 15 s where the machine is free
STOP_GRACE = 15.0


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class MiniCluster:
    """A cluster in a directory; the object is a handle, the state is in the directory.

    Args:
        directory: everything the cluster writes lies in here; made by `start`.
        say: takes lines of progress.
    """

    def __init__(self, directory: str | os.PathLike[str], *, say: Callable[[str], None] = _tell):
        self.directory = os.path.realpath(directory)
        self.say = say
        self._state_path = Path(self.directory, STATE)

    # ---------------------------------------------------------------------------------- state
    def _load(self) -> dict[str, Any]:
        try:
            state = json.loads(self._state_path.read_text())
        except FileNotFoundError:
            raise NotFound(
                "there is no mini cluster in this directory",
                where=self.directory,
                remedy="start one (`howdah minicluster start`), or name its --directory",
            ) from None
        if state.get("version") != STATE_VERSION:
            raise ClusterError(
                "the mini cluster in this directory was made by another version",
                where=str(self._state_path),
                expected=f"version {STATE_VERSION}",
                got=f"version {state.get('version')}",
                remedy="stop it with that version, or remove the directory",
            )
        return state

    def _save(self, plan: Plan, records: Mapping[str, Record]) -> None:
        state = {
            "version": STATE_VERSION,
            "plan": dataclasses.asdict(plan),
            "daemons": {name: dataclasses.asdict(record) for name, record in records.items()},
        }
        temporary = self._state_path.with_name(f".{STATE}.{os.getpid()}")
        temporary.write_text(json.dumps(state, indent=1))
        temporary.chmod(0o600)
        temporary.replace(self._state_path)

    @property
    def plan(self) -> Plan:
        """What the cluster consists of."""
        return Plan(**self._load()["plan"])

    @property
    def records(self) -> dict[str, Record]:
        """The daemons that were started and not stopped or killed through this class."""
        return {name: Record(**values) for name, values in self._load()["daemons"].items()}

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Only one process starts or stops a cluster; the kernel frees the lock of a dead one."""
        os.makedirs(self.directory, exist_ok=True)
        with open(os.path.join(self.directory, "lock"), "a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ClusterError(
                    "another process is starting or stopping the mini cluster of this directory",
                    where=self.directory,
                    remedy="wait for it, or take another --directory",
                ) from None
            yield

    @contextlib.contextmanager
    def _state_lock(self) -> Iterator[None]:
        """Held while the state file is read, changed and written."""
        with open(os.path.join(self.directory, "state.lock"), "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _update(self, name: str, record: Record | None) -> dict[str, Record]:
        """Note one daemon's start, or (None) its end; all records."""
        with self._state_lock():
            plan, records = self.plan, self.records
            records.pop(name, None)
            if record is not None:
                records[name] = record
            self._save(plan, records)
        return records

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
        **lives: int,
    ) -> MiniCluster:
        """Bring every daemon up and wait until all know each other; data of a stopped one is kept.

        Args:
            name: only this daemon, stopped or killed before: same ports, same data; nothing else
                is looked at then.
            ports: given ones, by name ("namenode", "namenode-http", ...); the others are chosen.
            extra: more settings, {"hdfs-site": {key: value}}.
            secure: with Kerberos, in a realm of its own.
            lives: of tickets and tokens in seconds, see `kerberos.options`.

        Raises:
            ClusterError: one runs here already, a port is taken, a daemon died (with its cause).
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
        self._refuse_foreign_directory()
        with self._locked():
            running = daemons.marked(self.directory)
            if running:
                raise ClusterError(
                    "a mini cluster is running in this directory already",
                    where=self.directory,
                    got=f"{len(running)} processes",
                    remedy="use it (`howdah minicluster env`), or stop it first",
                )
            java_home = find_java()
            home = jars.fetch(self.say)
            before = self._load()["plan"]["ports"] if self._state_path.exists() else {}
            plan = Plan(
                directory=self.directory,
                jars=str(home),
                java_home=java_home,
                user=getpass.getuser(),
                ports=choose_ports(names, ports or {}, before),
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
                self._save(plan, {})
                raise
        return self

    def _bring_up(self, plan: Plan, names: list[str]) -> None:
        plan.path("tmp").mkdir(parents=True, exist_ok=True)
        records: dict[str, Record] = {}

        def begin(name: str) -> None:
            records[name] = daemons.start(plan, name)
            self._save(plan, records)

        self._save(plan, records)
        settings.write(plan, names)
        launchers.write(plan)
        if plan.kerberos:
            kerberos.make_realm(plan)
            begin(kerberos.NAME)
            self._wait(plan, records, [kerberos.NAME], START_LIMIT)
        # YARN's daemons do not need HDFS to come up: they start while the NameNode formats.
        for name in names:
            if name.partition("-")[0].endswith("manager"):
                begin(name)
        if not plan.path("namenode", "current", "VERSION").exists():
            self._format(plan)
        storage = [name for name in names if name.partition("-")[0] in ("namenode", "datanode")]
        for name in storage:
            begin(name)
        self._wait(plan, records, storage, START_LIMIT)
        self._contents(plan).make_standard()
        begin("historyserver")  # it wants a place on HDFS
        self._wait(plan, records, list(records), START_LIMIT)

    def _format(self, plan: Plan) -> None:
        self.say("formatting the NameNode")
        argv = daemons.java_command(
            plan,
            settings.daemon_conf(plan, "namenode"),
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
        with self._locked():
            daemons.end_all(self.directory, grace=STOP_GRACE)
            self._save(plan, {})
            if remove:
                shutil.rmtree(self.directory)

    # ------------------------------------------------------------------------------ one daemon
    def kill(self, name: str) -> None:
        """SIGKILL a daemon; returns when it is gone."""
        self._end(name, signal.SIGKILL)

    def pause(self, name: str) -> None:
        """SIGSTOP a daemon: it holds its connections and answers nobody."""
        self._signal_paused(name, signal.SIGSTOP, True)

    def resume(self, name: str) -> None:
        """SIGCONT a paused daemon."""
        self._signal_paused(name, signal.SIGCONT, False)

    def _start_daemon(self, name: str) -> None:
        plan, records = self.plan, self.records
        if name in records and daemons.alive(records[name]):
            return
        if name not in daemons.catalogue_of(plan):
            raise self._unknown(plan, name)
        if name == metastore.NAME:
            metastore.write_conf(plan)
        record = daemons.start(plan, name)
        self._wait(plan, self._update(name, record), [name], START_LIMIT)

    def reconfigure(self, name: str, changes: Mapping[str, Mapping[str, str]]) -> None:
        """Restart one daemon with settings of its own, {"hdfs-site": {key: value}}; {} undoes it.

        `mend` undoes it too.
        """
        self.stop(name)
        with self._state_lock():
            plan = self.plan
            own = {daemon: values for daemon, values in plan.own.items() if daemon != name}
            if changes:
                own[name] = {site: dict(values) for site, values in changes.items()}
            plan = dataclasses.replace(plan, own=own)
            self._save(plan, self.records)
        settings.write_own(plan, name)
        self.start(name)

    def mend(self) -> None:
        """Undo what a test did to the daemons: resume the paused, start the others, leave safe
        mode, and wait until all is well."""
        plan, records = self.plan, self.records
        for name, record in records.items():
            if record.paused:
                self.resume(name)
        for name in plan.own:
            self.reconfigure(name, {})
        for name in daemons.catalogue_of(plan):
            wanted = name != metastore.NAME or plan.path(metastore.NAME).exists()
            if wanted and (name not in records or not daemons.alive(records[name])):
                self.start(name)
        info = daemons.namenode_info(plan)
        if info and "manually" in info["Safemode"]:
            self._run_as_superuser("hdfs", "dfsadmin", "-safemode", "leave")
        self.wait_healthy()

    def wait_healthy(self, *names: str, timeout: float = START_LIMIT) -> None:
        """Wait until the named daemons, or all that were started, serve and know each other.

        Raises:
            ClusterError: one has died, or does not serve in `timeout` seconds.
        """
        records = self.records
        self._wait(self.plan, records, list(names) or list(records), timeout)

    def _end(self, name: str, signum: int) -> None:
        plan, record = self.plan, self.records.get(name)
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
        self._update(name, None)

    def _signal_paused(self, name: str, signum: int, paused: bool) -> None:
        record = self.records.get(name)
        if record is None:
            raise ClusterError("the daemon does not run", where=self.directory, got=name)
        daemons.send(record, signum)
        self._update(name, dataclasses.replace(record, paused=paused))

    def _wait(
        self, plan: Plan, records: Mapping[str, Record], names: Iterable[str], timeout: float
    ) -> None:
        deadline = time.monotonic() + timeout
        waiting = list(names)
        while True:
            for name in records.keys() & set(waiting):
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

    # ----------------------------------------------------------------------------- for clients
    @property
    def hdfs_url(self) -> str:
        """hdfs://localhost:PORT"""
        return f"hdfs://{self.plan.address('namenode')}"

    @property
    def webhdfs_url(self) -> str:
        """webhdfs://localhost:PORT"""
        return f"webhdfs://{self.plan.address('namenode-http')}"

    @property
    def conf_dir(self) -> str:
        """HADOOP_CONF_DIR for clients."""
        return str(self.plan.conf_dir)

    def exports(self) -> dict[str, str]:
        """The variables that a shell needs to use the cluster; PATH holds only what is added."""
        plan = self.plan
        return {
            "HADOOP_CONF_DIR": str(plan.conf_dir),
            "YARN_CONF_DIR": str(plan.conf_dir),
            "HADOOP_HOME": str(plan.hadoop_home),
            "JAVA_HOME": plan.java_home,
            "PATH": str(plan.hadoop_home / "bin"),
            **(kerberos.client_environment(plan) if plan.kerberos else {}),
        }

    @property
    def env(self) -> dict[str, str]:
        """os.environ with what a subprocess needs to use the cluster."""
        added = self.exports()
        added["PATH"] = f"{added['PATH']}:{os.environ.get('PATH', os.defpath)}"
        return {**os.environ, **added}

    def run(
        self, *argv: str, check: bool = True, env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.CompletedProcess:
        """Run a command line such as ("hdfs", "dfs", "-ls", "/"); its output as text.

        Raises:
            ClusterError: it failed (unless check=False), with what it said last.
        """
        done = subprocess.run(
            argv,
            env={**self.env, **(env or {})},
            capture_output=True,
            text=True,
            check=False,
            **{"timeout": 300, **options},
        )
        if check and done.returncode != 0:
            told = (done.stderr or done.stdout).strip().splitlines()
            raise ClusterError(
                f"{' '.join(argv)} ended with {done.returncode}", got="\n".join(told[-5:])
            )
        return done

    def status(self) -> dict[str, Any]:
        """{directory, urls, daemons: {name: {state, pid, log, problem, ports}}}; state is running,
        unhealthy, paused, died or stopped."""
        plan, records = self.plan, self.records
        found: dict[str, Any] = {}
        for name, daemon in daemons.catalogue_of(plan).items():
            ports = {port: plan.ports[port] for port in daemons.ports_of([daemon])}
            record = records.get(name)
            if record is None:
                found[name] = {"state": "stopped", "pid": None, "ports": ports}
                continue
            if not daemons.alive(record):
                state, text = "died", daemons.cause_of_death(record)
            else:
                text = daemons.problem(plan, name, records)
                state = "paused" if record.paused else "unhealthy" if text else "running"
            found[name] = {
                "state": state,
                "pid": record.pid,
                "log": record.log,
                "problem": text,
                "ports": ports,
            }
        return {
            "directory": self.directory,
            "hdfs": self.hdfs_url,
            "webhdfs": self.webhdfs_url,
            "resourcemanager": f"http://{plan.address('resourcemanager-http')}",
            "conf_dir": self.conf_dir,
            "daemons": found,
        }

    def logs(self) -> dict[str, str]:
        """{daemon: its log file}."""
        return {path.stem: str(path) for path in sorted(self.plan.path("logs").glob("*.log"))}

    # -------------------------------------------------------------------- what lies and runs in it
    def _contents(self, plan: Plan) -> Contents:
        if plan.kerberos is None:
            return RestContents(plan)
        admin = kerberos.admin_environment(plan)
        return ShellContents(plan, lambda *argv: self.run(*argv, env=admin).stdout)

    def _run_as_superuser(self, *argv: str) -> None:
        plan = self.plan
        self.run(*argv, env=kerberos.admin_environment(plan) if plan.kerberos else None)

    def make_dir(self, path: str, mode: str = "1777") -> None:
        """Make a directory on HDFS (a path without scheme)."""
        self._contents(self.plan).make_dirs({path: mode})

    def remove(self, path: str) -> None:
        """Remove a path on HDFS with all below it; a missing one is no error."""
        self._contents(self.plan).remove(path)

    def end_applications(self) -> None:
        """Kill all applications and wait for their end."""
        self._contents(self.plan).end_applications()

    def wipe(self) -> None:
        """End all applications, remove all files and tables; what a fresh cluster has is there."""
        plan = self.plan
        self._contents(plan).wipe()
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

    @property
    def realm(self) -> str:
        """The Kerberos realm."""
        return kerberos.principal(self.plan, "").lstrip("@")

    @property
    def krb5_conf(self) -> str:
        """KRB5_CONFIG of clients."""
        return kerberos.client_environment(self.plan)["KRB5_CONFIG"]

    def principal(self, user: str) -> str:
        """user@REALM."""
        return kerberos.principal(self.plan, user)

    def keytab(self, user: str) -> str:
        """A keytab for a user of the realm, made when first asked for."""
        return kerberos.keytab(self.plan, user)

    def _refuse_foreign_directory(self) -> None:
        """A directory with other contents is not ours to write into, or to remove."""
        place = Path(self.directory)
        if place.exists() and not self._state_path.exists():
            others = [path.name for path in place.iterdir() if path.name != "lock"]
            if others:
                raise UsageError(
                    "the directory holds something else than a mini cluster",
                    where=self.directory,
                    got=", ".join(sorted(others)[:5]),
                    remedy="name an empty or a new --directory",
                )


def find_java() -> str:
    """JAVA_HOME of a Java that Hadoop runs on: $JAVA_HOME, else that of `java` on PATH.

    Raises:
        ClusterError: none, or too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    version, told = 0, "no java on PATH"
    if java:
        try:
            done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
            told = done.stderr.strip().partition("\n")[0]
            match = re.search(r'version "(\d+)', told)
            version = int(match.group(1)) if match else 0
        except OSError as error:
            told = str(error)
    if not java or version < JAVA_MINIMUM:
        raise ClusterError(
            "the mini cluster needs Java",
            where="JAVA_HOME" if home else "PATH",
            expected=f"Java {JAVA_MINIMUM} or later",
            got=told,
            remedy="apt-get install openjdk-17-jre-headless, or set JAVA_HOME",
        )
    return home or os.path.dirname(os.path.dirname(os.path.realpath(java)))


def choose_ports(
    names: Iterable[str], given: Mapping[str, int], before: Mapping[str, int]
) -> dict[str, int]:
    """A free loopback port for each name: the given one, the one it had before, else any.

    Raises:
        ClusterError: a given port is taken.
    """
    chosen: dict[str, int] = {}
    for name in names:
        if name in given:
            if not port_is_free(given[name]):
                raise ClusterError(
                    "the port is taken",
                    where=f"{HOST}:{given[name]}",
                    expected=f"a free port for {name}",
                    remedy="give another one, or none",
                )
            chosen[name] = given[name]
    for name in names:
        if name in chosen:
            continue
        candidates = iter(lambda: random.choice(PORTS), None)
        wanted = before.get(name)
        while wanted is None or wanted in chosen.values() or not port_is_free(wanted):
            wanted = next(candidates)
        chosen[name] = wanted
    return chosen


def port_is_free(port: int) -> bool:
    """Whether a daemon could listen on a loopback port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
