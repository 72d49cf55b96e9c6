"""Counts a job's losses: failures use up its budget, preemptions do not."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from howdah.errors import HowdahError
from howdah.jobs.backend import Container
from howdah.jobs.driver import errors
from howdah.jobs.driver.members import Loss

_SAME_SECONDS = 10.0
"""A process that ended this shortly before its container counts as ended with it."""
_REASON_SECONDS = 15.0
"""How long the cluster may take to report why a container has ended."""
_FAILED_BEFORE_REGISTER = 3
"""Containers in a row that may fail before their agents have registered."""


class FailureBudget:
    """Counts losses against job.max_restarts and a static job's tries.

    Args:
        tries: number of times that a static job may begin.
        max_restarts: number of failed workers that may be replaced.
        attempt: the first try's number.
    """

    def __init__(self, tries: int, max_restarts: int, attempt: int = 1) -> None:
        self._most_tries, self._max_restarts = tries, max_restarts
        self.tries = attempt
        """Number of tries so far, including the present one."""
        self.restarts = 0
        """Number of failed workers that were or will be replaced."""
        self.preemptions = 0
        self._losses: list[Loss] = []
        """Losses of the present try."""
        self._unexplained: dict[str, float] = {}
        """Containers that ended for a reason the cluster has not reported, and when they ended."""
        self._failed_generations: set[int] = set()
        self._counted: dict[str, float] = {}
        """Containers whose process's end was counted, and when it last was."""
        self._ended: set[str] = set()
        self._failed_before_register = 0

    # -------------------------------------------------------------------------------- counting
    def add(self, loss: Loss) -> None:
        """Record a loss of the present try."""
        self._losses.append(loss)

    def preempted(self, member: str) -> None:
        """Mark this container's losses as caused by the cluster."""
        self._losses = [
            dataclasses.replace(loss, preempted=loss.preempted or loss.member == member)
            for loss in self._losses
        ]

    def process_lost(self, loss: Loss, generation: int, now: float) -> None:
        """Count the end of a training process, unless another process's end caused it."""
        if loss.follows or (loss.consequence and generation in self._failed_generations):
            return
        self._failed_generations.add(generation)
        self.restarts += 1
        self._counted[loss.member] = now

    def world_failed(self) -> None:
        """Count a world whose ranks cannot reach each other, though none of them was lost."""
        self.restarts += 1

    def container_lost(self, member: str, now: float) -> None:
        """Record the end of a container, until the cluster reports why it ended.

        A cluster ends all processes of a container at once, and the agent may have reported the end
        of its training process before it was ended itself: both count as one loss.
        """
        counted = self._counted.pop(member, None)
        if counted is not None and now - counted < _SAME_SECONDS:
            self.restarts -= 1
        self._unexplained.setdefault(member, now)

    def settle(self, containers: Iterable[Container], agents: set[str], now: float) -> list[str]:
        """Count unexplained losses by the reasons that the cluster reports.

        Args:
            containers: the backend's list of containers.
            agents: names of all agents that have ever registered.
            now: monotonic seconds.
        Returns:
            Events for the job's status.
        """
        events = []
        ended = {one.id: one for one in containers if one.state == "ended"}
        for member, since in list(self._unexplained.items()):
            one = ended.get(member)
            if one is not None and one.reason == "preempted":
                self.preemptions += 1
                events.append(f"container {member} on {one.node} was preempted: not a failure")
            elif (one is not None and one.reason) or now - since > _REASON_SECONDS:
                self.restarts += 1
            else:
                continue
            del self._unexplained[member]
        for name in ended.keys() - agents - self._ended:
            self._ended.add(name)
            if ended[name].reason == "failed":
                self._failed_before_register += 1
                where = f" on {ended[name].node}" if ended[name].node else ""
                events.append(
                    f"container {name}{where} has failed before its agent registered"
                    f" (exit code {ended[name].exit_code}) {ended[name].message}".rstrip()
                )
        return events

    def registered(self) -> None:
        """Reset the count of containers that failed before an agent registered."""
        self._failed_before_register = 0

    def knows(self, container: str) -> bool:
        """True if the container's end before its agent registered has been counted."""
        return container in self._ended

    # ------------------------------------------------------------------------------- decisions
    @property
    def has_cause(self) -> bool:
        """True if a loss of the present try was not the consequence of another one."""
        return bool(self._causes())

    def _causes(self) -> list[Loss]:
        """The losses that ended the present try, without containers that never had a rank."""
        return [loss for loss in self._losses if not loss.consequence and loss.of_a_world]

    @property
    def waiting(self) -> bool:
        """True while the cluster has yet to report why a container has ended."""
        return bool(self._unexplained)

    def never_registered(self) -> HowdahError | None:
        """The error of a job whose containers fail in a row before they register; None: none."""
        if self._failed_before_register < _FAILED_BEFORE_REGISTER:
            return None
        return errors.failed_before_register(self._failed_before_register)

    def spent(self) -> HowdahError | None:
        """The error of a job that has lost more workers than job.max_restarts; None: it has not."""
        if self.restarts <= self._max_restarts:
            return None
        last = self._losses[-1].error() if self._losses else None
        return errors.too_many_losses(self.restarts, self._max_restarts, last)

    def next_try(self) -> HowdahError | None:
        """Begin a static job's next try, or return the error that ends the job."""
        causes = self._causes() or self._losses
        cause = next((loss for loss in causes if loss.fatal), causes[0])
        if not cause.preempted:
            if cause.fatal or self.tries >= self._most_tries:
                return cause.error()
            self.tries += 1
        self._losses = []
        return None
