"""The number of steps of a run, and the learning rate of each: pure functions of the configuration.

The schedules are those of `transformers.get_scheduler` (linear, cosine, constant, each with linear
warm-up), so that a learning rate chosen with Hugging Face's Trainer has the same effect here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from howdah.config.training import TrainingSection
from howdah.core.processes import limit

FUSION_GROUPS = limit("fusion_groups", None)
"""Number of fixed groups in which gradients are reduced; None: by size, which is faster, but with
three and more ranks the order of sums differs between runs. Tests of equal bits set a number."""
BETAS, EPSILON = (0.9, 0.999), 1e-8
"""AdamW's constants, as in the paper and in Hugging Face's Trainer. They are not configurable:
fine-tuning is tuned by learning rate and weight decay, and other values would also change the
meaning of saved moments."""


def total_steps(training: TrainingSection, steps_per_epoch: int) -> int:
    """Optimizer steps of the whole run: `max_steps`, or `num_train_epochs` rounded up to a step.

    Args:
        steps_per_epoch: global batches of one epoch, >= 1.
    """
    if steps_per_epoch < 1:
        raise ValueError(f"steps_per_epoch must be at least 1, got {steps_per_epoch}")
    if training.max_steps is not None:
        return training.max_steps
    # The tolerance keeps 0.1 epochs of 30 steps at 3: 0.1 * 30 is 3.0000000000000004.
    return max(1, math.ceil(training.num_train_epochs * steps_per_epoch - 1e-9))


def warmup_steps(training: TrainingSection, steps: int) -> int:
    """Steps of the warm-up: `warmup_ratio` of all steps, rounded up."""
    return math.ceil(training.warmup_ratio * steps)


@dataclass(frozen=True)
class Schedule:
    """Learning rate by step: linear warm-up to `peak`, then `decay` down to 0 at `steps`.

    If the global batch size changed between two epochs, the run has done another number of steps
    than it would have with the current batches. `shift` is the difference: the learning rate is the
    one that a run with the current batches would have at the same position in the data.
    """

    peak: float
    """Learning rate at the end of the warm-up."""
    steps: int
    """Optimizer steps of the whole run, including those with earlier batches."""
    warmup: int
    """Steps of the warm-up; 0: no warm-up."""
    decay: str
    """Name of the decay: linear, cosine or constant."""
    shift: int = 0
    """Difference of steps: step `n` of the run is step `n - shift` of the schedule."""

    @classmethod
    def of(
        cls, training: TrainingSection, steps_per_epoch: int, *, done: int = 0, place: int = 0
    ) -> Schedule:
        """The configured schedule.

        Args:
            steps_per_epoch: current global batches per epoch.
            done: optimizer steps that the run has taken.
            place: position in the data, in steps of the current batches: epochs done times
                `steps_per_epoch`, plus the steps of the current epoch. It equals `done` unless the
                batches have changed. `max_steps` counts optimizer steps of any batch.
        """
        steps = total_steps(training, steps_per_epoch)
        shift = done - place if training.max_steps is None else 0
        return cls(
            peak=training.learning_rate,
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
        remaining = max(0, steps - done) / max(1, steps - self.warmup)
        return self.peak * _DECAYS[self.decay](remaining)


_DECAYS: dict[str, Callable[[float], float]] = {
    "linear": lambda remaining: remaining,
    "cosine": lambda remaining: 0.5 * (1.0 + math.cos(math.pi * (1.0 - remaining))),
    "constant": lambda remaining: 1.0,
}
"""{training.lr_scheduler_type: function from the share of remaining steps to the share of the
peak}."""
