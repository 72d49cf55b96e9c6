"""What a job has lost, and what of it counts: failures do, what the queue takes back does not."""

from __future__ import annotations

import random
from collections.abc import Iterable

from yarn.backend import Container
from yarn.driver_members import Loss

__all__ = ["Gang", "Ledger"]

_SAME_SECONDS = 10.0
"""A process that has ended so shortly before its container has ended with it."""
_REASON_SECONDS = 15.0
"""How long the cluster may take to say why a container has ended."""


class Ledger:
    """Counts losses."""

    def __init__(self) -> None:
        self.restarts = 0
        """Failed workers that were, or are to be, replaced."""
        self.preemptions = 0
        self._open: dict[str, float] = {}
        self._told: set[int] = set()
        self._counted: dict[str, float] = {}
        """When a process's end was last counted, by its container."""
        self._seen_ended: set[str] = set()
        self.stillborn = 0
        """Containers in a row that have failed before their agent said a word."""
        self.without_gpus = 0
        """Containers in a row that were refused since they had no GPU."""

    @property
    def open(self) -> bool:
        """The cluster has still to say why some container has ended."""
        return bool(self._open)

    def process_lost(self, loss: Loss, generation: int, now: float) -> None:
        """A training process has ended; consequences of another's end count as that one."""
        if loss.follows or (loss.consequence and generation in self._told):
            return
        self._told.add(generation)
        self.restarts += 1
        self._counted[loss.member] = now

    def container_lost(self, member: str, now: float) -> None:
        """A container has gone; the cluster will say why.

        YARN ends all processes of a container at once, and the agent may have told of its training
        process's end before it was ended itself: that is one loss, the container's.
        """
        counted = self._counted.pop(member, None)
        if counted is not None and now - counted < _SAME_SECONDS:
            self.restarts -= 1
        self._open.setdefault(member, now)

    def settle(self, containers: Iterable[Container], known: set[str], now: float) -> list[str]:
        """Decide what is open by what the cluster says.

        Args:
            containers: as the backend lists them.
            known: names of all agents that have ever registered.
            now: monotonic seconds.
        Returns:
            Events for people.
        """
        events = []
        ended = {one.id: one for one in containers if one.state == "ended"}
        for member, since in list(self._open.items()):
            one = ended.get(member)
            if one is not None and one.reason == "preempted":
                self.preemptions += 1
                events.append(f"container {member} on {one.node} was preempted: no failure")
            elif (one is not None and one.reason) or now - since > _REASON_SECONDS:
                self.restarts += 1
            else:
                continue
            del self._open[member]
        for name in ended.keys() - known - self._seen_ended:
            self._seen_ended.add(name)
            if ended[name].reason == "failed":
                self.stillborn += 1
                events.append(
                    f"container {name} on {ended[name].node} has failed before its agent was there"
                    f" (exit code {ended[name].exit_code}) {ended[name].message}".rstrip()
                )
        return events


class Gang:
    """All workers or none: how long they are waited for, and how long the pause is after it.

    Two jobs that each hold half of what they need would wait for each other for ever: who has
    waited long enough gives everything back, and asks again after a pause of random length.

    Args:
        seconds: wait for all.
        attempts: how often in all.
    """

    def __init__(self, seconds: float, attempts: int) -> None:
        self._seconds, self._attempts = seconds, attempts
        self.tries = 0
        self._deadline: float | None = None
        self._pause_until: float | None = None

    def wait(self, now: float) -> None:
        """Somebody is missing from now on, or still."""
        if self._deadline is None:
            self._deadline = now + self._seconds

    def complete(self) -> None:
        """Nobody is missing."""
        self._deadline = None

    def expired(self, now: float) -> bool:
        """The wait has been long enough."""
        return self._deadline is not None and now > self._deadline

    def give_up(self, now: float) -> float | None:
        """Begin a pause; its seconds, or None when it was the last try."""
        self._deadline = None
        self.tries += 1
        if self.tries >= self._attempts:
            return None
        # Short against the wait, so that the cluster does not idle; longer from try to try.
        length = random.uniform(0.1, 1.0) * min(self._seconds, 5.0 * 2.0**self.tries)
        self._pause_until = now + length
        return length

    @property
    def pausing(self) -> bool:
        """Everything has been given back, for now."""
        return self._pause_until is not None

    def pause_over(self, now: float) -> bool:
        """The pause ends at this moment; True once."""
        if self._pause_until is None or now < self._pause_until:
            return False
        self._pause_until = None
        return True
