"""What the driver and the agents of a job need of a cluster, whoever runs it.

Two sides of one seam: the driver asks for worker containers and says how the job fares, an agent
finds its driver. Nothing of a job's own traffic (heartbeats, orders, rendezvous) passes here; that
is yarn/wire.py. `backend_local` runs agents as processes of this machine, `backend_skein` on YARN.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["AgentBackend", "Container", "DriverAddress", "DriverBackend"]

State = Literal["requested", "running", "ended"]
Reason = Literal["preempted", "killed", "failed", "lost"]


@dataclass(frozen=True)
class DriverAddress:
    """Where agents reach their driver, and the key that both sign with."""

    address: str
    """IP address."""
    port: int
    key: str
    """Hexadecimal; a new one for each driver process. Secret: it goes to the agents alone."""

    def to_dict(self) -> dict[str, str]:
        """As words, for a key-value store."""
        return {"address": self.address, "port": str(self.port), "key": self.key}

    @classmethod
    def from_dict(cls, values: Mapping[str, str]) -> DriverAddress:
        """The other way round."""
        return cls(values["address"], int(values["port"]), values["key"])


@dataclass(frozen=True)
class Container:
    """A worker container that the job has, asks for, or has had."""

    id: str
    """The name that the agent in it goes by (`AgentBackend.container_id`); of a container that
    is only asked for, any name of its own."""
    node: str
    """Host name of the machine; "" while it is only asked for."""
    state: State
    exit_code: int | None = None
    """Of the agent, where it is known."""
    reason: Reason | None = None
    """Why it ended, where the cluster says: preempted (the queue wanted it back), killed (by us or
    by an operator), failed (the agent ended by itself), lost (with its node)."""
    message: str = ""
    """The cluster's own words about its end: memory exceeded, bad disks..."""


class DriverBackend(ABC):
    """The driver's side. Every method may be called from any thread; none blocks for long.

    A method that fails for a moment (a ResourceManager that restarts) raises ClusterError; the
    driver tries again at its next turn.
    """

    application: str
    """The application's id, for people."""
    attempt: int
    """1 for the first driver of this application, 2 for the one after a crash..."""

    @abstractmethod
    def listen_address(self) -> str:
        """IP address of this machine on which agents on other nodes reach the driver."""

    @abstractmethod
    def publish(self, driver: DriverAddress) -> None:
        """Let the agents of this application, and nobody else, find the driver."""

    @abstractmethod
    def containers(self) -> list[Container]:
        """All containers of this attempt: asked for, running, and those that have ended."""

    @abstractmethod
    def keep(self, count: int) -> None:
        """Have `count` worker containers, asked for or running: ask for as many as are missing.

        It is called again, with the same count, whenever some have ended. A lower count ends
        nothing that runs (but takes back what is only asked for): the driver says with `release`
        whom it can spare.
        """

    @abstractmethod
    def release(self, container: str) -> None:
        """End one container. Whether another takes its place is `keep`'s count alone.

        The driver lowers the count first where none shall. An id that has ended already, or is
        not known, is no error.
        """

    @abstractmethod
    def progress(self, fraction: float) -> None:
        """How much of the job is done, 0 to 1, for the cluster's pages."""

    @abstractmethod
    def add_page(self, url: str) -> str | None:
        """Make the job's page reachable from the cluster's pages.

        Args:
            url: where the driver serves it.
        Returns:
            The URL for people (the cluster's proxy); None where there is none but `url`.
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

    @abstractmethod
    def find_driver(self, timeout: float) -> DriverAddress:
        """Where the driver is; waits until it has published itself.

        Raises:
            ClusterError: not within `timeout` seconds, or the application is over.
        """
