"""Whether a job's steps have stopped coming: a rule, without clock or network.

Unlike `jobs/hang.py` it ends nothing: a job that waits for workers, or whose storage is slow, has
stalled as well, and its owner wants to know.
"""

from __future__ import annotations

import statistics
from collections import deque

_STEPS = 101
"""Newest steps whose median is taken."""
_LEAST_STEPS = 5


class Stall:
    """Watches the number of the newest step.

    Args:
        factor: stalled after so many times the median step.
        least_seconds: and after so long at least.
    """

    def __init__(self, factor: float, least_seconds: float) -> None:
        self._factor, self._least = factor, least_seconds
        self._seconds: deque[float] = deque(maxlen=_STEPS)
        self._step: int | None = None
        self._since = 0.0
        self._said = False

    def look(self, step: int | None, now: float) -> float | None:
        """Seconds without a step, once when a stall is found; None: there is none, or it was said.

        Args:
            step: the newest step; None: there is none yet, or no step is due (the job concludes).
            now: seconds of a monotonic clock.
        """
        if step is None:
            self._step = None
            return None
        if step != self._step:
            if self._step is not None and step > self._step:
                self._seconds.append((now - self._since) / (step - self._step))
            self._step, self._since, self._said = step, now, False
            return None
        quiet = now - self._since
        if self._said or len(self._seconds) < _LEAST_STEPS:
            return None
        if quiet < max(self._least, self._factor * statistics.median(self._seconds)):
            return None
        self._said = True
        return quiet
