"""`howdah logs`: of one rank from the run directory, of all containers from the nodes or YARN.

The run directory holds each rank's log, during the job and after it (rank 0's is some ten seconds
behind, other ranks' a minute or more: training/run/mirror.py). Logs of running containers come from
their NodeManagers' web interface; when the job is over, YARN aggregates them and Hadoop's own
`yarn logs` reads them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from typing import Any

from howdah.errors import ClusterError, NotFound
from howdah.hadoop import web
from howdah.hadoop.resourcemanager import OVER, ResourceManager
from howdah.jobs.status import rank_log
from howdah.yarn.client.status import Job

TAIL_BYTES = 262_144
"""How much of the end of each file is shown."""
_SECONDS = 10.0
_CALL_SECONDS = 120.0
_AGGREGATION_SECONDS = 60.0
"""How long to wait for logs: NodeManagers upload them after an application has ended."""
_POLL_SECONDS = 1.0


def of_rank(
    manager: ResourceManager,
    job: Job,
    rank: int,
    *,
    follow: bool,
    out: Callable[[str], None],
) -> None:
    """Pass a rank's log to `out` line by line; with `follow`, until the job is over.

    Raises:
        NotFound: there is none. ClusterError: the run directory is not known.
    """
    if job.directory is None:
        raise ClusterError(
            "the job's run directory is not known here",
            where=job.application,
            remedy="give --config as well, or leave out --rank",
        )

    def is_over() -> bool:
        return not follow or manager.application(job.application)["state"] in OVER

    if not rank_log.follow(job.directory, rank, is_over, out, poll_seconds=_POLL_SECONDS):
        _of_ranks_container(manager, job, rank, out)


def _of_ranks_container(
    manager: ResourceManager, job: Job, rank: int, out: Callable[[str], None]
) -> None:
    """The log of the training process that had a rank last, from its container."""
    ranks = job.driver_status().get("ranks") or []
    container = next((r.get("container") for r in ranks if r.get("rank") == rank), None)
    files = of_containers(manager, job, progress=lambda line: None).get(container or "", {})
    names = sorted(name for name in files if name.startswith("training."))
    if not names:
        raise NotFound(
            "this rank has no log",
            where=rank_log.path_of(job.directory or "", rank),
            remedy=f"howdah logs {job.application} shows the containers'",
        )
    for line in files[names[-1]].rstrip("\n").split("\n"):
        out(line)


def of_containers(
    manager: ResourceManager, job: Job, progress: Callable[[str], None]
) -> dict[str, dict[str, str]]:
    """{container: {file: its last TAIL_BYTES}} of a job's containers.

    Raises:
        ClusterError: YARN has not aggregated them, or Hadoop's `yarn` is missing.
    """
    report = manager.application(job.application)
    if report["state"] in OVER:
        return _aggregated(job.application, str(report.get("user")), progress)
    found = {}
    for container, address in _running(manager, job.application).items():
        found[container] = _of_node(manager, container, address)
    return found


def _running(manager: ResourceManager, application: str) -> dict[str, str]:
    """{running container: web address of its node}."""
    found = {}
    for attempt in manager.attempts(application)[-1:]:
        name = attempt.get("appAttemptId")
        for container in manager.containers(application, str(name)):
            found[container["containerId"]] = container["nodeHttpAddress"]
    return found


def _of_node(manager: ResourceManager, container: str, address: str) -> dict[str, str]:
    """The ends of a container's log files, from its NodeManager."""
    import requests

    base = address if "://" in address else f"http://{address}"
    base = f"{base}/ws/v1/node/containers/{container}/logs"
    session = web.session(manager.conf, base)
    params = web.identity(manager.conf, manager.user)
    found = {}
    try:
        for name in _names(session, base, params):
            answer = session.get(
                f"{base}/{name}", params={**params, "size": str(-TAIL_BYTES)}, timeout=_SECONDS
            )
            if answer.status_code == 200:
                found[name] = _without_frame(answer.text)
    except requests.RequestException as error:
        found["(not available)"] = f"{address}: {error}"
    return found


def _names(session: Any, base: str, params: Mapping[str, str]) -> list[str]:
    answer = session.get(
        base, params=dict(params), timeout=_SECONDS, headers={"Accept": "application/json"}
    )
    if answer.status_code != 200:
        return []
    listing = answer.json()
    infos = listing.get("containerLogsInfo") or listing
    infos = infos if isinstance(infos, list) else [infos]
    names = []
    for info in infos:
        files = info.get("containerLogInfo") or []
        for file in files if isinstance(files, list) else [files]:
            names.append(file["fileName"])
    return sorted(n for n in names if not n.startswith(("prelaunch", "launch_container", "dir")))


def _without_frame(text: str) -> str:
    """A file without the frame that NodeManagers add ("Container: ...", "LogContents:")."""
    _, mark, rest = text.partition("LogContents:\n")
    if not mark:
        return text
    return rest.partition("\nEnd of LogType:")[0]


def _aggregated(
    application: str, user: str, progress: Callable[[str], None]
) -> dict[str, dict[str, str]]:
    home = os.environ.get("HADOOP_HOME")
    directories = ([os.path.join(home, "bin")] if home else []) + [os.environ.get("PATH", "")]
    program = shutil.which("yarn", path=os.pathsep.join(directories))
    if program is None:
        raise ClusterError(
            "the logs of a job that is over need Hadoop's `yarn`",
            where="PATH",
            expected="yarn on PATH, or HADOOP_HOME",
            remedy="use a machine with a Hadoop client, or --rank N (from the run directory)",
        )
    argv = [program, "logs", "-applicationId", application, "-appOwner", user]
    argv += ["-size", str(-TAIL_BYTES)]
    until = time.monotonic() + _AGGREGATION_SECONDS
    while True:
        done = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", check=False,
            timeout=_CALL_SECONDS, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if done.returncode == 0 and "LogContents:" in done.stdout:
            return _parsed(done.stdout)
        if time.monotonic() > until:
            raise ClusterError(
                "the job's logs are not available",
                where=application,
                got=(done.stderr.strip().splitlines() or ["none were aggregated"])[-1],
                remedy="is yarn.log-aggregation-enable set? --rank N reads the run directory",
            )
        progress("waiting for YARN to aggregate the logs")
        time.sleep(_POLL_SECONDS)


def _parsed(text: str) -> dict[str, dict[str, str]]:
    """The output of `yarn logs`, by container and file."""
    found: dict[str, dict[str, str]] = {}
    container = name = ""
    body: list[str] | None = None
    for line in text.splitlines():
        if body is not None:
            if line.startswith("End of LogType:"):
                found.setdefault(container, {})[name] = "\n".join(body)
                body = None
            else:
                body.append(line)
        elif line.startswith("Container: "):
            container = line.split()[1]
        elif line.startswith("LogType:"):
            name = line.partition(":")[2].strip()
        elif line.startswith("LogContents:"):
            body = []
    return {
        container: {n: t for n, t in files.items() if not n.startswith(("prelaunch", "launch_"))}
        for container, files in found.items()
    }


def lines(found: Mapping[str, Mapping[str, str]]) -> list[str]:
    """`of_containers` as text, each file under a headline."""
    out = []
    for container, files in sorted(found.items()):
        for name, text in sorted(files.items()):
            out += [f"==== {container} {name}", *text.rstrip("\n").split("\n")]
    return out or ["no logs"]
