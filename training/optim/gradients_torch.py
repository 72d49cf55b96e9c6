"""Gradients in one flat float32 buffer: accumulated in place, reduced and scaled as a whole."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch

from howdah.training.comm.base import NODE_MESSAGE, Comm, split_evenly
from howdah.training.optim.flat_torch import FlatLayout, Shares


class FlatGradients:
    """The gradients of a model's trainable parameters: each `.grad` is a view of the buffer.

    Args:
        named: trainable parameters by name.
        words: the name of the word embeddings.
    """

    def __init__(self, named: Mapping[str, torch.nn.Parameter], *, words: str) -> None:
        self.layout = FlatLayout(named, words=words)
        self.flat = torch.zeros(self.layout.total, device=next(iter(named.values())).device)
        for name, parameter in named.items():
            parameter.grad = self.layout.view(self.flat, name, parameter)
        self._words = named[words].grad if words in named else None
        self._dense = self.flat[: self.layout.table_start]
        self._shares: Shares | None = None
        self._touched: torch.Tensor | None = None
        """int64[U]: ids, each once, of the table's rows that are not zero; None: unknown."""
        self.arrange(None, sparse_embeddings=False)

    def arrange(
        self, groups: int | None, *, sparse_embeddings: bool, shares: Shares | None = None
    ) -> None:
        """Set how gradients are sent from now on; all ranks of a world must do the same.

        Args:
            groups: number of messages of a reduction; None: by size.
            sparse_embeddings: send only those rows of the word embeddings' gradient that a batch
                touches.
            shares: each rank needs only the sum of its share; None: every rank needs all.
        """
        self._table = self._words if sparse_embeddings else None
        sizes = self.layout.sizes
        dense = sizes if self._table is None else sizes[:-1]
        lengths: dict[int, int] = {}
        for size, group in zip(dense, split_evenly(dense, groups), strict=True):
            lengths[group] = lengths.get(group, 0) + size
        self._messages = list(self.flat[: sum(dense)].split(list(lengths.values())))
        self._within_node = self._messages
        most = sum(dense) or 1
        if groups is None and self.flat.device.type == "cpu":
            most = NODE_MESSAGE
            self._within_node = [p for m in self._messages for p in m.split(most)]
        self._shares = shares
        if shares is not None:
            sent = list(lengths.values())
            self._owned = shares.cut(sent, max(sent, default=1))
            self._owned_within_node = shares.cut(sent, most)
        self._touched = None

    def zero_(self) -> None:
        """Set the gradients to zero at the beginning of a step."""
        if self._touched is None:
            self.flat.zero_()
            return
        # The word embeddings are half of a small model, and a batch touches a hundredth of them.
        self._dense.zero_()
        self._words.index_fill_(0, self._touched, 0.0)
        self._touched = None

    def reduce_(self, comm: Comm, ids: list[torch.Tensor]) -> None:
        """Sum over all ranks. Every rank enters.

        If the ranks have shares, only this rank's share and the word embeddings' rows that were
        sent hold the sum; the rest is undefined.

        Args:
            ids: token ids of this rank's micro-batches of the step.
        """
        if comm.size == 1:
            if self._words is not None:
                self._touched = _unique(ids)
            return
        if self._shares is not None:
            parts, owners = self._owned_within_node if comm.within_node else self._owned
            comm.reduce_to([self.flat[start:end] for start, end in parts], owners)
        else:
            messages = self._within_node if comm.within_node else self._messages
            for message, reduced in zip(messages, comm.reduce_gradients(messages), strict=True):
                if reduced is not message:
                    message.copy_(reduced)
        if self._table is not None:
            self._reduce_rows(comm, _unique(ids))

    def _reduce_rows(self, comm: Comm, rank_ids_U: torch.Tensor) -> None:
        ids, values = comm.reduce_rows(rank_ids_U, self._table[rank_ids_U])
        self._table.index_fill_(0, rank_ids_U, 0.0)
        # Within one call a GPU adds rows of the same id in an arbitrary order, so that ranks would
        # get different bits. Ids ascend within a rank, so a call per ascending part has each once.
        starts = (ids[1:] <= ids[:-1]).nonzero().flatten().cpu() + 1
        for part, rows in zip(ids.tensor_split(starts), values.tensor_split(starts), strict=True):
            self._table.index_add_(0, part, rows)
        self._touched = torch.unique(ids)

    def norm(self, comm: Comm) -> float:
        """Global L2 norm. Every rank enters if they have shares.

        One rank sums the squares of each block, and the sums are added in the order of the blocks.
        So the bits are the same, whether one rank has all blocks or many have a share.
        """
        first, last = (0, self.layout.total) if self._shares is None else self._shares.part
        end = self.layout.total if self._touched is None else self.layout.table_start
        blocks = [block for block in self.layout.blocks() if block[1] <= end]
        blocks_here = [number for number, (a, b) in enumerate(blocks) if first <= a and b <= last]
        squares = np.zeros(len(blocks))
        if blocks_here:
            sums = torch.stack(
                [_square(self.flat[slice(*blocks[number])]) for number in blocks_here]
            )
            squares[blocks_here] = sums.cpu().numpy()
        if self._shares is not None:
            squares = comm.sum(squares)  # exact, since all but one rank add 0
        total = float(squares.sum())
        if self._touched is not None:  # these rows are the same on every rank
            total += _square(self._words[self._touched].flatten()).item()
        return math.sqrt(total) if total >= 0 else total

    def scale_(self, factor: float) -> None:
        """Multiply all gradients, or this rank's share of them, by `factor`."""
        if factor == 1.0:
            return
        if self._shares is not None:
            self.flat[slice(*self._shares.part)].mul_(factor)
            return
        if self._touched is None:
            self.flat.mul_(factor)
            return
        self._dense.mul_(factor)
        self._words.index_copy_(0, self._touched, self._words[self._touched] * factor)


def _unique(ids: list[torch.Tensor]) -> torch.Tensor:
    return torch.unique(torch.cat([part.reshape(-1) for part in ids]))


def _square(x_N: torch.Tensor) -> torch.Tensor:
    # vector_norm sums in float32 on one thread: it is four times slower and 0.3 % off at 43 M
    # elements.
    return torch.dot(x_N, x_N)
