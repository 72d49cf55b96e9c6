"""`python -m tools.minicluster`: a real Hadoop on this machine."""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from howdah.cli import main
from howdah.cli.common import AsJson, answer, say
from howdah.errors import ClusterError, UsageError
from tools.minicluster import metastore
from tools.minicluster.cluster import MiniCluster
from tools.minicluster.maven.jars import HADOOP_VERSION, VERSIONS
from tools.minicluster.variants import web

app = typer.Typer(
    name="python -m tools.minicluster",
    help="Real HDFS and YARN daemons on this machine's loopback, for trials and tests.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

ClusterDirectory = Annotated[
    str, typer.Option("--directory", "-d", help="Directory of the cluster's files.")
]
CLUSTER_DIRECTORY = "build/minicluster"


@app.command("start")
def start_command(
    directory: ClusterDirectory = CLUSTER_DIRECTORY,
    hadoop: Annotated[
        str, typer.Option(metavar="VERSION", help=f"{', '.join(VERSIONS)}.")
    ] = HADOOP_VERSION,
    kerberos: Annotated[bool, typer.Option("--kerberos", help="With a Kerberos realm.")] = False,
    ha: Annotated[
        bool, typer.Option("--ha", help="With two NameNodes and two ResourceManagers.")
    ] = False,
    tls: Annotated[
        bool, typer.Option("--tls", help="With HTTPS (with --kerberos: all encrypted).")
    ] = False,
    metastore: Annotated[
        bool, typer.Option("--metastore", help="With a Hive metastore: 2.3; 3.1 before Hadoop 3.5.")
    ] = False,
    port: Annotated[
        list[str] | None,
        typer.Option(help="NAME=PORT, such as namenode=8020; all others are chosen."),
    ] = None,
    node_memory: Annotated[
        int, typer.Option(min=512, help="MiB of memory of each of the two NodeManagers.")
    ] = 6144,
    node_gpus: Annotated[
        int, typer.Option(min=0, help="GPUs of each NodeManager (counted, not isolated).")
    ] = 0,
    shared: Annotated[
        bool,
        typer.Option(
            "--shared", help="Allow root without Kerberos although this machine has other users."
        ),
    ] = False,
    json: AsJson = False,
) -> None:
    """Start a cluster and leave it running, or use the one that already runs in the directory."""
    started = start(
        directory, with_metastore=metastore, ports=port or [], shared=shared, say=say,
        hadoop=hadoop, secure=kerberos, ha=ha, tls=tls, node_memory_mb=node_memory,
        node_gpus=node_gpus,
    )  # fmt: skip
    answer(started, json, start_lines(started))


@app.command("stop")
def stop_command(
    directory: ClusterDirectory = CLUSTER_DIRECTORY,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the directory too.")] = False,
    json: AsJson = False,
) -> None:
    """End every daemon and container of a cluster; its data is kept unless --remove."""
    cluster = MiniCluster(directory)
    was_running = cluster.is_running()
    cluster.stop(remove=remove)
    state = "stopped" if was_running else "nothing was running"
    value = {"directory": cluster.directory, "was_running": was_running, "removed": remove}
    answer(value, json, [f"mini cluster {state}: {cluster.directory}"])


@app.command("status")
def status_command(directory: ClusterDirectory = CLUSTER_DIRECTORY, json: AsJson = False) -> None:
    """Show each daemon's state, process and ports; exit code 1 unless all are healthy."""
    state = MiniCluster(directory).status()
    answer(state, json, state_lines(state))
    raise typer.Exit(0 if healthy(state) else 1)


@app.command("env")
def env_command(directory: ClusterDirectory = CLUSTER_DIRECTORY, json: AsJson = False) -> None:
    """Print environment variables for a shell: eval "$(python -m tools.minicluster env)"."""
    cluster = MiniCluster(directory)
    environment = {key: cluster.env[key] for key in cluster.exports()}
    answer(environment, json, export_lines(cluster))


@app.command("logs")
def logs_command(
    daemon: Annotated[str | None, typer.Argument(help="A daemon; default: list all logs.")] = None,
    directory: ClusterDirectory = CLUSTER_DIRECTORY,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="Number of lines.")] = 50,
    json: AsJson = False,
) -> None:
    """Show the end of a daemon's log, or the paths of all logs. Containers' logs: yarn logs."""
    cluster = MiniCluster(directory)
    if daemon is None:
        logs = cluster.logs()
        answer(logs, json, [f"{name:<16} {path}" for name, path in logs.items()])
        return
    tail = log_lines(cluster, daemon, lines)
    answer({"daemon": daemon, "path": cluster.logs()[daemon], "lines": tail}, json, tail)


_NAMES = {
    "hadoop": "Hadoop", "secure": "Kerberos", "ha": "high availability", "tls": "TLS",
    "node_memory_mb": "node memory", "node_gpus": "node GPUs",
}  # fmt: skip
"""Names of settings in messages."""


