"""The interface between a job and the cluster that it runs on.

The driver's side requests worker containers and reports the job's progress; the agent's side finds
the driver. The job's own traffic (heartbeats, orders, rendezvous) goes through jobs/net/wire.py
instead. jobs/clusters/backend.py runs agents as calls of this machine, Spark or Ray,
yarn/skein_backend.py in containers of YARN.
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
    """Hexadecimal secret, new for each driver process, which only the job's agents may have."""

    @property
    def host_port(self) -> str:
        """ADDRESS:PORT for a URL, with an IPv6 address in brackets."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}"


@dataclass(frozen=True)
class Container:
    """A worker container that the job has, has requested, or has had."""

    id: str
    """Name of its agent (`AgentBackend.container_id`); while it is only requested, any unique
    name."""
    node: str
    """Host name of the machine; "" while it is requested, or where the cluster does not say: then
    its failures are not charged to a node before its agent has registered."""
    state: State
    exit_code: int | None = None
    """The agent's exit code, where it is known."""
    reason: Reason | None = None
    """Why it ended, where the cluster says: preempted (its resources went elsewhere), killed (by us
    or by an operator), failed (the agent ended by itself), lost (with its node)."""
    message: str = ""
    """The cluster's diagnostics for its end: memory exceeded, bad disks..."""


class DriverBackend(ABC):
    """The driver's side. Every method may be called from any thread; none blocks for long.

    A method that fails temporarily (the ResourceManager restarts) raises ClusterError; the driver
    tries again at its next turn.
    """

    application: str
    """The application's id."""
    attempt: int
    """1 for the first driver of this application, 2 for its successor after a crash..."""
    started: float = 0.0
    """When the application was submitted, in seconds since 1970; 0: not known."""

    @abstractmethod
    def listen_address(self) -> str:
        """IP address of this machine on which agents on other nodes reach the driver."""

    @abstractmethod
    def session_key(self) -> str:
        """The hexadecimal key that this driver and its agents sign with: the same at each call,
        different for each driver process."""

    @abstractmethod
    def publish(self, driver: DriverAddress) -> None:
        """Publish the driver's address and key to the agents of this application alone.

        Args:
            driver: the address, with `session_key` as its key.
        """

    @abstractmethod
    def containers(self) -> list[Container]:
        """All containers of this attempt: requested, running and ended."""

    @abstractmethod
    def keep(self, count: int) -> None:
        """Keep `count` worker containers, requested or running: request those that are missing.

        The driver calls it again with the same count whenever some have ended. A lower count
        withdraws requests but ends no running container: the driver chooses those with `release`.
        """

    @abstractmethod
    def release(self, container: str) -> None:
        """End one container. `keep`'s count alone decides whether another one replaces it.

        The driver lowers the count first where it needs no replacement. An id that has ended or
        is unknown is ignored.
        """

    def superseded(self) -> str | None:
        """The later attempt that has taken over the job, or the later application that has the run
        directory, according to the cluster's files; None: this driver is the newest.

        Raises:
            StorageError: these files cannot be read.
        """
        return None

    def abandoned(self) -> str | None:
        """Why the cluster, which does not answer, will never answer this driver; None: it may."""
        return None

    @abstractmethod
    def progress(self, fraction: float) -> None:
        """Report the fraction of the job that is done, 0 to 1, for the cluster's pages."""

    @abstractmethod
    def add_page(self, url: str) -> str | None:
        """Make the job's page reachable from the cluster's pages.

        Args:
            url: where the driver serves it.
        Returns:
            The URL for users (the cluster's proxy); None where users need `url` itself.
        """

    @abstractmethod
    def finish(self, status: Literal["SUCCEEDED", "FAILED", "KILLED"], diagnostics: str) -> None:
        """End the application and all its containers, with this final status and text."""


class AgentBackend(ABC):
    """The agent's side."""

    container_id: str
    """Name of this container, as the driver's backend lists it."""
    node: str
    """Host name of this machine, as the cluster names it."""

    def secret_env(self) -> Mapping[str, str]:
        """Values of `job.secret_env`, which only the training processes receive."""
        return {}

    @abstractmethod
    def find_driver(self, timeout: float) -> DriverAddress:
        """Wait until the driver has published its address, and return it.

        Raises:
            ClusterError: it has not within `timeout` seconds, or the application is over.
        """
