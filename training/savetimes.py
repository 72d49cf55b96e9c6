"""When a checkpoint is due: by steps, by time, and soon after one that failed."""

from __future__ import annotations

import time

from howdah.config_model import CheckpointSection

__all__ = ["SaveTimes"]

_AGAIN_MINUTES = 1.0


class SaveTimes:
    """The timetable of a run's checkpoints. Rank 0 asks.

    Args:
        rules: `every_steps` and `every_minutes`; ends of epochs are the caller's.
    """

    def __init__(self, rules: CheckpointSection) -> None:
        self._rules = rules
        self._last = time.monotonic()
        self._again_at: float | None = None

    def due(self, step: int, *, busy: bool) -> bool:
        """A checkpoint is due after `step`.

        Args:
            busy: another is being written; one that is due by time is then put off, not waited for.
        """
        now = time.monotonic()
        if self._rules.every_steps is not None and step % self._rules.every_steps == 0:
            return True
        if busy:
            return False
        if self._again_at is not None and now >= self._again_at:
            return True
        minutes = self._rules.every_minutes
        return minutes is not None and now - self._last >= 60.0 * minutes

    def taken(self) -> None:
        """One has just been taken, or the steps begin: the time begins anew."""
        self._last = time.monotonic()
        self._again_at = None

    def failed(self) -> None:
        """The last one could not be written: another is due within a minute."""
        minutes = self._rules.every_minutes or _AGAIN_MINUTES
        self._again_at = time.monotonic() + 60.0 * min(minutes, _AGAIN_MINUTES)
