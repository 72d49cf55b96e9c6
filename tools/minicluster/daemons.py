"""The daemons of a mini cluster: what each is, how it is started, whether it is well, why it died.

A daemon is its own session and process group, detached from who started it. It is known by process
id and start time, and carries the cluster's directory in its environment (`MARK`), as do the
containers that a NodeManager starts: so all of them can be found, also when the state file is lost.
"""

from __future__ import annotations

import dataclasses
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from howdah.core import processes
from howdah.core.processes import stat_fields
from tools.minicluster import classdata, kerberos, metastore, settings
from tools.minicluster.plan import HOST, Plan
from tools.minicluster.settings import MARK

HEAP = "-Xmx256m"
KILL_LIMIT = 20.0  # seconds for the kernel to end what was killed
_HDFS = "org.apache.hadoop.hdfs.server"
_YARN = "org.apache.hadoop.yarn.server"


@dataclasses.dataclass(frozen=True)
class Daemon:
    """A kind of daemon: the class with its main(), and names of its ports (`-x` of its own)."""

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


def catalogue(datanodes: int, nodemanagers: int, *, secure: bool) -> dict[str, Daemon]:
    """Every daemon that a cluster can have, in the order of starting."""
    yarn = ("", "-scheduler", "-tracker", "-admin", "-http")
    found = [Daemon(kerberos.NAME, "", ("",))] if secure else []
    found.append(Daemon("namenode", f"{_HDFS}.namenode.NameNode", ("", "-http")))
    found += [
        Daemon(f"datanode-{n}", f"{_HDFS}.datanode.DataNode", ("", "-http", "-ipc"))
        for n in range(datanodes)
    ]
    found.append(Daemon("resourcemanager", f"{_YARN}.resourcemanager.ResourceManager", yarn))
    found += [
        Daemon(f"nodemanager-{n}", f"{_YARN}.nodemanager.NodeManager", ("", "-localizer", "-http"))
        for n in range(nodemanagers)
    ]
    history = "org.apache.hadoop.mapreduce.v2.hs.JobHistoryServer"
    found.append(Daemon("historyserver", history, ("", "-admin", "-http")))
    found.append(Daemon(metastore.NAME, metastore.MAIN, ("",)))
    return {daemon.name: daemon for daemon in found}


def catalogue_of(plan: Plan) -> dict[str, Daemon]:
    """Every daemon that this cluster can have."""
    return catalogue(plan.datanodes, plan.nodemanagers, secure=plan.kerberos is not None)


def ports_of(daemons: Iterable[Daemon]) -> list[str]:
    """The names of all ports that these listen on."""
    return [daemon.name + suffix for daemon in daemons for suffix in daemon.ports]


# ------------------------------------------------------------------------------------- starting
def daemon_environment(plan: Plan) -> dict[str, str]:
    """What daemons find in their environment: nothing of the caller's.

    A node of a cluster knows no virtual environment, no credentials and no proxies of the user.
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
        listing: where there is no class archive yet, list the classes that it should have.
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
    return spawn(plan, name, java_command(plan, name, main, listing=listing))


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
    # It outlives this object, which must not complain of that when it is collected.
    process.returncode = 0
    return Record(process.pid, process_start(process.pid) or 0, time.time(), str(log), offset)


# ------------------------------------------------------------------------------------ processes
def process_start(pid: int) -> int | None:
    """Start of a process in clock ticks since boot; None: no such process, or a zombie.

    Field 22 of proc(5)'s /proc/<pid>/stat. A child of ours that has ended is reaped.
    """
    fields = stat_fields(pid)
    if fields is None:
        return None
    if fields[0] not in "ZX":
        return int(fields[19])
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass
    return None


def alive(record: Record) -> bool:
    """Whether the daemon's process still runs."""
    return process_start(record.pid) == record.start


def send(record: Record, signum: int) -> None:
    """Send a signal to a daemon and what it has in its process group, where it still runs."""
    if alive(record):
        try:
            os.killpg(record.pid, signum)
        except ProcessLookupError:
            pass


def marked(directory: str) -> list[int]:
    """Process ids of all that a cluster has running, containers included.

    A container is known by its working directory too: a launcher may have emptied its environment.
    """
    containers = re.compile(re.escape(directory) + r"/nodemanager-\d+/local/")
    return processes.marked(MARK, directory, working_in=containers)


def end_all(directory: str, *, grace: float) -> list[int]:
    """End everything of a cluster: asked first, killed after `grace` seconds; what is left then."""
    _signal_marked(directory, signal.SIGCONT)
    _signal_marked(directory, signal.SIGTERM)
    killing = time.monotonic() + grace
    deadline = killing + KILL_LIMIT
    while (left := marked(directory)) and time.monotonic() < deadline:
        if time.monotonic() > killing:  # again and again: a dying one may have started another
            _signal_marked(directory, signal.SIGKILL)
        time.sleep(0.05)
    return left


def _signal_marked(directory: str, signum: int) -> None:
    for pid in marked(directory):
        try:
            os.kill(pid, signum)
        except ProcessLookupError:
            pass


