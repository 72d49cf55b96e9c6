"""A rank of a training whose device has memory for few tokens. The error is simulated: torch's own,
raised where a forward or backward pass has more tokens than it may.

    SHORT_OF_MEMORY='{"rank": 1, "tokens": 128, "in": "backward"}' \\
        python -m tests.runs.short_of_memory --config run.yaml
"""

from __future__ import annotations

import json
import os
import sys

from howdah.process.env import rank_env
from howdah.training import __main__ as training


def _limit(rank: int, tokens: int, where: str) -> None:
    """Let passes fail; called when the environment is set, before which torch is not imported."""
    import torch

    from howdah.models.forward import forward_torch

    embed = forward_torch.EncoderClassifier._embed

    def error() -> Exception:
        return torch.OutOfMemoryError("CUDA out of memory (simulated)")

    class Fails(torch.autograd.Function):
        """An identity whose backward pass has no memory, when those of later layers are done."""

        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise error()

    def short(self, ids_BT, types_BT):
        embedded_BTD = embed(self, ids_BT, types_BT)
        if not self.training or ids_BT.numel() <= tokens or rank_env().rank != rank:
            return embedded_BTD
        if where == "forward":
            raise error()
        return Fails.apply(embedded_BTD)

    forward_torch.EncoderClassifier._embed = short


if __name__ == "__main__":
    short, train = json.loads(os.environ["SHORT_OF_MEMORY"]), training._train

    def limited(*args) -> None:
        _limit(short["rank"], short["tokens"], short["in"])
        train(*args)

    training._train = limited
    sys.exit(training.main())
