"""What scales gradients, alike on all ranks: clipping by the global norm, and fp16's loss scale.

The loss scale lies in the run's state, so that it survives a restart.

Source: torch.amp.GradScaler, with its factors; fed here by the norm of the REDUCED gradient.
"""

from __future__ import annotations

from howdah.errors import TrainingError
from training.state import TrainState

__all__ = ["LossScale", "clip_factor", "not_finite"]

_FIRST, _GROWTH, _BACKOFF, _INTERVAL = 2.0**16, 2.0, 0.5, 2000


class LossScale:
    """What the loss is multiplied by before the backward pass.

    Args:
        state: holds the scale; from an earlier attempt it goes on.
        on: fp16; without it the scale is 1 and stays there.
    """

    def __init__(self, state: TrainState, *, on: bool) -> None:
        self.on = on
        self._state = state
        if on and state.loss_scale is None:
            state.loss_scale = _FIRST

    @property
    def value(self) -> float:
        """The scale of the next backward pass."""
        return float(self._state.loss_scale) if self.on else 1.0

    def update(self, finite: bool) -> None:
        """Take in a step: one with an infinite gradient was skipped, and halves the scale.

        Args:
            finite: the norm of the reduced gradient is; the same on every rank.
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
    """What gradients of global norm `norm` are multiplied by; max_norm 0: no clipping.

    Source: torch.nn.utils.clip_grad_norm_, with its 1e-6.

    >>> clip_factor(0.5, 1.0), clip_factor(7.0, 0.0)
    (1.0, 1.0)
    """
    return min(1.0, max_norm / (norm + 1e-6)) if max_norm > 0 else 1.0


def not_finite(what: str, value: float, step: int) -> TrainingError:
    """What every rank raises, the same, for a loss or a norm that is no number.

    Args:
        what: "loss" or "gradient's norm".
        value: what it was, after the reduction.
        step: optimizer steps done before.
    """
    return TrainingError(
        f"the {what} is not a number, and training stopped; nothing of this step is saved",
        where=f"step {step + 1}",
        expected="a finite number",
        got=str(value),
        remedy="lower training.learning_rate, warm up, or set training.precision to fp32; the run"
        " goes on from its newest checkpoint",
    )
