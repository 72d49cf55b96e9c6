"""Logs of an application's containers.

The logs of running containers come from their NodeManagers' web interface; when the application is
over, YARN aggregates them and Hadoop's `yarn logs` reads them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from typing import Any

from howdah.errors import ClusterError
from howdah.hadoop import web
from howdah.hadoop.resourcemanager import OVER, ResourceManager
from howdah.jobs.application import TAIL_BYTES

_SECONDS = 10.0
_CALL_SECONDS = 120.0
_AGGREGATION_SECONDS = 60.0
"""How long to wait for logs, which NodeManagers upload after an application has ended."""
_POLL_SECONDS = 1.0


def of_containers(
    manager: ResourceManager, application: str, progress: Callable[[str], None]
) -> dict[str, dict[str, str]]:
    """{container: {file: its last TAIL_BYTES}} of a job's containers.

    Raises:
        ClusterError: YARN has not aggregated them, or Hadoop's `yarn` is missing.
    """
    report = manager.application(application)
    if report["state"] in OVER:
        return _aggregated(application, str(report.get("user")), progress)
    logs = {}
    for attempt in manager.attempts(application)[-1:]:
        for container in manager.containers(application, str(attempt.get("appAttemptId"))):
            name, address = container["containerId"], container["nodeHttpAddress"]
            logs[name] = _of_node(manager, name, address)
    return logs


def _of_node(manager: ResourceManager, container: str, address: str) -> dict[str, str]:
    """The ends of a container's log files, from its NodeManager."""
    import requests

    scheme = "https" if manager.conf.https_only("yarn") else "http"
    base = address if "://" in address else f"{scheme}://{address}"
    base = f"{base}/ws/v1/node/containers/{container}/logs"
    session = web.session(manager.conf, base)
    params = web.identity(manager.conf, manager.user)
    logs = {}
    try:
        for name in _names(session, base, params):
            answer = session.get(
                f"{base}/{name}", params={**params, "size": str(-TAIL_BYTES)}, timeout=_SECONDS
            )
            if answer.status_code == 200:
                logs[name] = _without_frame(answer.text)
    except requests.RequestException as error:
        logs["(not available)"] = f"{address}: {error}"
    return logs


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
    """A log without the frame that NodeManagers add ("Container: ...", "LogContents:")."""
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
            "the logs of an ended job need Hadoop's `yarn` on PATH or in HADOOP_HOME",
            remedy="use a machine with a Hadoop client, or --rank N (from the run directory)",
        )
    argv = [program, "logs", "-applicationId", application, "-appOwner", user]
    argv += ["-size", str(-TAIL_BYTES)]
    until = time.monotonic() + _AGGREGATION_SECONDS
    while True:
        try:
            result = subprocess.run(
                argv, capture_output=True, text=True, errors="replace", check=False,
                timeout=_CALL_SECONDS, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise ClusterError(
                f"`yarn logs` has not ended within {_CALL_SECONDS:.0f} s",
                where=application,
                remedy=f"{' '.join(argv)} > FILE; --rank N reads the run directory",
            ) from None
        if result.returncode == 0 and "LogContents:" in result.stdout:
            return _parsed(result.stdout)
        if time.monotonic() > until:
            raise ClusterError(
                "the job's logs are not available",
                where=application,
                got=(result.stderr.strip().splitlines() or ["none were aggregated"])[-1],
                remedy="check yarn.log-aggregation-enable; --rank N reads the run directory",
            )
        progress("waiting for YARN to aggregate the logs")
        time.sleep(_POLL_SECONDS)


def _parsed(text: str) -> dict[str, dict[str, str]]:
    """{container: {file: text}} of the output of `yarn logs`."""
    logs: dict[str, dict[str, str]] = {}
    container = name = ""
    body: list[str] | None = None
    for line in text.splitlines():
        if body is not None:
            if line.startswith("End of LogType:"):
                logs.setdefault(container, {})[name] = "\n".join(body)
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
        for container, files in logs.items()
    }
