"""The daemons of a mini cluster: their kinds, start, health, and cause of death.

A daemon has its own session and process group, detached from its parent. It is identified by
process id and start time, and has the cluster's directory in its environment (`MARK`), as have the
containers that a NodeManager starts. So all of them are found even if the state file is lost.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping
from typing import Any

from howdah.core import processes
from tools.local_airflow import servers
from tools.minicluster import classdata, kerberos, metastore, settings
from tools.minicluster.plan import HOST, Plan
from tools.minicluster.settings import MARK
from tools.minicluster.variants import availability
from tools.minicluster.variants.availability import kind_of
from tools.minicluster.variants.web import jmx

HEAP = "-Xmx256m"
_HDFS = "org.apache.hadoop.hdfs.server"
_YARN = "org.apache.hadoop.yarn.server"


@dataclasses.dataclass(frozen=True)
class Daemon:
    """A kind of daemon: its main class, and the suffixes of its ports' names."""

    name: str
    main: str
    ports: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Record:
    """A started daemon: process id, start (clock ticks since boot), time (epoch seconds), log."""

    pid: int
    start: int
    since: float
    log: str
    log_offset: int
    paused: bool = False


def catalogue(
    datanodes: int, nodemanagers: int, *, secure: bool, ha: bool = False
) -> dict[str, Daemon]:
    """Every daemon that a cluster can have, in the order of starting."""
    yarn = ("", "-scheduler", "-tracker", "-admin", "-http")
    daemons = [Daemon(kerberos.NAME, "", ("",))] if secure else []
    web = ("", "-http")
    if ha:
        daemons.append(Daemon(availability.ZOOKEEPER, availability.MAINS["zookeeper"], ("",)))
        main = availability.MAINS["journalnode"]
        daemons += [Daemon(name, main, web) for name in availability.JOURNALNODES]
    main = f"{_HDFS}.namenode.NameNode"
    daemons += [Daemon(name, main, web) for name in availability.members("namenode", ha)]
    if ha:
        main = availability.MAINS["zkfc"]
        daemons += [Daemon(name, main, ("",)) for name in availability.CONTROLLERS.values()]
    daemons += [
        Daemon(f"datanode-{n}", f"{_HDFS}.datanode.DataNode", ("", "-http", "-ipc"))
        for n in range(datanodes)
    ]
    main = f"{_YARN}.resourcemanager.ResourceManager"
    daemons += [Daemon(name, main, yarn) for name in availability.members("resourcemanager", ha)]
    daemons += [
        Daemon(f"nodemanager-{n}", f"{_YARN}.nodemanager.NodeManager", ("", "-localizer", "-http"))
        for n in range(nodemanagers)
    ]
    history = "org.apache.hadoop.mapreduce.v2.hs.JobHistoryServer"
    daemons.append(Daemon("historyserver", history, ("", "-admin", "-http")))
    daemons.append(Daemon(metastore.NAME, metastore.MAIN, ("",)))
    return {daemon.name: daemon for daemon in daemons}


def catalogue_of(plan: Plan) -> dict[str, Daemon]:
    """Every daemon that this cluster can have."""
    secure = plan.kerberos is not None
    return catalogue(plan.datanodes, plan.nodemanagers, secure=secure, ha=plan.ha)


def ports_of(daemons: Iterable[Daemon]) -> list[str]:
    """The names of all ports that these listen on."""
    return [daemon.name + suffix for daemon in daemons for suffix in daemon.ports]


# ------------------------------------------------------------------------------------- starting
def daemon_environment(plan: Plan) -> dict[str, str]:
    """The environment of daemons, which does not inherit the caller's.

    A cluster's node does not have the user's virtual environment, credentials and proxies.
    """
    kept = {key: os.environ[key] for key in ("HOME", "TZ") if key in os.environ}
    return {
        **kept,
        **settings.node_environment(plan),
        "PATH": f"{plan.java_home}/bin:/usr/local/bin:/usr/bin:/bin",
        "USER": plan.user,
        "LOGNAME": plan.user,
        "LANG": "C.UTF-8",
        "JAVA_HOME": plan.java_home,
        "HADOOP_HOME": str(plan.hadoop_home),
        "HADOOP_CONF_DIR": str(plan.conf_dir),
    }


