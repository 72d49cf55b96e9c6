"""`howdah minicluster`: a real Hadoop on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from howdah.cli.common import AsJson, answer, say

minicluster_app = typer.Typer(
    help="Real HDFS and YARN daemons on this machine's loopback, for trials and tests.",
    no_args_is_help=True,
)

ClusterDirectory = Annotated[
    str, typer.Option("--directory", "-d", help="Directory of the cluster's files.")
]
CLUSTER_DIRECTORY = "build/minicluster"


@minicluster_app.command("start")
def minicluster_start(
    directory: ClusterDirectory = CLUSTER_DIRECTORY,
    kerberos: Annotated[bool, typer.Option("--kerberos", help="With a Kerberos realm.")] = False,
    metastore: Annotated[
        bool, typer.Option("--metastore", help="With a Hive metastore (PySpark's).")
    ] = False,
    port: Annotated[
        list[str] | None,
        typer.Option(help="NAME=PORT, such as namenode=8020; the others are chosen free."),
    ] = None,
    node_memory: Annotated[
        int, typer.Option(min=512, help="MiB that each of the two NodeManagers offers.")
    ] = 6144,
    node_gpus: Annotated[
        int, typer.Option(min=0, help="GPUs that each NodeManager offers (counted, not isolated).")
    ] = 0,
    shared: Annotated[
        bool,
        typer.Option(
            "--shared", help="Without Kerberos, as root, although this machine has other users."
        ),
    ] = False,
    json: AsJson = False,
) -> None:
    """Start a cluster and leave it running, or use one that runs in the directory already."""
    from tools.minicluster import command

    started = command.start(
        directory, secure=kerberos, with_metastore=metastore, ports=port or [],
        node_memory_mb=node_memory, node_gpus=node_gpus, shared=shared, say=say,
    )  # fmt: skip
    answer(started, json, command.start_lines(started))


@minicluster_app.command("stop")
def minicluster_stop(
    directory: ClusterDirectory = CLUSTER_DIRECTORY,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the directory too.")] = False,
    json: AsJson = False,
) -> None:
    """End every daemon and container of a cluster; its data is kept unless --remove."""
    from tools.minicluster import command

    ended = command.end(directory, remove=remove)
    state = "stopped" if ended["was_running"] else "nothing was running"
    answer(ended, json, [f"mini cluster {state}: {ended['directory']}"])


@minicluster_app.command("status")
def minicluster_status(
    directory: ClusterDirectory = CLUSTER_DIRECTORY, json: AsJson = False
) -> None:
    """Show each daemon's state, process and ports; exit code 1 where one does not run well."""
    from tools.minicluster import MiniCluster, command

    state = MiniCluster(directory).status()
    answer(state, json, command.state_lines(state))
    raise typer.Exit(0 if command.healthy(state) else 1)


@minicluster_app.command("env")
def minicluster_env(directory: ClusterDirectory = CLUSTER_DIRECTORY, json: AsJson = False) -> None:
    """Print a shell's environment variables: eval "$(howdah minicluster env)"; hdfs dfs -ls /"""
    from tools.minicluster import MiniCluster, command

    cluster = MiniCluster(directory)
    environment = {key: cluster.env[key] for key in cluster.exports()}
    answer(environment, json, command.export_lines(cluster))


@minicluster_app.command("logs")
def minicluster_logs(
    daemon: Annotated[str | None, typer.Argument(help="A daemon; none: the names of all.")] = None,
    directory: ClusterDirectory = CLUSTER_DIRECTORY,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="How many.")] = 50,
    json: AsJson = False,
) -> None:
    """Show the end of a daemon's log, or where all logs are. Containers' logs: yarn logs."""
    from tools.minicluster import MiniCluster, command

    cluster = MiniCluster(directory)
    if daemon is None:
        logs = cluster.logs()
        answer(logs, json, [f"{name:<16} {path}" for name, path in logs.items()])
        return
    found = command.log_lines(cluster, daemon, lines)
    answer({"daemon": daemon, "path": cluster.logs()[daemon], "lines": found}, json, found)
