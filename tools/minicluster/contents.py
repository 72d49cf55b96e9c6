"""Files and applications of a mini cluster: created at start, wiped between tests.

The REST interfaces do this in milliseconds. In a secure cluster they need SPNEGO, and a process has
one ticket, so a child process with the superuser's ticket changes HDFS, and the command `yarn` ends
applications.
"""

from __future__ import annotations

import abc
import http.client
import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from howdah.errors import ClusterError
from howdah.process import isolation
from tools.minicluster.plan import Plan
from tools.minicluster.variants import availability, web

FINAL = {"FINISHED", "FAILED", "KILLED"}
END_LIMIT = 60.0  # seconds for applications to end


def standard_directories(plan: Plan) -> dict[str, str]:
    """{path: mode} of the directories that a cluster's users expect."""
    return {
        "/tmp": "1777",
        "/app-logs": "1777",
        "/mr-history": "1777",
        "/test": "1777",
        "/user": "755",
        f"/user/{plan.user}": "755",
        "/user/hive": "755",
        "/user/hive/warehouse": "1777",
    }


class Contents(abc.ABC):
    """Operations on a cluster's files and applications, as its superuser."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    @abc.abstractmethod
    def make_dirs(self, modes: dict[str, str]) -> None:
        """Make directories, {path: mode}."""

    @abc.abstractmethod
    def give(self, path: str, user: str) -> None:
        """Make a user the owner of a path."""

    @abc.abstractmethod
    def remove(self, *paths: str) -> None:
        """Remove paths recursively; missing paths are not errors."""

    @abc.abstractmethod
    def children(self, path: str) -> list[str]:
        """The names in a directory."""

    @abc.abstractmethod
    def applications(self) -> list[str]:
        """The ids of applications that have not ended."""

    @abc.abstractmethod
    def end(self, application: str) -> None:
        """Request an application's end."""

    def make_standard(self) -> None:
        """Make the directories that a cluster's users expect."""
        self.make_dirs(standard_directories(self.plan))

    def wipe(self) -> None:
        """End all applications, remove all files, make the standard directories again."""
        self.end_applications()
        kept = {path.split("/")[1] for path in standard_directories(self.plan)}
        doomed: list[str] = []
        for name in self.children("/"):
            if name in kept:  # daemons need these directories
                doomed += [f"/{name}/{child}" for child in self.children(f"/{name}")]
            else:
                doomed.append(f"/{name}")
        self.remove(*doomed)
        self.make_standard()

    def end_applications(self) -> None:
        """Kill all applications that run, and wait until they have ended.

        Raises:
            ClusterError: an application has not ended in a minute.
        """
        deadline = time.monotonic() + END_LIMIT
        killed: set[str] = set()
        while left := self.applications():
            for application in left:
                if application not in killed:
                    self.end(application)
                    killed.add(application)
            if time.monotonic() > deadline:
                raise ClusterError("applications do not end", got=", ".join(left))
            time.sleep(0.2)


class RestContents(Contents):
    """Operations by WebHDFS and the ResourceManager's REST API, with simple authentication."""

    def make_dirs(self, modes: dict[str, str]) -> None:
        for path, mode in modes.items():
            self._hdfs("PUT", path, "MKDIRS", permission="755")
            self._hdfs("PUT", path, "SETPERMISSION", permission=mode)

    def give(self, path: str, user: str) -> None:
        self._hdfs("PUT", path, "SETOWNER", owner=user)

    def remove(self, *paths: str) -> None:
        for path in paths:
            self._hdfs("DELETE", path, "DELETE", recursive="true")

    def children(self, path: str) -> list[str]:
        listing = self._hdfs("GET", path, "LISTSTATUS")["FileStatuses"]["FileStatus"]
        return [entry["pathSuffix"] for entry in listing]

    def applications(self) -> list[str]:
        apps = (self._yarn("GET", "/apps").get("apps") or {}).get("app") or []
        return [app["id"] for app in apps if app["state"] not in FINAL]

    def end(self, application: str) -> None:
        self._yarn("PUT", f"/apps/{application}/state", {"state": "KILLED"})

    def _hdfs(self, method: str, path: str, operation: str, **parameters: str) -> dict[str, Any]:
        query = "".join(f"&{key}={quote(value)}" for key, value in parameters.items())
        user = quote(self.plan.user)
        target = f"/webhdfs/v1{quote(path)}?op={operation}&user.name={user}{query}"
        return self._call("namenode", method, target)

    def _yarn(self, method: str, path: str, body: dict | None = None) -> dict[str, Any]:
        target = f"/ws/v1/cluster{path}?user.name={quote(self.plan.user)}"
        return self._call("resourcemanager", method, target, body)

    def _call(
        self, kind: str, method: str, target: str, body: dict | None = None
    ) -> dict[str, Any]:
        port = f"{availability.active(self.plan, kind) or kind}-http"
        connection = web.connection(self.plan, port)
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
                "the mini cluster does not answer", where=self.plan.address(port), got=str(error)
            ) from error
        finally:
            connection.close()
        if answer.status >= 300:
            raise ClusterError(
                f"the mini cluster refused {method} {target.partition('?')[0]}",
                where=self.plan.address(port),
                got=f"{answer.status} {text.decode(errors='replace')[:500]}",
            )
        return json.loads(text) if text else {}


_CHILD = """
import json, sys
from hdfs_native import Client
client, answers = Client(sys.argv[1]), []
for kind, path, value in json.loads(sys.argv[2]):
    if kind == "make":
        client.mkdirs(path, 0o755, True)
        client.set_permission(path, int(value, 8))
    elif kind == "give":
        client.set_owner(path, value)
    elif kind == "remove":
        client.delete(path, True)
    elif kind == "list":
        answers.append([entry.path.rpartition("/")[2] for entry in client.list_status(path)])
print(json.dumps(answers))
"""


class SecureContents(Contents):
    """Operations by child processes that have the superuser's ticket.

    Args:
        run: runs a command as the superuser and returns its output.
    """

    def __init__(self, plan: Plan, run: Callable[..., str]) -> None:
        super().__init__(plan)
        self.run = run

    def _hdfs(self, *steps: tuple[str, str, str | None]) -> list[list[str]]:
        url = f"hdfs://{self.plan.authority}"
        return json.loads(self.run(*isolation.code(_CHILD, url, json.dumps(steps))))

    def make_dirs(self, modes: dict[str, str]) -> None:
        self._hdfs(*(("make", path, mode) for path, mode in modes.items()))

    def give(self, path: str, user: str) -> None:
        self._hdfs(("give", path, user))

    def remove(self, *paths: str) -> None:
        if paths:
            self._hdfs(*(("remove", path, None) for path in paths))

    def children(self, path: str) -> list[str]:
        return self._hdfs(("list", path, None))[0]

    def applications(self) -> list[str]:
        lines = self.run("yarn", "application", "-list", "-appStates", "ALL").splitlines()
        rows = [line.split("\t") for line in lines if line.startswith("application_")]
        return [row[0].strip() for row in rows if row[5].strip() not in FINAL]

    def end(self, application: str) -> None:
        self.run("yarn", "application", "-kill", application)
