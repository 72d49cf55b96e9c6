"""How fast steps are taken at present, and how long the rest of them takes at that speed."""

from __future__ import annotations

from collections import deque

__all__ = ["Speed"]

_WINDOW_SECONDS = 30.0
"""Speed is that of so long; of the last step where steps are longer."""


class Speed:
    """Steps on a clock that runs while steps are taken, and stands in evaluations and pauses."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque()

    def mark(self, seconds: float, step: int) -> None:
        """A step is done.

        Args:
            seconds: on the clock.
            step: steps done so far. Fewer than before: the steps in between are done again.
        """
        while self._marks and self._marks[-1][1] >= step:
            self._marks.pop()
        self._marks.append((seconds, step))
        while len(self._marks) > 2 and seconds - self._marks[1][0] >= _WINDOW_SECONDS:
            self._marks.popleft()

    def left(self, seconds: float, total: int) -> float | None:
        """Seconds until `total` steps are done; None before two steps are marked.

        Args:
            seconds: on the clock, now: a step that takes longer than those before it counts.
        """
        if len(self._marks) < 2:
            return None
        (began, first), (ended, last) = self._marks[0], self._marks[-1]
        each = max((ended - began) / (last - first), (seconds - began) / (last - first + 1))
        return max(0.0, (total - last) * each - (seconds - ended))
