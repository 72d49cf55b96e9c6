"""A model whose attention heads and feed-forward layers are divided among ranks (tensor parallel).

    x = enter(hidden)                     # backward: the ranks' gradients are summed
    inner = act(x W_in + b_in)            # this rank's heads, or its part of the inner width
    hidden = leave(inner W_out) + b_out   # forward: the ranks' parts are summed

Every rank has the same `hidden`, bit by bit. Source: Shoeybi et al., "Megatron-LM: Training
Multi-Billion Parameter Language Models Using Model Parallelism" (2019), section 3. Why not by
torch's DTensor: docs/decisions/model-over-ranks.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from howdah.data.family import ModelFamily
from howdah.models.weights import parameters
from howdah.training.comm.base import Comm

__all__ = ["Split"]


class Split:
    """This rank's part of each divided tensor, and the sums between the parts.

    Args:
        family: the model's.
        comm: of the ranks that divide a layer; all enter each forward and backward pass.
    """

    def __init__(self, family: ModelFamily, comm: Comm) -> None:
        self.comm, self._family = comm, family

    def axis(self, name: str) -> int | None:
        """The axis along which a parameter of this name is divided; None: every rank has it."""
        return parameters.divided_axes(self._family, [name]).get(name)

    def own(self, name: str, array: np.ndarray) -> np.ndarray:
        """This rank's part of a parameter, or of its moments."""
        axis = self.axis(name)
        if axis is None:
            return array
        return np.split(np.asarray(array), self.comm.size, axis)[self.comm.rank]

    def enter(self, x: torch.Tensor) -> torch.Tensor:
        """The input of divided layers: its gradient is the sum of all ranks'."""
        return _Enter.apply(x, self.comm)

    def leave(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of what all ranks' parts of a layer give."""
        return _Leave.apply(x, self.comm)


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, comm: Comm) -> torch.Tensor:
        ctx.comm = comm
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _sum(gradient, ctx.comm), None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, comm: Comm) -> torch.Tensor:
        return _sum(x, comm)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


def _sum(x: torch.Tensor, comm: Comm) -> torch.Tensor:
    """Over all ranks, in float32. Every rank enters."""
    (total,) = comm.reduce_gradients([x.to(torch.float32, copy=True).contiguous()])
    return total.to(x.dtype)
