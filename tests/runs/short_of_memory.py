"""A rank of a training whose device has memory for few tokens. The error is a simulated one: torch's
own, raised where a forward or backward pass has more tokens than $SHORT_OF_MEMORY says.

    SHORT_OF_MEMORY='{"rank": 1, "tokens": 128, "in": "backward"}' python -m tests.runs.short_of_memory --config ...
"""  # noqa: E501 - a command

from __future__ import annotations

import json
import os
import sys

import torch

from howdah.models.forward import forward_torch
from howdah.process.env import rank_env
from howdah.training.__main__ import main


class _Fails(torch.autograd.Function):
    """An identity whose backward pass has no memory, when those of later layers are done."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise torch.OutOfMemoryError("CUDA out of memory (simulated)")


def _limit(rank: int, tokens: int, where: str) -> None:
    embed = forward_torch.EncoderClassifier._embed

    def short(self, ids_BT, types_BT):
        embedded_BTD = embed(self, ids_BT, types_BT)
        if not self.training or ids_BT.numel() <= tokens or rank_env().rank != rank:
            return embedded_BTD
        if where == "forward":
            raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
        return _Fails.apply(embedded_BTD)

    forward_torch.EncoderClassifier._embed = short


if __name__ == "__main__":
    short = json.loads(os.environ["SHORT_OF_MEMORY"])
    _limit(short["rank"], short["tokens"], short["in"])
    sys.exit(main())
