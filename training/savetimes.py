"""When a checkpoint is due: by steps, by epochs, by time, and soon after one that failed."""

from __future__ import annotations

import time

from howdah.config_model import CheckpointSection

__all__ = ["SaveTimes"]

_AGAIN_MINUTES = 1.0


class SaveTimes:
    """The timetable of a run's checkpoints. Rank 0 asks.

    What counts is what would be lost now: steps and time since the state of the newest WHOLE
    checkpoint. One that was begun and never became whole (its process was stopped, the run has
    another rank 0 since) changes nothing: the next one is due at once.

    Args:
        rules: `every_steps`, `every_minutes` and `every_epoch`.
    """

    def __init__(self, rules: CheckpointSection) -> None:
        self._rules = rules
        self._safe: tuple[int, float] | None = None
        """Step of the newest state that is safe, and when it was that of the weights."""
        self._begun: tuple[int, float] = (-1, 0.0)
        self._again_at: float | None = None

    @property
    def known(self) -> bool:
        """What is safe is known: `begin` was called."""
        return self._safe is not None

    def begin(self, step: int, *, age: float = 0.0) -> None:
        """The first steps begin.

        Args:
            step: of the newest state that cannot be lost: of the newest whole checkpoint, 0 where
                there is none.
            age: seconds for which the weights have been other ones.
        """
        self._safe = (step, time.monotonic() - age)

    def due(self, step: int, *, busy: bool, epoch_began: int = 0) -> bool:
        """A checkpoint is due after `step`.

        Args:
            busy: another is being written; one that is not due by the step's number itself is then
                put off, not waited for.
            epoch_began: steps that had been done when the present epoch began; where `step` is an
                epoch's end, `step` itself.
        """
        every = self._rules.every_steps
        if every is not None and step % every == 0:
            return True
        if busy or self._safe is None:
            return False
        now = time.monotonic()
        if self._again_at is not None:
            return now >= self._again_at
        safe, at = self._safe
        if every is not None and step - safe >= every:
            return True
        if self._rules.every_epoch and safe < epoch_began:
            return True
        minutes = self._rules.every_minutes
        return minutes is not None and safe != step and now - at >= 60.0 * minutes

    def begun(self, step: int) -> None:
        """A checkpoint of the weights as they are now is being written."""
        self._begun = (step, time.monotonic())
        self._again_at = None

    def whole(self, step: int) -> None:
        """It is whole on storage. Any thread may say so."""
        begun, at = self._begun
        self._safe = (step, at if begun == step else time.monotonic())

    def failed(self) -> None:
        """The last one could not be written: another is due within a minute."""
        minutes = self._rules.every_minutes or _AGAIN_MINUTES
        self._again_at = time.monotonic() + 60.0 * min(minutes, _AGAIN_MINUTES)