# --------------------------------------------------------------------------------------- health
def listens(port: int) -> bool:
    """Whether a process takes connections at a loopback port."""
    try:
        with socket.create_connection((HOST, port), timeout=5):
            return True
    except OSError:
        return False


def jmx(plan: Plan, port: str, bean: str, *attributes: str) -> dict | None:
    """A daemon's management bean by HTTP.

    None where no process answers, and while it lacks the attributes: a daemon that is just
    starting has the bean before the bean's values.
    """
    connection = http.client.HTTPConnection(HOST, plan.ports[port], timeout=5)
    try:
        connection.request("GET", f"/jmx?qry={quote(bean)}")
        answer = connection.getresponse()
        if answer.status != 200:
            return None
        beans = json.loads(answer.read())["beans"]
        return beans[0] if beans and all(name in beans[0] for name in attributes) else None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()


def problem(plan: Plan, name: str, records: Mapping[str, Record]) -> str | None:
    """Why a running daemon does not serve yet; None: it does.

    NameNode and ResourceManager are well when they know all their nodes, a node when it is known:
    only then does a client see no difference to before a restart.
    """
    record = records[name]
    if record.paused:
        return "paused"
    kind = name.partition("-")[0]
    if kind == "namenode":
        return _namenode_problem(plan, records)
    if kind == "datanode":
        return _datanode_problem(plan, name, "namenode" in records)
    if kind == "resourcemanager":
        known = _known_nodes(plan)
        if known is None:
            return "does not answer"
        nodes = [other for other in records if other.startswith("nodemanager-")]
        missing = [other for other in nodes if plan.address(other) not in known]
        if missing:
            return f"does not know {', '.join(missing)}"
        useless = [other for other in nodes if known[plan.address(other)].trouble]
        return f"cannot use {', '.join(useless)}" if useless else None
    if kind == "nodemanager":
        if jmx(plan, f"{name}-http", "java.lang:type=Runtime") is None:
            return "does not answer"
        if "resourcemanager" not in records:
            return None
        node = (_known_nodes(plan) or {}).get(plan.address(name))
        if node is None or node.reported < record.since:
            return "not registered with the ResourceManager"
        return node.trouble
    if kind in (kerberos.NAME, metastore.NAME):
        return None if listens(plan.ports[name]) else "does not answer"
    runtime = jmx(plan, f"{name}-http", "java.lang:type=Runtime")
    return None if runtime is not None else "does not answer"


def namenode_info(plan: Plan) -> dict | None:
    """The NameNode's account of itself; None while it does not answer."""
    bean = "Hadoop:service=NameNode,name=NameNodeInfo"
    return jmx(plan, "namenode-http", bean, "LiveNodes", "Safemode")


def _namenode_problem(plan: Plan, records: Mapping[str, Record]) -> str | None:
    info = namenode_info(plan)
    if info is None:
        return "does not answer"
    live = json.loads(info["LiveNodes"]).values()
    known = {node["xferaddr"].rpartition(":")[2] for node in live if node["lastContact"] <= 10}
    nodes = [other for other in records if other.startswith("datanode-")]
    missing = [other for other in nodes if str(plan.ports[other]) not in known]
    if missing:
        return f"does not know {', '.join(missing)}"
    return f"safe mode: {info['Safemode']}" if info["Safemode"] else None


def _datanode_problem(plan: Plan, name: str, has_namenode: bool) -> str | None:
    bean = "Hadoop:service=DataNode,name=DataNodeInfo"
    info = jmx(plan, f"{name}-http", bean, "BPServiceActorInfo")
    if info is None:
        return "does not answer"
    if not has_namenode:
        return None
    actors = json.loads(info["BPServiceActorInfo"])
    well = [
        actor
        for actor in actors
        if actor["ActorState"] == "RUNNING" and int(actor["LastHeartbeat"]) <= 5
    ]
    return None if well else "not registered with the NameNode"


@dataclasses.dataclass(frozen=True)
class _Node:
    """A NodeManager, as the ResourceManager knows it."""

    reported: float
    """When it last reported, epoch seconds."""
    trouble: str | None
    """Why it gets no containers, such as a disk that is nearly full; None: it gets some."""


def _known_nodes(plan: Plan) -> dict[str, _Node] | None:
    """{address: NodeManager} of those that report; None while the ResourceManager does not
    answer."""
    bean = "Hadoop:service=ResourceManager,name=RMNMInfo"
    info = jmx(plan, "resourcemanager-http", bean, "LiveNodeManagers")
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
    return f"{node['State'].lower()}: {node['HealthReport'].strip() or 'it does not say why'}"


def cause_of_death(record: Record) -> str:
    """The line of a daemon's log that says why it ended: the innermost cause, where one is."""
    with open(record.log, "rb") as file:
        file.seek(record.log_offset)
        lines = file.read().decode(errors="replace").splitlines()
    for pattern in (r"^Caused by: ", r"^[\w.$]+(Exception|Error)\b", r" (FATAL|ERROR) |^Error"):
        found = [line for line in lines if re.search(pattern, line)]
        if found:
            return found[-1].removeprefix("Caused by: ").strip()
    return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