def java_command(plan: Plan, name: str, main: str, *args: str, listing: bool = False) -> list[str]:
    """argv of a Hadoop main class; `name` has the configuration.

    Args:
        listing: without a class archive, list the classes that it should have.
    """
    flags = [HEAP, *settings.java_flags(plan), *classdata.flags(plan, name if listing else None)]
    path = settings.class_path(plan, settings.daemon_conf(plan, name))
    return [f"{plan.java_home}/bin/java", *flags, "-cp", path, main, *args]


def start(plan: Plan, name: str, *, listing: bool = False) -> Record:
    """Start a daemon of the catalogue; `listing`: see `java_command`."""
    if name == kerberos.NAME:
        return spawn(plan, name, kerberos.argv(plan), kerberos.environment(plan))
    if name == metastore.NAME:
        flags = [HEAP, *settings.java_flags(plan)]
        return spawn(plan, name, metastore.argv(plan, flags))
    main = catalogue_of(plan)[name].main
    words = availability.arguments(plan, name, settings.daemon_conf(plan, name))
    return spawn(plan, name, java_command(plan, name, main, *words, listing=listing))


def spawn(plan: Plan, name: str, argv: list[str], env: Mapping[str, str] | None = None) -> Record:
    """Start a daemon, detached; its output is appended to logs/NAME.log."""
    log = plan.path("logs", f"{name}.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as out:
        offset = out.tell()
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**daemon_environment(plan), **(env or {})},
            cwd=plan.path("tmp"),
            start_new_session=True,
        )
    # It outlives this object, which would print a warning at its collection.
    process.returncode = 0
    return Record(process.pid, process_start(process.pid) or 0, time.time(), str(log), offset)


# ------------------------------------------------------------------------------------ processes
def process_start(pid: int) -> int | None:
    """Start of a process in clock ticks since boot; None: it has ended, and is reaped if it was a
    child of this process."""
    start = processes.process_start(pid)
    if start is None:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return start


def alive(record: Record) -> bool:
    """Whether the daemon's process still runs."""
    return process_start(record.pid) == record.start


def send(record: Record, signum: int) -> None:
    """Send a signal to a daemon's process group, if the daemon still runs."""
    if alive(record):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(record.pid, signum)


def marked(directory: str) -> list[int]:
    """Ids of all processes of a cluster, containers included.

    A container is also found by its working directory: a launcher may have cleared its environment.
    """
    containers = re.compile(re.escape(directory) + r"/nodemanager-\d+/local/")
    return processes.marked(MARK, directory, working_in=containers)


def end_all(directory: str, *, grace: float) -> list[int]:
    """End all processes of a cluster, as `servers.end_all`."""
    return servers.end_all(lambda: marked(directory), grace=grace)


# --------------------------------------------------------------------------------------- health
def listens(port: int) -> bool:
    """Whether a process accepts connections at a loopback port."""
    try:
        with socket.create_connection((HOST, port), timeout=5):
            return True
    except OSError:
        return False


def problem(plan: Plan, name: str, records: Mapping[str, Record]) -> str | None:
    """The reason why a running daemon does not serve yet; None: it does.

    NameNode and ResourceManager are healthy once all their nodes are registered, a node once it is
    registered: only then does a client not notice a restart.
    """
    record = records[name]
    if record.paused:
        return "paused"
    kind = kind_of(name)
    if kind == "namenode":
        return _namenode_problem(plan, name, records)
    if kind == "datanode":
        return _datanode_problem(plan, name, records)
    if kind == "resourcemanager":
        return _resourcemanager_problem(plan, name, records)
    if kind == "nodemanager":
        if jmx(plan, f"{name}-http", "java.lang:type=Runtime") is None:
            return "does not answer"
        if not availability.among(records, "resourcemanager"):
            return None
        node = (_known_nodes(plan, records) or {}).get(plan.address(name))
        if node is None or node.reported < record.since:
            return "not registered with the ResourceManager"
        return node.trouble
    if kind in (kerberos.NAME, metastore.NAME, availability.ZOOKEEPER, "zkfc"):
        if not listens(plan.ports[name]):
            return "does not answer"
        chosen = kind != "zkfc" or availability.active(plan, "namenode", records)
        return None if chosen else "no NameNode is active"
    runtime = jmx(plan, f"{name}-http", "java.lang:type=Runtime")
    return None if runtime is not None else "does not answer"


