"""The processes of an Airflow: its components and file servers as child processes, their health."""

from __future__ import annotations

import datetime
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from howdah.errors import ClusterError
from tools.local_airflow.api import AirflowApi
from tools.local_airflow.files import FileServers
from tools.local_airflow.home import Home
from tools.local_airflow.servers import Server

COMPONENTS: dict[str, tuple[str, ...]] = {
    "api-server": ("api-server",),
    # Their log servers would listen on every interface; the API server reads the files itself.
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "triggerer": ("triggerer", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
}
"""Name -> arguments of `airflow`."""
_HEALTH = {
    "scheduler": ("scheduler", "latest_scheduler_heartbeat"),
    "triggerer": ("triggerer", "latest_triggerer_heartbeat"),
    "dag-processor": ("dag_processor", "latest_dag_processor_heartbeat"),
}
"""Component -> its key in the answer of /monitor/health, and the key of its heartbeat there."""
_START_SECONDS = 240.0  # detects a component that never becomes healthy
_END_SECONDS = 30.0  # for tasks to end what they have started
_REST_SECONDS = 10.0


class Components:
    """The children of one Airflow. They end with the thread that starts them.

    Args:
        home: where their state, logs and environment are.
        client: gives a client of the API server.
    """

    def __init__(self, home: Home, client: Callable[[], AirflowApi]) -> None:
        self.file_servers = FileServers(home.directory, home.log_of)
        self._home = home
        self._client = client
        self._children: dict[str, Server] = {}

    # ------------------------------------------------------------------------------------ start
    def start(self) -> None:
        """Start Airflow's own components; `wait_healthy` waits for them."""
        for name in COMPONENTS:
            self._spawn(name)

    def _spawn(self, name: str) -> None:
        self._children[name] = Server(
            name,
            [sys.executable, "-P", "-m", "airflow", *COMPONENTS[name]],
            log=self._home.log_of(name),
            env=self._home.environment,
            cwd=self._home.directory,
        )

    def serve(self, name: str, root: str) -> None:
        """Start a file server on `root`, a directory of any storage."""
        self._children[name] = self.file_servers.start(name, root, self._home.environment)

    def restart(self, name: str) -> None:
        """Start a component or file server that has ended; wait until a component is healthy."""
        child = self._children[name]
        if child.alive:
            child.end(signal.SIGTERM, _REST_SECONDS)
        if name in self.file_servers:
            self._children[name] = self.file_servers.start_again(name, self._home.environment)
            return
        begun = datetime.datetime.now(datetime.UTC)
        self._spawn(name)
        self.wait_healthy(begun, [name])

    # ----------------------------------------------------------------------------------- health
    @property
    def names(self) -> list[str]:
        """All children that were started, file servers included."""
        return list(self._children)

    @property
    def dead(self) -> list[str]:
        """Names of the children that have ended by themselves."""
        return [name for name, child in self._children.items() if not child.alive]

    def pid(self, name: str) -> int:
        """The process id of a component."""
        return self._children[name].pid

    def problem(
        self, since: datetime.datetime | None = None, names: Iterable[str] = COMPONENTS
    ) -> str:
        """The first problem, as "component: problem"; empty: all are healthy.

        Args:
            since: heartbeats before that do not count.
            names: the components to check.
        """
        names = list(names)
        for name in names:
            if name not in self._children or not self._children[name].alive:
                return f"{name}: not running"
        try:
            health = self._client().health()
        except ClusterError as error:
            return f"api-server: {error.got}"
        return next(filter(None, (_unhealthy(name, health, since) for name in names)), "")

    def wait_healthy(self, since: datetime.datetime, names: Iterable[str] = COMPONENTS) -> None:
        """Wait until these components are healthy.

        Raises:
            ClusterError: one has ended or is not healthy in time; with the end of its log.
        """
        names = list(names)
        deadline = time.monotonic() + _START_SECONDS
        while problem := self.problem(since, names):
            ended = [name for name in names if not self._children[name].alive]
            if ended or time.monotonic() > deadline:
                raise self.failure(ended[0] if ended else problem.split(":")[0], problem)
            time.sleep(0.3)

    def failure(self, name: str, problem: str) -> ClusterError:
        """The error for a component that fails, with the end of its log."""
        return ClusterError(
            f"Airflow's {name} does not run",
            where=str(self._home.log_of(name)),
            got=f"{problem}\n{self._children[name].tail()}",
        )

    # -------------------------------------------------------------------------------------- end
    def kill(self, name: str, *, group: bool = False) -> None:
        """SIGKILL a component; with `group` also its workers (for the scheduler: running tasks)."""
        child = self._children[name]
        child.send(signal.SIGKILL, group=group)
        child.wait()

    def stop(self, say: Callable[[str], None]) -> None:
        """End all children, running tasks first; what does not end in time is killed."""
        scheduler = self._children.pop("scheduler", None)
        if scheduler is not None:
            # Its workers pass the signal on to their tasks (on_kill), and report while the API
            # server still runs; without the signal to its group it would wait for all tasks.
            say("ending: scheduler and running tasks")
            scheduler.end(signal.SIGTERM, _END_SECONDS, group=True)
        if self._children:
            say("ending: " + ", ".join(self._children))
        for child in self._children.values():
            child.send(signal.SIGTERM)
        for child in self._children.values():
            child.end(signal.SIGTERM, _REST_SECONDS)
        self._children.clear()


def _unhealthy(name: str, health: Mapping[str, Any], since: datetime.datetime | None) -> str:
    """The problem of a component in the answer of /monitor/health; empty: it is healthy."""
    if name not in _HEALTH:
        return ""
    key, beat = _HEALTH[name]
    status = health.get(key) or {}
    if status.get("status") != "healthy":
        return f"{name}: {status.get('status') or 'not known yet'}"
    if since and datetime.datetime.fromisoformat(status[beat]) < since:
        return f"{name}: no heartbeat yet"
    return ""
