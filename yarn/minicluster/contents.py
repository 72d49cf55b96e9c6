"""What lies in a mini cluster's HDFS and runs on its YARN: made at start, wiped between tests."""

from __future__ import annotations

import http.client
import json
import time
from typing import Any
from urllib.parse import quote

from howdah.errors import ClusterError
from yarn.minicluster.settings import HOST, Plan

__all__ = ["end_applications", "make_dir", "make_standard", "remove", "wipe"]

FINAL = {"FINISHED", "FAILED", "KILLED"}
END_LIMIT = 60.0  # seconds for applications to end


def standard_directories(plan: Plan) -> dict[str, str]:
    """{path: mode} of what a cluster's users expect."""
    return {
        "/tmp": "1777",
        "/app-logs": "1777",
        "/mr-history": "1777",
        "/test": "1777",
        "/user": "755",
        f"/user/{plan.user}": "755",
        "/user/hive/warehouse": "1777",
    }


def make_standard(plan: Plan) -> None:
    """Make the directories that a cluster's users expect."""
    for path, mode in standard_directories(plan).items():
        make_dir(plan, path, mode)


def wipe(plan: Plan) -> None:
    """End all applications, remove all files and quotas, make the standard directories again."""
    end_applications(plan)
    kept = {path.split("/")[1] for path in standard_directories(plan)}
    listing = _hdfs(plan, "GET", "/", "LISTSTATUS")["FileStatuses"]["FileStatus"]
    for entry in listing:
        name = entry["pathSuffix"]
        if name not in kept:
            remove(plan, f"/{name}")
            continue
        below = _hdfs(plan, "GET", f"/{name}", "LISTSTATUS")["FileStatuses"]["FileStatus"]
        for child in below:
            remove(plan, f"/{name}/{child['pathSuffix']}")
    make_standard(plan)


def make_dir(plan: Plan, path: str, mode: str = "1777") -> None:
    """Make a directory of the superuser; by default anyone may write there."""
    _hdfs(plan, "PUT", path, "MKDIRS", permission=mode)
    _hdfs(plan, "PUT", path, "SETPERMISSION", permission=mode)


def remove(plan: Plan, path: str) -> None:
    """Remove a path with all below it, whoever owns it, trash or not."""
    _hdfs(plan, "DELETE", path, "DELETE", recursive="true")


def end_applications(plan: Plan) -> None:
    """Kill all applications that run, and wait until they have ended.

    Raises:
        ClusterError: one has not ended in a minute.
    """
    deadline = time.monotonic() + END_LIMIT
    asked: set[str] = set()
    while True:
        apps = (_yarn(plan, "GET", "/apps").get("apps") or {}).get("app") or []
        left = [app["id"] for app in apps if app["state"] not in FINAL]
        if not left:
            return
        for app in left:
            if app not in asked:
                _yarn(plan, "PUT", f"/apps/{app}/state", {"state": "KILLED"})
                asked.add(app)
        if time.monotonic() > deadline:
            raise ClusterError("applications do not end", got=", ".join(left))
        time.sleep(0.2)


def _hdfs(plan: Plan, method: str, path: str, operation: str, **parameters: str) -> dict[str, Any]:
    """A WebHDFS call of the superuser that moves no data."""
    query = "&".join(f"{key}={quote(value)}" for key, value in parameters.items())
    target = f"/webhdfs/v1{quote(path)}?op={operation}&user.name={quote(plan.user)}&{query}"
    return _call(plan, "namenode-http", method, target)


def _yarn(plan: Plan, method: str, path: str, body: dict | None = None) -> dict[str, Any]:
    """A call of the ResourceManager's REST interface."""
    target = f"/ws/v1/cluster{path}?user.name={quote(plan.user)}"
    return _call(plan, "resourcemanager-http", method, target, body)


def _call(
    plan: Plan, port: str, method: str, target: str, body: dict | None = None
) -> dict[str, Any]:
    connection = http.client.HTTPConnection(HOST, plan.ports[port], timeout=60)
    try:
        connection.request(
            method,
            target,
            body=None if body is None else json.dumps(body),
            headers={"Content-Type": "application/json", "Accept": "application/json"},
        )
        answer = connection.getresponse()
        text = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise ClusterError(
            "the mini cluster does not answer", where=plan.address(port), got=str(error)
        ) from error
    finally:
        connection.close()
    if answer.status >= 300:
        raise ClusterError(
            f"the mini cluster refused {method} {target.partition('?')[0]}",
            where=plan.address(port),
            got=f"{answer.status} {text.decode(errors='replace')[:500]}",
        )
    return json.loads(text) if text else {}
