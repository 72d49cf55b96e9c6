"""Gradients in one flat float32 buffer: accumulated in place, reduced and scaled as a whole."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from training.comm.base import NODE_MESSAGE, Comm, split_evenly

__all__ = ["FlatGradients"]


class FlatGradients:
    """The gradients of a model's trainable parameters: each `.grad` is a view of the buffer.

    Args:
        named: trainable parameters by name.
        words: the name of the word embeddings.
    """

    def __init__(self, named: Mapping[str, torch.nn.Parameter], *, words: str) -> None:
        # The word embeddings go last: the tensors sent dense are then contiguous.
        order = sorted(named, key=lambda name: name == words)
        self._sizes = [named[name].numel() for name in order]
        self._flat = torch.zeros(sum(self._sizes), device=named[order[0]].device)
        start = 0
        for name, size in zip(order, self._sizes, strict=True):
            named[name].grad = self._flat[start : start + size].view_as(named[name])
            start += size
        self._words = named[order[-1]].grad if order[-1] == words else None
        self._dense = self._flat if self._words is None else self._flat[: start - self._sizes[-1]]
        self._touched: torch.Tensor | None = None
        """int64[U]: ids, each once, of the table's rows that are not zero; None: any may be."""
        self.arrange(None, sparse_embeddings=False)

    def arrange(self, groups: int | None, *, sparse_embeddings: bool) -> None:
        """Set how gradients are sent from now on; the same on all ranks of a world.

        Args:
            groups: training.fusion_groups: messages of a reduction; None: by size.
            sparse_embeddings: send only those rows of the word embeddings' gradient that a batch
                touches.
        """
        self._table = self._words if sparse_embeddings else None
        dense = self._sizes if self._table is None else self._sizes[:-1]
        lengths: dict[int, int] = {}
        for size, group in zip(dense, split_evenly(dense, groups), strict=True):
            lengths[group] = lengths.get(group, 0) + size
        self._messages = list(self._flat[: sum(dense)].split(list(lengths.values())))
        self._within_node = self._messages
        if groups is None and self._flat.device.type == "cpu":
            self._within_node = [p for m in self._messages for p in m.split(NODE_MESSAGE)]
        self._touched = None

    def zero_(self) -> None:
        """Zero the gradients, to begin a step."""
        if self._touched is None:
            self._flat.zero_()
            return
        # The word embeddings are half of a small model, and a batch touches a hundredth of them.
        self._dense.zero_()
        self._words.index_fill_(0, self._touched, 0.0)
        self._touched = None

    def reduce_(self, comm: Comm, ids: list[torch.Tensor]) -> None:
        """Sum over all ranks. Every rank enters.

        Args:
            ids: token ids of this rank's micro-batches of the step.
        """
        if comm.size == 1:
            if self._words is not None:
                self._touched = _unique(ids)
            return
        messages = self._within_node if comm.within_node else self._messages
        for message, reduced in zip(messages, comm.reduce_gradients(messages), strict=True):
            if reduced is not message:
                message.copy_(reduced)
        if self._table is not None:
            self._reduce_rows(comm, _unique(ids))

    def _reduce_rows(self, comm: Comm, own_ids_U: torch.Tensor) -> None:
        ids, values = comm.reduce_rows(own_ids_U, self._table[own_ids_U])
        self._table.index_fill_(0, own_ids_U, 0.0)
        # Within one call a GPU adds rows of the same id in an arbitrary order: ranks would get
        # different bits. Ids ascend within a rank, so that a call per ascending part has each once.
        starts = (ids[1:] <= ids[:-1]).nonzero().flatten().cpu() + 1
        for part, rows in zip(ids.tensor_split(starts), values.tensor_split(starts), strict=True):
            self._table.index_add_(0, part, rows)
        self._touched = torch.unique(ids)

    def norm(self) -> torch.Tensor:
        """Global L2 norm, a scalar tensor."""
        if self._touched is None:
            return _square(self._flat).sqrt()
        return (_square(self._dense) + _square(self._words[self._touched].flatten())).sqrt()

    def scale_(self, factor: float) -> None:
        """Multiply all gradients by `factor`."""
        if factor == 1.0:
            return
        if self._touched is None:
            self._flat.mul_(factor)
            return
        self._dense.mul_(factor)
        self._words.index_copy_(0, self._touched, self._words[self._touched] * factor)


def _unique(ids: list[torch.Tensor]) -> torch.Tensor:
    return torch.unique(torch.cat([part.reshape(-1) for part in ids]))


def _square(x_N: torch.Tensor) -> torch.Tensor:
    # vector_norm sums in float32 on one thread: four times slower, and 0.3 % off at 43 M elements.
    return torch.dot(x_N, x_N)
