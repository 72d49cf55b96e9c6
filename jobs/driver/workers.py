"""The workers of a job, and the orders to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from howdah.core.processes import limit
from howdah.jobs import hang
from howdah.jobs.driver.members import Member

GANG_ATTEMPTS = limit("gang_attempts", 10)
"""How often the workers of a start are requested: with job.gang_seconds a job waits for most of an
hour, longer than a queue is usually full for one short job, and then reports what it lacks."""
NODE_FAILURES = limit("node_failures", 3)
"""Failures of workers on a node after which the job takes no more containers there, as long as
another of its nodes has fewer. A full disk, a broken GPU or a missing library ends each worker of a
node, while one or two failures may be chance."""
_LOST_NODE_SHARE = 0.25
"""The share of contact_seconds that a silent node has, if the world has lost a rank and all other
nodes are heard."""


@dataclass(frozen=True)
class Limits:
    """Limits of the job, most of them from the section `job`."""

    workers: int
    fewest: int
    most: int
    elastic: bool
    tries: int
    """Number of times that a static job may begin, including the present one."""
    max_restarts: int
    node_failures: int
    """Number of failures after which a node is excluded."""
    gang_seconds: float
    gang_attempts: int
    hang_seconds: float
    gloo_timeout_seconds: float
    """How long a rank waits for another one in a collective."""
    contact_seconds: float
    """Silence of an agent after which its container counts as lost."""
    grace_seconds: float
    """How long an orderly stop may take."""
    threads: int
    gpus: int
    """Number of GPUs per worker."""
    shared: tuple[str, ...] = ()
    """Paths of the job on storage that all nodes share."""


class DriverActions(Protocol):
    """The driver's actions on a job's decisions."""

    def order(self, member: str, order: dict[str, Any]) -> None:
        """Send an order to an agent."""

    def keep(self, count: int) -> None:
        """Keep `count` containers."""

    def release(self, member: str) -> None:
        """End a container."""

    def begin(self, generation: int) -> None:
        """Open the rendezvous of a generation, and close the one before."""

    def event(self, what: str, *, routine: bool = False) -> None:
        """Log an event, and show it in the job's status (see JobStatus.event)."""


class Workers:
    """All workers that a job has or has had, their target number, and the orders to them.

    Args:
        limits: the job's limits.
        actions: carry out the decisions.
    """

    def __init__(self, limits: Limits, actions: DriverActions) -> None:
        self.limits, self.actions = limits, actions
        self.members: dict[str, Member] = {}
        """Every worker, by its container."""
        self.target = limits.workers
        actions.keep(self.target)

    def set_target(self, count: int) -> None:
        """Change the target number of workers, and of containers on the cluster."""
        self.target = count
        self.actions.keep(count)

    def alive(self) -> list[Member]:
        """Workers whose agents run."""
        return [member for member in self.members.values() if member.alive]

    def running(self) -> list[Member]:
        """Workers whose training processes run."""
        return [member for member in self.members.values() if member.running]

    def placed(self) -> list[Member]:
        """Workers that have a rank in the newest world."""
        return [member for member in self.members.values() if member.phase in ("placed", "in")]

    def silent(self, now: float, *, world_lost: bool) -> list[Member]:
        """Workers whose agents have been silent for too long.

        Args:
            world_lost: the newest world has lost a rank. If all nodes but one are heard then, that
                one counts as lost after a part of `contact_seconds`.
        """
        alive = self.alive()
        limit = self.limits.contact_seconds
        quiet = {member.node for member in alive if not member.heard(now)}
        others = any(member.node not in quiet for member in alive)
        if world_lost and len(quiet) == 1 and others:
            limit *= _LOST_NODE_SHARE
        return [member for member in alive if now - member.contact > limit]

    def free_gpus(self, node: str, facts: dict[str, Any]) -> list[str]:
        """The devices that a new container can open and that no other worker of its node uses: a
        cluster counts GPUs, but names the devices only where it isolates them.
        """
        used = {gpu for member in self.alive() if member.node == node for gpu in member.gpus}
        return [device for device in facts.get("gpus", []) if device not in used]

    # -------------------------------------------------------------------------------- orders
    def start(self, member: Member, now: float) -> None:
        """Start a new training process."""
        member.begin_process(now)
        order = {
            "type": "start",
            "process": member.process,
            "threads": self.limits.threads,
            "gpus": member.gpus if self.limits.gpus else None,
        }
        self.actions.order(member.id, order)

    def send(self, member: Member, order: dict[str, Any]) -> None:
        """Send an order for a worker's present training process."""
        self.actions.order(member.id, {**order, "process": member.process})

    def kill(self, member: Member, why: str, *, follows: bool = False) -> None:
        """Kill a training process.

        Args:
            follows: it is killed because of another loss, and does not count beside that one.
        """
        if member.kill_reason is None:
            member.kill_reason, member.kill_follows = why, follows
            self.send(member, {"type": "kill", "why": why})

    def views(self, members: Iterable[Member], now: float) -> list[hang.View]:
        """The views of these workers, without those whose agents are silent: the state of their
        processes is not known until they are heard again."""
        return [member.view(now) for member in members if member.heard(now)]

    def end_hanging(self, views: Sequence[hang.View]) -> None:
        """Log the ranks that hang, and kill them."""
        for verdict in hang.hanging(views, self.limits.hang_seconds):
            member = self.members[verdict.member]
            if member.kill_reason is None:
                self.actions.event(
                    f"rank {verdict.rank} on {member.node} ({member.id}) hangs: {verdict.why}"
                )
                self.kill(member, f"it hangs: {verdict.why}")

    def end_left(self, now: float, since: float, *, has_cause: bool) -> None:
        """Kill the ranks of a static job that have not ended by themselves after a loss.

        Args:
            since: time when the first rank was lost.
            has_cause: a lost rank has ended by itself. Otherwise all lost ranks have waited for one
                of the remaining ranks (Gloo's limit is shorter than hang_seconds), whose end is
                then the loss that counts.
        """
        for member in self.running():
            why = None
            if member.rank is not None and member.heard(now) and not has_cause:
                # The others had waited twice this long; it may have made progress in a part of it.
                seconds = now - since + self.limits.gloo_timeout_seconds / 2
                why = hang.stands_still(member.view(now), seconds, seconds)
            if why is None:
                self.kill(member, "another rank was lost", follows=True)
            else:
                self.kill(member, f"the other ranks waited for it in vain: {why}")

    def leave(self, member: Member, why: str, *, exit_code: int) -> None:
        """Order an agent to end its training process and itself."""
        self.actions.order(member.id, {"type": "leave", "exit_code": exit_code, "why": why})

    def dismiss(self, member: Member, why: str) -> None:
        """Release a worker that the job does not need, and its container."""
        member.phase = "gone"
        self.leave(member, why, exit_code=0)
        self.actions.release(member.id)