def namenode_info(plan: Plan, name: str = "namenode") -> dict | None:
    """A NameNode's information about itself; None while it does not answer."""
    bean = "Hadoop:service=NameNode,name=NameNodeInfo"
    return jmx(plan, f"{name}-http", bean, "LiveNodes", "Safemode")


def _namenode_problem(plan: Plan, name: str, records: Mapping[str, Record]) -> str | None:
    info = namenode_info(plan, name)
    if info is None:
        return "does not answer"
    live = json.loads(info["LiveNodes"]).values()
    ports = {node["xferaddr"].rpartition(":")[2] for node in live if node["lastContact"] <= 10}
    nodes = [other for other in records if other.startswith("datanode-")]
    missing = [other for other in nodes if str(plan.ports[other]) not in ports]
    if missing:
        return f"not registered: {', '.join(missing)}"
    return f"safe mode: {info['Safemode']}" if info["Safemode"] else None


def _resourcemanager_problem(plan: Plan, name: str, records: Mapping[str, Record]) -> str | None:
    if plan.ha and availability.state(plan, name) is None:
        return "does not answer"
    registered = _known_nodes(plan, records)
    if registered is None:
        return "no ResourceManager is active" if plan.ha else "does not answer"
    nodes = [other for other in records if other.startswith("nodemanager-")]
    missing = [other for other in nodes if plan.address(other) not in registered]
    if missing:
        return f"not registered: {', '.join(missing)}"
    useless = [other for other in nodes if registered[plan.address(other)].trouble]
    return f"cannot use {', '.join(useless)}" if useless else None


def _datanode_problem(plan: Plan, name: str, records: Mapping[str, Record]) -> str | None:
    bean = "Hadoop:service=DataNode,name=DataNodeInfo"
    info = jmx(plan, f"{name}-http", bean, "BPServiceActorInfo")
    if info is None:
        return "does not answer"
    actors = json.loads(info["BPServiceActorInfo"])
    well = [
        actor
        for actor in actors
        if actor["ActorState"] == "RUNNING" and int(actor["LastHeartbeat"]) <= 5
    ]
    serving = [one for one in availability.among(records, "namenode") if not records[one].paused]
    return "not registered with the NameNode" if len(well) < len(serving) else None


@dataclasses.dataclass(frozen=True)
class _Node:
    """A NodeManager in the ResourceManager's view."""

    reported: float
    """Time of its last report, epoch seconds."""
    trouble: str | None
    """The reason why it gets no containers, such as a disk that is nearly full; None: it gets
    them."""


def _known_nodes(plan: Plan, records: Mapping[str, Record]) -> dict[str, _Node] | None:
    """{address: NodeManager} of the nodes that report; None while no ResourceManager that is active
    answers."""
    manager = availability.active(plan, "resourcemanager", records)
    if manager is None:
        return None
    bean = "Hadoop:service=ResourceManager,name=RMNMInfo"
    info = jmx(plan, f"{manager}-http", bean, "LiveNodeManagers")
    if info is None:
        return None
    return {
        node["NodeId"]: _Node(node["LastHealthUpdate"] / 1000, _trouble(node))
        for node in json.loads(info["LiveNodeManagers"] or "[]")
        if node["State"] in ("RUNNING", "UNHEALTHY")
    }


def _trouble(node: Mapping[str, Any]) -> str | None:
    if node["State"] == "RUNNING":
        return None
    return f"{node['State'].lower()}: {node['HealthReport'].strip() or 'no health report'}"


def cause_of_death(record: Record) -> str:
    """The line of a daemon's log with the cause of its end: the innermost one, if any."""
    with open(record.log, "rb") as file:
        file.seek(record.log_offset)
        lines = file.read().decode(errors="replace").splitlines()
    for pattern in (r"^Caused by: ", r"^[\w.$]+(Exception|Error)\b", r" (FATAL|ERROR) |^Error"):
        matches = [line for line in lines if re.search(pattern, line)]
        if matches:
            return matches[-1].removeprefix("Caused by: ").strip()
    return next((line.strip() for line in reversed(lines) if line.strip()), "its log is empty")
