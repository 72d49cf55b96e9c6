"""The rule that decides whether a job's steps have stalled, without clock or network.

Unlike a hang (`jobs/hang.py`), a stall is reported and ends nothing: a job that waits for workers,
or for slow storage, has stalled too, and its owner wants to know.
"""

from __future__ import annotations

import statistics
from collections import deque

_STEPS = 101
"""Number of newest steps whose median is the usual time."""
_LEAST_STEPS = 5


class Stall:
    """Watches the number of the newest step.

    Args:
        factor: a stall lasts longer than this many median steps.
        least_seconds: a stall lasts at least this long.
    """

    def __init__(self, factor: float, least_seconds: float) -> None:
        self._factor, self._least = factor, least_seconds
        self._seconds: deque[float] = deque(maxlen=_STEPS)
        self._step: int | None = None
        self._since = 0.0
        self._reported = False

    def look(self, step: int | None, now: float) -> float | None:
        """Seconds without a step, once per stall; None: no stall, or one that was reported.

        Args:
            step: the newest step; None: no step is due yet, or any more (the job concludes).
            now: seconds of a monotonic clock.
        """
        if step is None:
            self._step = None
            return None
        if step != self._step:
            if self._step is not None and step > self._step:
                self._seconds.append((now - self._since) / (step - self._step))
            self._step, self._since, self._reported = step, now, False
            return None
        quiet = now - self._since
        if self._reported or len(self._seconds) < _LEAST_STEPS:
            return None
        if quiet < max(self._least, self._factor * statistics.median(self._seconds)):
            return None
        self._reported = True
        return quiet
