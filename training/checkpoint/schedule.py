"""Decides when a checkpoint is due: by steps, epochs or time, and a minute after a failed one."""

from __future__ import annotations

import time

from howdah.config.model import CheckpointSection

_RETRY_MINUTES = 1.0


class CheckpointSchedule:
    """The schedule of a run's checkpoints, on rank 0.

    It counts from the state in the newest COMPLETE checkpoint, that is by the steps and the time
    that would be lost now. A checkpoint that was begun but not completed (its process was stopped,
    or another rank became rank 0) does not count: the next one is due at once.

    Args:
        rules: `every_steps`, `every_minutes` and `every_epoch`.
    """

    def __init__(self, rules: CheckpointSection) -> None:
        self._rules = rules
        self._safe: tuple[int, float] | None = None
        """Step of the newest complete checkpoint, and the time at which the weights had its
        state."""
        self._begun: tuple[int, float] = (-1, 0.0)
        self._retry_at: float | None = None

    @property
    def has_begun(self) -> bool:
        """True if `begin` was called, so that the newest complete checkpoint is known."""
        return self._safe is not None

    def begin(self, step: int, *, age: float = 0.0) -> None:
        """Start counting.

        Args:
            step: step of the newest complete checkpoint; 0 if there is none.
            age: seconds since the weights had that state.
        """
        self._safe = (step, time.monotonic() - age)

    def due(self, step: int, *, busy: bool, epoch_began: int = 0) -> bool:
        """True if a checkpoint is due after `step`.

        Args:
            busy: another one is being written and makes progress. Then only `every_steps` makes a
                checkpoint due, which waits for it; the other rules are postponed.
            epoch_began: steps done when the current epoch began; at an epoch's end, `step` itself.
        """
        every = self._rules.every_steps
        if every is not None and step % every == 0:
            return True
        if busy or self._safe is None:
            return False
        now = time.monotonic()
        if self._retry_at is not None:
            return now >= self._retry_at
        safe, at = self._safe
        if every is not None and step - safe >= every:
            return True
        if self._rules.every_epoch and safe < epoch_began:
            return True
        minutes = self._rules.every_minutes
        return minutes is not None and safe != step and now - at >= 60.0 * minutes

    def begun(self, step: int) -> None:
        """Count the start of a save, which writes the current weights."""
        self._begun = (step, time.monotonic())
        self._retry_at = None

    def whole(self, step: int) -> None:
        """Count a checkpoint that is complete on storage. Any thread may call this."""
        begun, at = self._begun
        self._safe = (step, at if begun == step else time.monotonic())

    def failed(self) -> None:
        """Count a failed save: the next one is due within a minute."""
        minutes = self._rules.every_minutes or _RETRY_MINUTES
        self._retry_at = time.monotonic() + 60.0 * min(minutes, _RETRY_MINUTES)
