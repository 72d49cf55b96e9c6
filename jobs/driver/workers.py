"""The workers of a job, and the orders that they are given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from howdah.jobs import hang
from howdah.jobs.driver.members import Member

_LOST_NODE_SHARE = 0.25
"""Of contact_seconds, where all but one node is heard and the world has lost a rank."""


@dataclass(frozen=True)
class Limits:
    """What the configuration says of the job (yarn.*)."""

    workers: int
    fewest: int
    most: int
    elastic: bool
    tries: int
    """How often a static job may begin, this time included."""
    max_restarts: int
    node_failures: int
    """Failures of a node after which it is excluded."""
    gang_seconds: float
    gang_attempts: int
    hang_seconds: float
    gloo_timeout_seconds: float
    """How long a rank waits for another one in a collective."""
    contact_seconds: float
    """Silence of an agent after which its container is given up."""
    grace_seconds: float
    """How long an orderly stop may take."""
    threads: int
    gpus: int
    """Of each worker."""
    shared: tuple[str, ...] = ()
    """Paths of the job on storage that all nodes share."""


class DriverActions(Protocol):
    """What a job's decisions have the driver do."""

    def order(self, member: str, order: dict[str, Any]) -> None:
        """Send an order to an agent."""

    def keep(self, count: int) -> None:
        """Have so many containers."""

    def release(self, member: str) -> None:
        """End a container."""

    def begin(self, generation: int) -> None:
        """Open the rendezvous of a generation, and close the one before."""

    def event(self, what: str) -> None:
        """Log an event, and show it in the job's status."""


class Workers:
    """All workers that a job has or has had, how many it wants, and the orders to them.

    Args:
        limits: of the job.
        actions: carry out what is decided.
    """

    def __init__(self, limits: Limits, actions: DriverActions) -> None:
        self.limits, self.actions = limits, actions
        self.members: dict[str, Member] = {}
        """By container."""
        self.wanted = limits.workers
        actions.keep(self.wanted)

    def want(self, count: int) -> None:
        """Change how many workers the job wants, and ask the cluster for as many containers."""
        self.wanted = count
        self.actions.keep(count)

    def alive(self) -> list[Member]:
        """Workers whose agents are there."""
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
            world_lost: the newest world has lost a rank. Where all nodes but one are heard then,
                that one is taken for lost after a part of `contact_seconds`.
        """
        alive = self.alive()
        limit = self.limits.contact_seconds
        quiet = {member.node for member in alive if not member.heard(now)}
        others = any(member.node not in quiet for member in alive)
        if world_lost and len(quiet) == 1 and others:
            limit *= _LOST_NODE_SHARE
        return [member for member in alive if now - member.contact > limit]

    def free_gpus(self, node: str, facts: dict[str, Any]) -> list[str]:
        """The devices that a new container can open and no other worker of its node has been given:
        a cluster counts GPUs, but says which only where it isolates them.
        """
        taken = {gpu for member in self.alive() if member.node == node for gpu in member.gpus}
        return [device for device in facts.get("gpus", []) if device not in taken]

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
            follows: it is killed because of another loss, which counts; this one does not.
        """
        if member.kill_reason is None:
            member.kill_reason, member.kill_follows = why, follows
            self.send(member, {"type": "kill", "why": why})

    def views(self, members: Iterable[Member], now: float) -> list[hang.View]:
        """What is known of them. Nothing is known of a process whose agent is silent: it is judged
        when it is heard again."""
        return [member.view(now) for member in members if member.heard(now)]

    def end_hanging(self, views: Sequence[hang.View]) -> None:
        """Name those that hang, and kill them."""
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
            since: when the first one was lost.
            has_cause: one of the lost has ended by itself. Otherwise all of them have waited for
                another rank in vain (Gloo's limit is shorter than hang_seconds): for one of those
                that are left, whose end then is the loss that counts.
        """
        for member in self.running():
            why = None
            if member.rank is not None and member.heard(now) and not has_cause:
                # The others had waited that long, in a part of which it may still have got on.
                before = self.limits.gloo_timeout_seconds / 2
                why = hang.held_up(member.view(now), now - since + before)
            if why is None:
                self.kill(member, "another rank was lost", follows=True)
            else:
                self.kill(member, f"the other ranks waited for it in vain: {why}")

    def leave(self, member: Member, why: str, *, exit_code: int) -> None:
        """Have an agent end its training process and itself."""
        self.actions.order(member.id, {"type": "leave", "exit_code": exit_code, "why": why})

    def dismiss(self, member: Member, why: str) -> None:
        """Give up a worker that the job does not need, with its container."""
        member.phase = "gone"
        self.leave(member, why, exit_code=0)
        self.actions.release(member.id)
