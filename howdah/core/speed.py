"""The present speed of training steps, and the time left at that speed."""

from __future__ import annotations

from collections import deque
from itertools import islice

_LONGEST_SECONDS = 30.0
"""Longest window that the speed is measured over; longer steps: over the last step."""
_SHORTEST_SECONDS = 3.0
_SHARE = 1 / 16
"""The window as a share of the time left: near the end it is shorter, since the speed of half a
minute ago does not predict the last twenty seconds."""
_FEWEST_STEPS = 3


class Speed:
    """Steps on a clock that runs during steps, and stops during evaluations and pauses."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque()

    def mark(self, seconds: float, step: int) -> None:
        """Record the end of a step.

        Args:
            seconds: on the clock.
            step: steps done so far; fewer than before if steps are repeated.
        """
        while self._marks and self._marks[-1][1] >= step:
            self._marks.pop()
        self._marks.append((seconds, step))
        while len(self._marks) > 2 and seconds - self._marks[1][0] >= _LONGEST_SECONDS:
            self._marks.popleft()

    def left(self, seconds: float, total: int) -> float | None:
        """Seconds until `total` steps are done; None before two steps are marked.

        Args:
            seconds: on the clock, now; a step in progress that takes longer than usual counts.
        """
        if len(self._marks) < 2:
            return None
        soon = self._at_speed_of(_SHORTEST_SECONDS, seconds, total)
        window = min(_LONGEST_SECONDS, max(_SHORTEST_SECONDS, _SHARE * soon))
        return self._at_speed_of(window, seconds, total)

    def _at_speed_of(self, window: float, seconds: float, total: int) -> float:
        """Seconds left at the speed of the last `window` seconds of steps."""
        ended, last = self._marks[-1]
        began, first = next(
            mark for mark in islice(reversed(self._marks), 1, None)
            if (ended - mark[0] >= window and last - mark[1] >= _FEWEST_STEPS)
            or mark is self._marks[0]
        )  # fmt: skip
        each = max((ended - began) / (last - first), (seconds - began) / (last - first + 1))
        return max(0.0, (total - last) * each - (seconds - ended))
