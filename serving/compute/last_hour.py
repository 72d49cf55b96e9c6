"""Requests and latency of the last hour, for the server's page."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

_MINUTES = 60
_SHORTEST = 1e-4
_WIDTH = 1.05
"""Ratio of a bin's ends: a quantile is exact to 5 %, at any rate of requests."""


@dataclass(frozen=True, kw_only=True)
class Hour:
    """Requests of this process in the last hour, or since its start."""

    minutes: int
    """Whole minutes that are counted, at most 60; 0 in the first minute."""
    answered: int
    refused: int
    median: float | None
    """Seconds from an answered request's head to its answer; None: there was no request."""
    slowest: float | None
    """Seconds within which 95 % of the requests were answered."""


class LastHour:
    """Counts the requests of one process by minute and forgets minutes older than an hour.

    Only the event loop uses it.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._began = clock, clock()
        self._minutes: dict[int, Counter[int | None]] = {}
        """{minute: {bin of seconds: answered requests; None: refused ones}}."""

    def add(self, seconds: float, *, answered: bool) -> None:
        """Count a request that has ended."""
        place = round(math.log(max(seconds, _SHORTEST) / _SHORTEST, _WIDTH)) if answered else None
        minute = self._minute()
        if minute not in self._minutes:
            self._minutes = self._recent()
            self._minutes[minute] = Counter()
        self._minutes[minute][place] += 1

    def hour(self) -> Hour:
        """Return the figures of the last hour."""
        total: Counter[int | None] = Counter()
        for counts in self._recent().values():
            total.update(counts)
        refused = total.pop(None, 0)
        return Hour(
            minutes=min(_MINUTES, int((self._clock() - self._began) / 60)),
            answered=total.total(),
            refused=refused,
            median=_quantile(total, 0.5),
            slowest=_quantile(total, 0.95),
        )

    def _minute(self) -> int:
        return int(self._clock() / 60)

    def _recent(self) -> dict[int, Counter[int | None]]:
        oldest = self._minute() - _MINUTES + 1
        return {minute: counts for minute, counts in self._minutes.items() if minute >= oldest}


def _quantile(counts: Counter[int], share: float) -> float | None:
    places = sorted(counts)
    sums = accumulate(counts[place] for place in places)
    reached = (
        place for place, below in zip(places, sums, strict=True) if below >= share * counts.total()
    )
    place = next(reached, None)
    return None if place is None else _SHORTEST * _WIDTH**place
