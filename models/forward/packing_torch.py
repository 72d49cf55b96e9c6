"""The tokens of a batch without its padding, for all of a model but its attention.

Attention is computed on rows that are padded again, each with its own mask, so that no row sees
another one. What it costs and gains: docs/decisions/gpus.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from howdah.core.processes import limit
from howdah.models.forward.kernels_torch import on_device

_FROM = 1.15
"""Padded / real tokens from which it pays on a CPU."""


@dataclass(frozen=True)
class Packing:
    """Where the N tokens of a batch [B, T] are."""

    tokens_N: torch.Tensor
    """int64, positions in [B * T], ascending."""
    firsts_B: torch.Tensor
    """int64, the first token of each row, in N."""
    rows: int
    width: int

    def packed(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """[N, D]."""
        return x_BTD.flatten(0, 1).index_select(0, self.tokens_N)

    def padded(self, x_ND: torch.Tensor) -> torch.Tensor:
        """[B, T, D], zeros where there is no token."""
        x_MD = x_ND.new_zeros(self.rows * self.width, x_ND.shape[-1])
        return x_MD.index_copy(0, self.tokens_N, x_ND).view(self.rows, self.width, -1)

    def first(self, x_ND: torch.Tensor) -> torch.Tensor:
        """[B, 1, D]: the first token of each row."""
        return x_ND.index_select(0, self.firsts_B)[:, None]


def packing_of(mask_BT: np.ndarray, device: str, dtype: torch.dtype) -> Packing | None:
    """The packing of a batch; None if it does not pay.

    It pays in float32 on a CPU. In bf16 oneDNN compiles kernels for each number of tokens, and
    packed batches have ever new ones. On a GPU it has not been measured.

    Args:
        mask_BT: 1 for tokens, 0 for padding; each row begins with a token.
        device: torch's name of the device.
        dtype: what the model computes in.
    """
    pays = device == "cpu" and dtype == torch.float32
    least = limit("pack_from", _FROM if pays else None)
    lengths_B = mask_BT.sum(1)
    if least is None or mask_BT.size < least * lengths_B.sum():
        return None
    firsts_B = np.cumsum(lengths_B) - lengths_B
    tokens_N = on_device(np.flatnonzero(mask_BT), device)
    return Packing(tokens_N, on_device(firsts_B, device), *mask_BT.shape)
