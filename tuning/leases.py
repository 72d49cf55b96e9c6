"""Who works on which trial: a series of leases for each trial, the same for every Optuna storage.

The attempts at a trial are `<study>/leases/<trial>.<attempt>.json` (howdah/storage/lease.py): of
several workers one gets an attempt, another takes the next one when its beat stands still for the
lease's length, and a worker that was only suspended finds that out when it wakes up, and ends its
training. (Optuna's journal has no heartbeat, and that of its databases beats inside
`Study.optimize` alone.) What protects the run directory itself is the fence of the training: the
later attempt wins.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from typing import Literal

from howdah import storage
from howdah.errors import AlreadyExists, NotFound
from howdah.storage import lease
from howdah.storage.lease import Lease

_NAME = re.compile(r"(\d+)\.(\d+)\.json")


class Leases:
    """The leases of a study, and those that this worker holds. Any thread may call.

    Args:
        directory: the study's.
        seconds: length of this worker's leases.
        say: takes a line where renewing fails.
    """

    def __init__(self, directory: str, seconds: float, say: Callable[[str], None]) -> None:
        self._directory = storage.join(directory, "leases")
        self._seconds, self._say = seconds, say
        self._held: dict[int, tuple[int, Lease]] = {}
        """{trial: its attempt and lease}."""
        self._watch = lease.Watch()

    def _stem(self, number: int) -> str:
        return storage.join(self._directory, str(number))

    # ------------------------------------------------------------------------------ reading
    def attempts(self) -> dict[int, int]:
        """{trial: its newest attempt}."""
        newest: dict[int, int] = {}
        try:
            entries = storage.list_dir(self._directory)
        except NotFound:
            return newest
        for entry in entries:
            if match := _NAME.fullmatch(entry.name):
                number, attempt = int(match[1]), int(match[2])
                newest[number] = max(attempt, newest.get(number, 0))
        return newest

    def read(self, number: int, attempt: int) -> lease.Contents:
        """The lease of an attempt."""
        return lease.read(lease.numbered(self._stem(number), attempt))

    def free(self, numbers: Iterable[int]) -> dict[int, int]:
        """{trial: its newest attempt, or 0} of those that no living worker works on, in order."""
        newest, now, free = self.attempts(), time.monotonic(), {}
        for number in numbers:
            if number in self._held:
                continue
            attempt = newest.get(number, 0)
            if attempt:
                contents = self.read(number, attempt)
                unchanged = self._watch.unchanged((number, attempt), contents.beat, now)
                if not contents.expired(unchanged, contents.running()):
                    continue
            free[number] = attempt
        return free

    def losses(self, number: int) -> int:
        """How often a trial was lost: attempts before the present one that were not released."""
        present = self._held[number][0]
        states = [self.read(number, attempt).state for attempt in range(1, present)]
        return sum(state != "released" for state in states)

    # ------------------------------------------------------------------------------ holding
    def take(self, number: int, newest: int) -> int | None:
        """Begin the attempt after `newest`, which `free` has found to be over; None: another worker
        was faster."""
        attempt = newest + 1
        one = Lease.of_series(self._stem(number), attempt, seconds=self._seconds, say=self._say)
        try:
            one.acquire()
        except AlreadyExists:
            return None
        one.keep_renewing()
        self._held[number] = (attempt, one)
        return attempt

    def end(self, number: int, state: Literal["released", "lost"]) -> None:
        """Give a trial back: to go on with it (released), or because its training was lost."""
        _, one = self._held.pop(number)
        one.release(state)

    def superseded(self, number: int) -> bool:
        """Another worker has taken over a trial that this one holds."""
        return self._held[number][1].taken_over

    def renew(self) -> None:
        """Count each held lease's beat up, and notice the next attempts of others."""
        for _, one in list(self._held.values()):
            one.renew()

    def __enter__(self) -> Leases:
        storage.make_dirs(self._directory)
        return self

    def __exit__(self, *error: object) -> None:
        for _, one in list(self._held.values()):
            one.abandon()
