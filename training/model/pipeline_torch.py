"""A model whose layers are divided among ranks one after the other (pipeline parallel).

    rank 0: embeddings, layers 0 .. k - 1  ->  rank 1: layers k ..  ->  classifier, loss

A step's micro-batches follow each other through the ranks in the order one-forward-one-backward:
rank r of P begins with P - 1 - r forward passes, and keeps at most P - r of them. Source: Narayanan
et al., "PipeDream" (2019) and "Efficient Large-Scale Language Model Training" (2021), 1F1B. Why not
by torch.distributed.pipelining: docs/decisions/model-over-ranks.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
import torch

from howdah.training.comm.base import Comm
from howdah.training.data.readers import Batch
from howdah.training.model.stages import order

__all__ = ["Pipeline"]


Loss = Callable[[torch.Tensor, Batch], torch.Tensor]
"""(logits_BC, batch) -> the micro-batch's loss."""


class Pipeline:
    """This rank's stage among those of one model.

    Args:
        net: the stage's layers: (ids_BT, mask_BT, hidden_BTD or None) -> hidden_BTD, or logits_BC
            on the last one.
        comm: of the stages, in their order; every rank enters `step` and `forward`.
        width: elements of a token between layers.
        classes: of the last stage's logits.
        device: torch's name.
    """

    def __init__(
        self, net: torch.nn.Module, comm: Comm, *, width: int, classes: int, device: str
    ) -> None:
        self._net, self._comm, self._stage = net, comm, net.stage
        self._width, self._classes, self._device = width, classes, device

    def step(
        self, batches: list[Batch], loss_of: Loss, seed: Callable[[Batch], None]
    ) -> torch.Tensor:
        """The forward and backward passes of a step. Every rank enters.

        Args:
            batches: its micro-batches, the same on all stages.
            loss_of: the loss that is differentiated.
            seed: called before each forward pass.
        Returns:
            The sum of the losses, times the number of stages on the last one and 0 on the others:
            their sum counts each stage's rows.
        """
        under_way: deque[tuple[torch.Tensor | None, torch.Tensor]] = deque()
        total = torch.zeros((), device=self._device)
        # Not finished yet: finishing waits for the other rank, and lets go of what was sent.
        activations: deque[Callable[[], None]] = deque()
        gradients: deque[Callable[[], None]] = deque()
        for kind, number in order(self._stage, len(batches)):
            if kind == "forward":
                batch = batches[number]
                seed(batch)
                hidden = self._received(batch.ids_BT.shape)
                if hidden is not None:
                    hidden.requires_grad_()
                    # The stage before has made a backward pass for each of these but the newest.
                    while len(gradients) > 1:
                        gradients.popleft()()
                out = self._net(*self._inputs(batch.ids_BT, batch.mask_BT), hidden)
                if self._stage.last:
                    out = loss_of(out, batch)
                    total += out.detach()
                else:
                    activations.append(self._comm.send(out.detach(), self._stage.number + 1))
                under_way.append((hidden, out))
                continue
            hidden, out = under_way.popleft()
            if self._stage.last:
                out.backward()
            else:
                gradient = torch.empty_like(out)
                self._comm.receive(gradient, self._stage.number + 1)
                activations.popleft()()  # the next stage has computed with it
                out.backward(gradient)
            if hidden is not None:
                gradients.append(self._comm.send(hidden.grad, self._stage.number - 1))
        for finish in gradients:
            finish()
        return total * self._stage.count

    @torch.no_grad()
    def forward(self, ids_BT: np.ndarray, mask_BT: np.ndarray) -> torch.Tensor:
        """Logits [B, C] float32 on every stage. Every rank enters."""
        hidden = self._received(ids_BT.shape)
        out = self._net(*self._inputs(ids_BT, mask_BT), hidden)
        if not self._stage.last:
            self._comm.send(out, self._stage.number + 1)()
            out = torch.empty(len(ids_BT), self._classes, device=self._device)
        out = out.contiguous()
        self._comm.broadcast_from([out], [self._stage.count - 1])
        return out

    def _inputs(self, ids_BT: np.ndarray, mask_BT: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        ids = torch.from_numpy(ids_BT).to(self._device, torch.int64)
        return ids, torch.from_numpy(mask_BT).to(self._device)

    def _received(self, shape_BT: tuple[int, ...]) -> torch.Tensor | None:
        """What the stage before gives; None on the first one."""
        if self._stage.first:
            return None
        dtype = self._net.compute_dtype
        hidden = torch.empty(*shape_BT, self._width, dtype=dtype, device=self._device)
        self._comm.receive(hidden, self._stage.number - 1)
        return hidden
