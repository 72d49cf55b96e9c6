"""The interface between a job and the cluster that it runs on.

The driver's side asks for worker containers and reports the job's progress, the agent's side finds
the driver. The job's own traffic (heartbeats, orders, rendezvous) does not pass here; that is
jobs/net/wire.py. jobs/local.py runs agents as processes of this machine, yarn/skein_backend.py in
containers of YARN.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

State = Literal["requested", "running", "ended"]
Reason = Literal["preempted", "killed", "failed", "lost"]


@dataclass(frozen=True)
class DriverAddress:
    """Where agents reach their driver, and the key that both sign with."""

    address: str
    """IP address."""
    port: int
    key: str
    """Hexadecimal; a new one for each driver process. Secret: only the job's agents may have it."""

    def to_dict(self) -> dict[str, str]:
        """As texts, for a key-value store."""
        return {"address": self.address, "port": str(self.port), "key": self.key}

    @classmethod
    def from_dict(cls, values: Mapping[str, str]) -> DriverAddress:
        """From what `to_dict` gave."""
        return cls(values["address"], int(values["port"]), values["key"])


@dataclass(frozen=True)
class Container:
    """A worker container that the job has, asks for, or has had."""

    id: str
    """The name that the agent in it goes by (`AgentBackend.container_id`); of a container that
    is only asked for, any name of its own."""
    node: str
    """Host name of the machine; "" while it is only asked for, or where the cluster does not say:
    nothing that happens there is charged to a node before its agent has registered."""
    state: State
    exit_code: int | None = None
    """Of the agent, where it is known."""
    reason: Reason | None = None
    """Why it ended, where the cluster says: preempted (its resources went elsewhere), killed (by us
    or by an operator), failed (the agent ended by itself), lost (with its node)."""
    message: str = ""
    """The cluster's diagnostics of its end: memory exceeded, bad disks..."""


class DriverBackend(ABC):
    """The driver's side. Every method may be called from any thread; none blocks for long.

    A method that fails for a moment (a ResourceManager that restarts) raises ClusterError; the
    driver tries again at its next turn.
    """

    application: str
    """The application's id."""
    attempt: int
    """1 for the first driver of this application, 2 for the one after a crash..."""
    started: float = 0.0
    """When the application was submitted, seconds since 1970; 0: not known."""

    @abstractmethod
    def listen_address(self) -> str:
        """IP address of this machine on which agents on other nodes reach the driver."""

    @abstractmethod
    def session_key(self) -> str:
        """The key that this driver and its agents sign with: hexadecimal, the same at each call,
        another for each driver process."""

    @abstractmethod
    def publish(self, driver: DriverAddress) -> None:
        """Let the agents of this application find the driver, and only them know its key.

        Args:
            driver: with the key of `session_key`.
        """

    @abstractmethod
    def containers(self) -> list[Container]:
        """All containers of this attempt: asked for, running, and those that have ended."""

    @abstractmethod
    def keep(self, count: int) -> None:
        """Have `count` worker containers, asked for or running: ask for as many as are missing.

        It is called again, with the same count, whenever some have ended. A lower count ends
        nothing that runs (but takes back what is only asked for): the driver says with `release`
        which it can spare.
        """

    @abstractmethod
    def release(self, container: str) -> None:
        """End one container. Whether another takes its place is `keep`'s count alone.

        The driver lowers the count first where none must. An id that has ended already, or is
        not known, is no error.
        """

    def superseded(self) -> str | None:
        """The later attempt that has the job by now, or the later application that has the run
        directory, by the cluster's own files; None: there is none.

        Raises:
            StorageError: these files cannot be read.
        """
        return None

    @abstractmethod
    def progress(self, fraction: float) -> None:
        """How much of the job is done, 0 to 1, for the cluster's pages."""

    @abstractmethod
    def add_page(self, url: str) -> str | None:
        """Make the job's page reachable from the cluster's pages.

        Args:
            url: where the driver serves it.
        Returns:
            The URL for users (the cluster's proxy); None where there is none but `url`.
        """

    @abstractmethod
    def finish(self, status: Literal["SUCCEEDED", "FAILED", "KILLED"], diagnostics: str) -> None:
        """End the application and all its containers, with this final status and text."""


class AgentBackend(ABC):
    """The agent's side."""

    container_id: str
    """The name of this container, the same that the driver's backend lists."""
    node: str
    """Host name of this machine, as the cluster calls it."""

    def secret_env(self) -> Mapping[str, str]:
        """Values of `job.secret_env`, for the training processes alone."""
        return {}

    @abstractmethod
    def find_driver(self, timeout: float) -> DriverAddress:
        """Where the driver is; waits until it has published itself.

        Raises:
            ClusterError: not within `timeout` seconds, or the application is over.
        """
