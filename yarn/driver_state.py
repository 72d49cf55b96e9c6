"""What a job is made of, and the plain acts that its decisions (yarn/driver_job.py) are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from howdah.errors import HowdahError
from yarn import world
from yarn.driver_losses import Gang, Ledger
from yarn.driver_members import Loss, Member

__all__ = ["Hands", "JobState", "Limits", "Mode"]

Mode = Literal["waiting", "running", "changing", "failing", "ending", "over"]
"""Waiting for enough workers; training; leaving a world for the next; collecting what a static
job died of; ending; ended."""


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
    gang_seconds: float
    gang_attempts: int
    hang_seconds: float
    grace_seconds: float
    """How long an orderly stop may take."""
    threads: int
    gpus: int
    """Of each worker."""


class Hands(Protocol):
    """What the job can do."""

    def order(self, member: str, order: dict[str, Any]) -> None:
        """Send an order to an agent."""

    def keep(self, count: int) -> None:
        """Have so many containers."""

    def release(self, member: str) -> None:
        """End a container."""

    def begin(self, generation: int) -> None:
        """Open the rendezvous of a generation, and close the one before."""

    def event(self, what: str) -> None:
        """Tell people."""


class JobState:
    """The members of a job, its world, and what can be done to them."""

    def __init__(self, limits: Limits, hands: Hands, now: float, attempt: int = 1) -> None:
        self.limits, self.hands = limits, hands
        self.members: dict[str, Member] = {}
        self.mode: Mode = "waiting"
        self.wanted = limits.workers
        self.generation = 0
        self.world: list[world.Slot] = []
        self.ledger = Ledger()
        self.gang = Gang(limits.gang_seconds, limits.gang_attempts)
        self.tries = attempt
        self.done_since: float | None = None
        """When rank 0 said that the run is finished."""
        self.error: HowdahError | None = None
        self.stopped = False
        self._since = now  # of the mode
        self._losses: list[Loss] = []
        self._explained = True  # it is known why the newest world was left
        self._loss_since: float | None = None
        """When the newest world was known to have lost a rank; None: it has not."""
        self._concluding = False
        """The newest world's steps are over: it evaluates, exports and ends."""
        self._last_tick = now

    def _turn(self, mode: Mode, now: float) -> None:
        self.mode, self._since = mode, now

    def _start(self, member: Member, now: float) -> None:
        member.begin_process(now)
        order = {
            "type": "start",
            "process": member.process,
            "threads": self.limits.threads,
            "gpus": member.gpus if self.limits.gpus else None,
        }
        self.hands.order(member.id, order)

    def _free_gpus(self, node: str, facts: dict[str, Any]) -> list[str]:
        """The devices that a new container can open and no other worker of its node has been given:
        YARN counts GPUs, but says which only where it isolates them.
        """
        mates = [m for m in self.members.values() if m.node == node and m.alive]
        taken = {device for mate in mates for device in mate.gpus}
        return [device for device in facts.get("gpus", []) if device not in taken]

    def _tell(self, member: Member, order: dict[str, Any]) -> None:
        self.hands.order(member.id, {**order, "process": member.process})

    def _kill(self, member: Member, why: str, *, follows: bool = False) -> None:
        """Have a process killed.

        Args:
            follows: it is killed for the sake of another loss, which counts; this one does not.
        """
        if member.kill_reason is None:
            member.kill_reason, member.kill_follows = why, follows
            self._tell(member, {"type": "kill", "why": why})

    def _placed(self) -> list[Member]:
        return [m for m in self.members.values() if m.phase in ("placed", "in")]

    def _dismiss(self, member: Member) -> None:
        member.phase = "gone"
        why = {"type": "leave", "exit_code": 0, "why": "fewer workers are wanted"}
        self.hands.order(member.id, why)
        self.hands.release(member.id)
