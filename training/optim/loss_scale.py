"""Gradient clipping by the global norm and fp16's loss scale, the same on all ranks.

The loss scale is part of TrainState, so that it survives a restart.

Source: torch.amp.GradScaler and its factors; here the scale depends on the norm of the REDUCED
gradient.
"""

from __future__ import annotations

from howdah.errors import TrainingError
from howdah.training.checkpoint.state import TrainState

_FIRST, _GROWTH, _BACKOFF, _INTERVAL = 2.0**16, 2.0, 0.5, 2000


class LossScale:
    """The factor of the loss before the backward pass.

    Args:
        state: holds the scale, possibly that of an earlier attempt.
        on: True for fp16; otherwise the scale is always 1.
    """

    def __init__(self, state: TrainState, *, on: bool) -> None:
        self.on = on
        self._state = state
        if on and state.loss_scale is None:
            state.loss_scale = _FIRST

    @property
    def value(self) -> float:
        return float(self._state.loss_scale) if self.on else 1.0

    @property
    def may_skip(self) -> bool:
        """True if a smaller scale may make the gradient finite; the smallest scale is 1."""
        return self.value > 1.0

    def update(self, finite: bool) -> None:
        """Count a step; a step with an infinite gradient was skipped, and halves the scale.

        Args:
            finite: True if the norm of the reduced gradient is finite; equal on all ranks.
        """
        if not self.on:
            return
        state = self._state
        if not finite:
            state.loss_scale = max(1.0, self.value * _BACKOFF)
            state.good_steps = 0
            state.skipped_steps += 1
            return
        state.good_steps += 1
        if state.good_steps == _INTERVAL:
            state.loss_scale, state.good_steps = self.value * _GROWTH, 0


def clip_factor(norm: float, max_norm: float) -> float:
    """The factor for gradients with the global norm `norm`; max_norm 0: no clipping.

    Source: torch.nn.utils.clip_grad_norm_ and its 1e-6.

    >>> clip_factor(0.5, 1.0), clip_factor(7.0, 0.0)
    (1.0, 1.0)
    """
    return min(1.0, max_norm / (norm + 1e-6)) if max_norm > 0 else 1.0


def not_finite(what: str, value: float, step: int) -> TrainingError:
    """The error for a loss or norm that is NaN or infinite; equal on all ranks.

    Args:
        what: "loss" or "gradient's norm".
        value: its value after the reduction.
        step: number of optimizer steps done before.
    """
    return TrainingError(
        f"training stopped because the {what} is not finite; this step is not saved",
        where=f"step {step + 1}",
        got=str(value),
        remedy="lower training.learning_rate, warm up, or set training.precision to fp32; the run"
        " resumes from its newest checkpoint",
    )
