"""The driver's backend where a container is a call that the cluster runs: a Spark job, a Ray actor.

Clusters differ in how a call begins, how its state is read, and how it is ended.
"""

from __future__ import annotations

import json
import os
import threading
import time
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Generic, Literal, TypeVar

from howdah import storage
from howdah.errors import ClusterError
from howdah.jobs.backend import AgentBackend, Container, DriverAddress, DriverBackend
from howdah.jobs.clusters.settings import VERDICT
from howdah.jobs.clusters.worker import Assignment
from howdah.jobs.net.signing import new_key

Call = TypeVar("Call")


class CallsDriver(DriverBackend, Generic[Call]):
    """The driver's backend whose containers are calls.

    Args:
        application: the job's id.
        directory: the job's directory on this machine.
        config: the configuration as YAML, for agents.
        secret_env: values of `job.secret_env`.
        address: IP address to listen on, which agents reach.
    """

    attempt = 1

    def __init__(
        self, application: str, directory: str, config: str, *, secret_env: Mapping[str, str],
        address: str,
    ) -> None:  # fmt: skip
        self.application, self.started = application, time.time()
        self._directory, self._config, self._secret_env = directory, config, dict(secret_env)
        self._listen, self._key = address, new_key()
        self._lock = threading.Lock()
        self._count = self._begun = 0
        self._calls: dict[str, Call] = {}
        self._released: set[str] = set()
        self._driver: DriverAddress | None = None

    # ------------------------------------------------------------------ what clusters differ in
    @abstractmethod
    def begin(self, assignment: Assignment) -> Call:
        """Let the cluster run `worker.run_agent`, without waiting for it."""

    @abstractmethod
    def look(self, name: str, call: Call) -> Container:
        """The call as a container, in its present state."""

    @abstractmethod
    def end(self, name: str, call: Call) -> None:
        """End the call in whatever state it is."""

    # -------------------------------------------------------------------------- DriverBackend
    def listen_address(self) -> str:
        return self._listen

    def session_key(self) -> str:
        return self._key

    def publish(self, driver: DriverAddress) -> None:
        self._driver = driver

    def containers(self) -> list[Container]:
        with self._lock:
            return [self._look(name) for name in self._calls]

    def keep(self, count: int) -> None:
        with self._lock:
            self._count = count
            live = [one for one in map(self._look, self._calls) if one.state != "ended"]
            for container in reversed(live):
                if len(live) <= count:
                    break
                if container.state == "requested":
                    self._end(container.id)
                    live.remove(container)
            for _ in range(count - len(live)):
                self._begin()

    def release(self, container: str) -> None:
        with self._lock:
            self._end(container)

    def progress(self, fraction: float) -> None:
        pass  # the job's status contains it

    def add_page(self, url: str) -> str | None:
        return None

    def finish(self, status: Literal["SUCCEEDED", "FAILED", "KILLED"], diagnostics: str) -> None:
        self.end_all()
        write_verdict(self._directory, status, diagnostics)

    def end_all(self) -> None:
        with self._lock:
            self._count = 0
            for name in self._calls:
                self._end(name)

    # ----------------------------------------------------------------------------------- calls
    def _begin(self) -> None:
        if self._driver is None:
            raise ClusterError("a container was requested before the driver's address was known")
        self._begun += 1
        name = f"{self.application}_{self._begun:04}"
        self._calls[name] = self.begin(
            Assignment(
                container=name, driver=self._driver, config=self._config,
                secret_env=self._secret_env, directory=self._directory, host=os.uname().nodename,
            )
        )  # fmt: skip

    def _look(self, name: str) -> Container:
        container = self.look(name, self._calls[name])
        if container.state == "ended" and name in self._released:
            return replace(container, id=name, reason="killed")
        return container

    def _end(self, name: str) -> None:
        call = self._calls.get(name)
        if call is None or name in self._released or self.look(name, call).state == "ended":
            return
        self._released.add(name)
        self.end(name, call)


class StdinAgent(AgentBackend):
    """The backend of an agent that receives its assignment on standard input."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.container_id, self.node = values["container"], os.uname().nodename
        self._driver, self._secrets = DriverAddress(**values["driver"]), values["secret_env"]

    def secret_env(self) -> Mapping[str, str]:
        return self._secrets

    def find_driver(self, timeout: float) -> DriverAddress:
        return self._driver


def write_verdict(
    directory: str, status: str, diagnostics: str, error: Mapping[str, Any] | None = None
) -> None:
    """Write the job's final status."""
    verdict = {"status": status, "diagnostics": diagnostics, "error": error}
    storage.write_whole(os.path.join(directory, VERDICT), json.dumps(verdict).encode())