def start(
    directory: str,
    *,
    with_metastore: bool,
    ports: Sequence[str],
    shared: bool = False,
    say: Callable[[str], None],
    **settings: Any,
) -> dict[str, Any]:
    """Start a cluster, or use the one that runs in the directory.

    Args:
        ports: words NAME=PORT.
        shared: see MiniCluster.start.
        settings: those of MiniCluster.start in _NAMES; a running cluster must have the same.

    Returns:
        {was_running, directory, hdfs_url, webhdfs_url, pages, resourcemanager, metastore_uri (or
        None), environment, daemons}.

    Raises:
        UsageError: a port is not valid, or the running cluster has other settings.
    """
    cluster = MiniCluster(directory, say=say)
    was_running = cluster.is_running()
    requested_ports = parse_ports(ports)
    if was_running:
        plan = cluster.plan
        requested = settings | requested_ports
        running = vars(plan) | plan.ports | {"secure": plan.kerberos is not None}
        other = [name for name in requested if requested[name] != running.get(name)]
        if other:
            expected, got = (
                ", ".join(f"{_NAMES.get(name, name)} {values.get(name)}" for name in other)
                for values in (requested, running)
            )
            raise UsageError(
                "a mini cluster with other settings runs in this directory",
                where=cluster.directory,
                expected=expected,
                got=got,
                remedy="stop it first, or choose another --directory",
            )
        cluster.wait_healthy()
    else:
        cluster.start(ports=requested_ports, shared=shared, **settings)
    uri = cluster.metastore_uri if with_metastore else None
    if uri is None and metastore.NAME in cluster.records:
        uri = cluster.metastore_uri
    status, plan, namenode = cluster.status(), cluster.plan, cluster.active("namenode")
    return {
        "was_running": was_running,
        "directory": cluster.directory,
        "hdfs_url": cluster.hdfs_url,
        "webhdfs_url": cluster.webhdfs_url,
        "pages": f"{web.scheme(plan)}://{plan.address(f'{namenode}-http')}",
        "resourcemanager": status["resourcemanager"],
        "metastore_uri": uri,
        "environment": {key: cluster.env[key] for key in cluster.exports()},
        "daemons": status["daemons"],
    }


def parse_ports(arguments: Sequence[str]) -> dict[str, int]:
    """{name: port} of "NAME=PORT" arguments.

    Raises:
        UsageError: an argument does not have that form.
    """
    ports = {}
    for word in arguments:
        name, _, number = word.partition("=")
        if not number.isdigit() or not 0 < int(number) < 65536:
            raise UsageError("not a valid port", where="--port", expected="NAME=PORT", got=word)
        ports[name] = int(number)
    return ports


def start_lines(status: dict[str, Any]) -> list[str]:
    """Lines about a started cluster."""
    state = "already running" if status["was_running"] else "started"
    running = sum(daemon["state"] == "running" for daemon in status["daemons"].values())
    lines = [
        f"mini cluster {state}: {running} daemons in {status['directory']}",
        f"HDFS:            {status['hdfs_url']}  ({status['pages']})",
        f"YARN:            {status['resourcemanager']}",
    ]
    if status["metastore_uri"]:
        lines.append(f"Hive metastore:  {status['metastore_uri']}")
    where = shlex.quote(status["directory"])
    return [
        *lines,
        f'to use it:       eval "$(python -m tools.minicluster env --directory {where})"',
        f"to end it:       python -m tools.minicluster stop --directory {where}",
    ]


def state_lines(status: dict[str, Any]) -> list[str]:
    """A line for each daemon: state, process, ports and problem."""
    lines = [f"{status['hdfs']}  {status['webhdfs']}  {status['resourcemanager']}"]
    for name, daemon in status["daemons"].items():
        ports = " ".join(str(port) for port in daemon["ports"].values())
        pid = daemon["pid"] or "-"
        problem = f"  {daemon['problem']}" if daemon.get("problem") else ""
        lines.append(f"{name:<16} {daemon['state']:<10} pid {pid:<8} ports {ports}{problem}")
    return lines


def healthy(status: dict[str, Any]) -> bool:
    """Whether every daemon runs; the metastore may be stopped."""
    return all(
        daemon["state"] == "running"
        for name, daemon in status["daemons"].items()
        if not (name == metastore.NAME and daemon["state"] == "stopped")
    )


def export_lines(cluster: MiniCluster) -> list[str]:
    """`export` lines for a POSIX shell.

    Raises:
        ClusterError: the cluster does not run, so a shell could not use it.
    """
    if not cluster.is_running():
        raise ClusterError(
            "the mini cluster does not run",
            where=cluster.directory,
            remedy="python -m tools.minicluster start",
        )
    lines = []
    for key, value in cluster.exports().items():
        if key == "PATH":
            lines.append(f'export PATH={shlex.quote(value)}:"$PATH"')
        else:
            lines.append(f"export {key}={shlex.quote(value)}")
    return lines


def log_lines(cluster: MiniCluster, daemon: str, lines: int) -> list[str]:
    """The last lines of a daemon's log.

    Raises:
        UsageError: the daemon does not exist, or has no log yet.
    """
    logs = cluster.logs()
    if daemon not in logs:
        expected = ", ".join(logs) or "no log exists yet"
        raise UsageError(f"the daemon {daemon} has no log", expected=expected)
    with open(logs[daemon], encoding="utf-8", errors="replace") as file:
        return [line.rstrip("\n") for line in deque(file, maxlen=lines)]


if __name__ == "__main__":
    main(app)
