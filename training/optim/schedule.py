"""The number of steps of a run and the learning rate of each: pure functions of the configuration.

The schedules are those of `transformers.get_scheduler` (linear, cosine, constant, each with linear
warm-up), so that a learning rate chosen with Hugging Face's Trainer has the same effect here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from howdah.config.model import TrainingSection


def total_steps(training: TrainingSection, steps_per_epoch: int) -> int:
    """Optimizer steps of the whole run: `max_steps`, or `num_train_epochs` rounded up to a step.

    Args:
        training: the configuration's section.
        steps_per_epoch: global batches of one epoch, >= 1.
    """
    if steps_per_epoch < 1:
        raise ValueError(f"steps_per_epoch must be at least 1, got {steps_per_epoch}")
    if training.max_steps is not None:
        return training.max_steps
    # The tolerance keeps 0.1 epochs of 30 steps at 3: 0.1 * 30 is 3.0000000000000004.
    return max(1, math.ceil(training.num_train_epochs * steps_per_epoch - 1e-9))


def warmup_steps(training: TrainingSection, steps: int) -> int:
    """Steps of the warm-up: `warmup_steps`, or `warmup_ratio` of all steps rounded up."""
    if training.warmup_steps > 0:
        return training.warmup_steps
    return math.ceil(training.warmup_ratio * steps)


def peak_learning_rate(training: TrainingSection) -> float:
    """`learning_rate`, scaled by global_batch_size / lr_reference_batch_size as `lr_scaling` says.

    The world size has no effect: the optimizer sees the global batch.
    """
    ratio = training.global_batch_size / training.lr_reference_batch_size
    factor = {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[training.lr_scaling]
    return training.learning_rate * factor


@dataclass(frozen=True)
class Schedule:
    """Learning rate by step: linear warm-up to `peak`, then `decay` down to 0 at `steps`.

    Where the global batch size has changed between two epochs, the run has done another number of
    steps than it would have with the current batches. `shift` is the difference: the learning rate
    is that of a run with the current batches from the start, at the same position in the data.
    """

    peak: float
    """Learning rate at the end of the warm-up."""
    steps: int
    """Optimizer steps of the whole run, those under earlier batches included."""
    warmup: int
    """Steps of the warm-up; 0: none."""
    decay: str
    """linear, cosine or constant."""
    shift: int = 0
    """Step `n` of the run is step `n - shift` of the schedule."""

    @classmethod
    def of(
        cls, training: TrainingSection, steps_per_epoch: int, *, done: int = 0, place: int = 0
    ) -> Schedule:
        """The configured schedule.

        Args:
            training: the configuration's section.
            steps_per_epoch: current global batches per epoch.
            done: optimizer steps that the run has taken.
            place: position in the data, in steps of the current batches: epochs done times
                `steps_per_epoch`, plus the steps of the epoch under way. It is `done` unless the
                batches have changed. `max_steps` counts optimizer steps of any batch.
        """
        steps = total_steps(training, steps_per_epoch)
        shift = done - place if training.max_steps is None else 0
        return cls(
            peak=peak_learning_rate(training),
            steps=steps + shift,
            warmup=warmup_steps(training, steps),
            decay=training.lr_scheduler_type,
            shift=shift,
        )

    def lr(self, done: int) -> float:
        """Learning rate of the next optimizer step when `done` steps have been taken.

        >>> schedule = Schedule(peak=1.0, steps=10, warmup=2, decay="linear")
        >>> [schedule.lr(done) for done in (0, 1, 2, 6, 10)]
        [0.0, 0.5, 1.0, 0.5, 0.0]
        """
        done, steps = done - self.shift, self.steps - self.shift
        if done < self.warmup:
            return self.peak * done / self.warmup
        left = max(0, steps - done) / max(1, steps - self.warmup)
        return self.peak * _DECAYS[self.decay](left)


_DECAYS: dict[str, Callable[[float], float]] = {
    "linear": lambda left: left,
    "cosine": lambda left: 0.5 * (1.0 + math.cos(math.pi * (1.0 - left))),
    "constant": lambda left: 1.0,
}
"""By `training.lr_scheduler_type`: share of steps left -> share of the peak."""
