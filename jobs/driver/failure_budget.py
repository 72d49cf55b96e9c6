"""What a job has lost, and what of it counts: failures do, preemptions do not."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from howdah.errors import HowdahError
from howdah.jobs.backend import Container
from howdah.jobs.driver import errors
from howdah.jobs.driver.members import Loss

_SAME_SECONDS = 10.0
"""A process that has ended so shortly before its container has ended with it."""
_REASON_SECONDS = 15.0
"""How long the cluster may take to say why a container has ended."""
_FAILED_BEFORE_REGISTER = 3
"""Containers in a row that may fail before their agents have registered."""


class FailureBudget:
    """Counts losses against job.max_restarts and a static job's tries.

    Args:
        tries: how often a static job may begin.
        max_restarts: failed workers that may be replaced.
        attempt: the first try's number.
    """

    def __init__(self, tries: int, max_restarts: int, attempt: int = 1) -> None:
        self._most_tries, self._max_restarts = tries, max_restarts
        self.tries = attempt
        """Begun so far, the present one included."""
        self.restarts = 0
        """Failed workers that were, or are to be, replaced."""
        self.preemptions = 0
        self._losses: list[Loss] = []
        """Of the present try."""
        self._unexplained: dict[str, float] = {}
        """When a container ended of which the cluster has not said why."""
        self._failed_generations: set[int] = set()
        self._counted: dict[str, float] = {}
        """When a process's end was last counted, by its container."""
        self._seen_ended: set[str] = set()
        self._failed_before_register = 0

    # -------------------------------------------------------------------------------- counting
    def add(self, loss: Loss) -> None:
        """Note a loss of the present try."""
        self._losses.append(loss)

    def preempted(self, member: str) -> None:
        """The losses of this container were the cluster's doing."""
        self._losses = [
            dataclasses.replace(loss, preempted=loss.preempted or loss.member == member)
            for loss in self._losses
        ]

    def process_lost(self, loss: Loss, generation: int, now: float) -> None:
        """A training process has ended; consequences of another's end count as that one."""
        if loss.follows or (loss.consequence and generation in self._failed_generations):
            return
        self._failed_generations.add(generation)
        self.restarts += 1
        self._counted[loss.member] = now

    def world_failed(self) -> None:
        """A world's ranks do not reach each other; none of them was lost."""
        self.restarts += 1

    def container_lost(self, member: str, now: float) -> None:
        """A container has gone; the cluster will say why.

        A cluster ends all processes of a container at once, and the agent may have reported the end
        of its training process before it was ended itself: that is one loss, the container's.
        """
        counted = self._counted.pop(member, None)
        if counted is not None and now - counted < _SAME_SECONDS:
            self.restarts -= 1
        self._unexplained.setdefault(member, now)

    def settle(self, containers: Iterable[Container], known: set[str], now: float) -> list[str]:
        """Count unexplained losses by what the cluster says of them.

        Args:
            containers: as the backend lists them.
            known: names of all agents that have ever registered.
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
                events.append(f"container {member} on {one.node} was preempted: no failure")
            elif (one is not None and one.reason) or now - since > _REASON_SECONDS:
                self.restarts += 1
            else:
                continue
            del self._unexplained[member]
        for name in ended.keys() - known - self._seen_ended:
            self._seen_ended.add(name)
            if ended[name].reason == "failed":
                self._failed_before_register += 1
                where = f" on {ended[name].node}" if ended[name].node else ""
                events.append(
                    f"container {name}{where} has failed before its agent registered"
                    f" (exit code {ended[name].exit_code}) {ended[name].message}".rstrip()
                )
        return events

    def registered(self) -> None:
        """An agent has registered: containers do not fail before that in general."""
        self._failed_before_register = 0

    def knows(self, container: str) -> bool:
        """A container's end, before its agent registered, is counted already."""
        return container in self._seen_ended

    # ------------------------------------------------------------------------------- decisions
    @property
    def has_cause(self) -> bool:
        """Some loss of the present try was not another one's consequence."""
        return bool(self._causes())

    def _causes(self) -> list[Loss]:
        """The losses of the present try that ended it; a container that was lost before it had a
        rank has not."""
        return [loss for loss in self._losses if not loss.consequence and loss.of_a_world]

    @property
    def waiting(self) -> bool:
        """The cluster has still to say why some container has ended."""
        return bool(self._unexplained)

    def never_registered(self) -> HowdahError | None:
        """The error of a job whose containers fail one after the other before they register."""
        if self._failed_before_register < _FAILED_BEFORE_REGISTER:
            return None
        return errors.failed_before_register(self._failed_before_register)

    def spent(self) -> HowdahError | None:
        """The error of a job that has lost more workers than job.max_restarts."""
        if self.restarts <= self._max_restarts:
            return None
        last = self._losses[-1].error() if self._losses else None
        return errors.too_many_losses(self.restarts, self._max_restarts, last)

    def next_try(self) -> HowdahError | None:
        """Begin a static job's next try, or give the error that ends the job."""
        causes = self._causes() or self._losses
        cause = next((loss for loss in causes if loss.fatal), causes[0])
        if not cause.preempted:
            if cause.fatal or self.tries >= self._most_tries:
                return cause.error()
            self.tries += 1
        self._losses = []
        return None
