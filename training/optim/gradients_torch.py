"""Gradients in one flat float32 buffer: accumulated in place, reduced and scaled as a whole."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from functools import partial

import numpy as np
import torch

from howdah.models.forward.kernels_torch import on_device
from howdah.training.comm.base import (
    NETWORK_MESSAGE,
    NODE_MESSAGE,
    Comm,
    network_message,
    split_evenly,
)
from howdah.training.optim.flat_torch import FlatLayout, Shares
from howdah.training.optim.messages_torch import Messages, rows_from_the_wire, rows_on_the_wire


class FlatGradients:
    """The gradients of a model's trainable parameters: each `.grad` is a view of the buffer.

    Args:
        named: trainable parameters by name, in the order of the forward pass.
    """

    def __init__(self, named: Mapping[str, torch.nn.Parameter], *, words: str) -> None:
        self.layout = FlatLayout(named, words=words)
        self.flat = torch.zeros(self.layout.total, device=next(iter(named.values())).device)
        self._spans: dict[int, tuple[int, int]] = {}
        for number, (name, parameter) in enumerate(named.items()):
            parameter.grad = self.layout.view(self.flat, name, parameter)
            start = self.layout.starts[name]
            self._spans[number] = start, start + parameter.numel()
            parameter.register_post_accumulate_grad_hook(partial(self._added, number))
        self._words = named[words].grad if words in named else None
        self._dense = self.flat[: self.layout.table_start]
        self._shares: Shares | None = None
        self._touched: torch.Tensor | None = None
        """int64[U]: ids, each once, of the table's rows that are not zero; None: unknown."""
        self.arrange(None, sparse_embeddings=False)

    def arrange(
        self,
        groups: int | None,
        *,
        sparse_embeddings: bool,
        shares: Shares | None = None,
        compression: str = "none",
    ) -> None:
        """Set how gradients are sent from now on; all ranks of a world must do the same.

        Args:
            groups: number of messages of a reduction; None: by size.
            sparse_embeddings: send only those rows of the word embeddings' gradient that a batch
                touches.
            shares: each rank needs only the sum of its share; None: every rank needs all.
            compression: "none", "bf16" or "int8".
        """
        self._groups, self._shares = groups, shares
        self._table = self._words if sparse_embeddings else None
        self._owned: tuple[list[torch.Tensor], list[int]] | None = None
        self._touched = None
        self.send_in(compression)

    def send_in(self, compression: str) -> None:
        """Send gradients in these numbers from the next step on; drop what is held back."""
        self._compression = compression
        self._messages: Messages | None = None

    @property
    def dense_elements(self) -> int:
        """Number of gradients that are sent as they are, not as rows."""
        return self.layout.total if self._table is None else self.layout.table_start

    def overlap(self, comm: Comm, *, whole: bool = True) -> None:
        """Send each message as soon as the next backward pass, the last before `reduce_`, has
        added to it, where the world overlaps both. Every rank enters.

        Args:
            whole: see `reduce_`.
        """
        if self._begin_early(comm):
            self._sums(comm).arm(comm, whole=whole)

    def proceed(self, comm: Comm) -> None:
        """Send on what the backward pass has begun to send: a collective that comes before
        `reduce_` would have to wait for it, and keep it waiting. Every rank enters."""
        if self._messages is not None:
            self._messages.proceed(comm)

    def cut_short(self, comm: Comm, *, whole: bool = True) -> None:
        """Send what no backward pass of this step will complete, for a rank that lacks memory. The
        others have begun their messages in the pass, and messages have one order on all ranks."""
        if self._begin_early(comm):
            self._sums(comm).begin(comm, whole=whole)

    def _begin_early(self, comm: Comm) -> bool:
        return self._shares is None and comm.overlaps(on_gpu=self.flat.is_cuda)

    def _added(self, number: int, parameter: torch.nn.Parameter) -> None:
        if self._messages is not None:
            self._messages.added(number)

    def _sums(self, comm: Comm) -> Messages:
        if self._messages is None:
            self._messages = Messages(self.flat, self._slices(comm), self._spans, self._compression)
        return self._messages

    def _owned_parts(self, comm: Comm) -> tuple[list[torch.Tensor], list[int]]:
        """The messages of ranks that have shares, and the owner of each."""
        if self._owned is None:
            sizes = [end - start for start, end in self._slices(comm)]
            parts, owners = self._shares.cut(sizes, max(sizes, default=1))
            self._owned = [self.flat[start:end] for start, end in parts], owners
        return self._owned

    def _slices(self, comm: Comm) -> list[tuple[int, int]]:
        """(start, end) of each message."""
        sizes = self.layout.sizes if self._table is None else self.layout.sizes[:-1]
        early = self._begin_early(comm) and not self.flat.is_cuda
        most = network_message(comm.size) if early else NETWORK_MESSAGE
        lengths: dict[int, int] = {}
        for size, group in zip(sizes, split_evenly(sizes, self._groups, most=most), strict=True):
            lengths[group] = lengths.get(group, 0) + size
        ends = list(itertools.accumulate(lengths.values()))
        slices = list(zip([0, *ends], ends, strict=False))
        if self._groups is None and self.flat.device.type == "cpu" and comm.within_node:
            slices = [
                (at, min(at + NODE_MESSAGE, end))
                for start, end in slices
                for at in range(start, end, NODE_MESSAGE)
            ]
        return slices

    def zero_(self) -> None:
        """Set the gradients to zero at the beginning of a step."""
        if self._touched is None:
            self.flat.zero_()
            return
        # The word embeddings are half of a small model, and a batch touches a hundredth of them.
        self._dense.zero_()
        self._words.index_fill_(0, self._touched, 0.0)
        self._touched = None

    def reduce_(self, comm: Comm, ids: list[torch.Tensor], *, whole: bool = True) -> None:
        """Sum over all ranks. Every rank enters.

        If the ranks have shares, only this rank's share and the word embeddings' rows that were
        sent hold the sum; the rest is undefined.

        Args:
            ids: token ids of this rank's micro-batches of the step, in the host's memory.
            whole: send what int8 has held back too, so that nothing is held back afterwards.
        """
        if comm.size == 1:
            # A GPU goes through the whole table before the host has found the rows.
            if self._words is not None and not self.flat.is_cuda:
                self._touched = self._unique(ids)
            return
        if self._shares is None:
            self._sums(comm).reduce_(comm, whole=whole)
        else:
            comm.reduce_to(*self._owned_parts(comm))
        if self._table is not None:
            self._reduce_rows(comm, self._unique(ids))

    def _unique(self, ids: list[torch.Tensor]) -> torch.Tensor:
        """The ids, each once, ascending. The host finds them, while a GPU still computes."""
        unique_U = torch.unique(torch.cat([part.reshape(-1) for part in ids]))
        return on_device(unique_U.numpy(), self.flat.device)

    def _reduce_rows(self, comm: Comm, rank_ids_U: torch.Tensor) -> None:
        sent = rows_on_the_wire(self._table[rank_ids_U], self._compression)
        ids, sent = comm.reduce_rows(rank_ids_U, sent)
        values = rows_from_the_wire(sent)
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
        sums = [_square(self.flat[slice(*blocks[number])]) for number in blocks_here]
        if self._touched is not None:  # these rows are the same on every rank
            sums.append(_square(self._words[self._touched].flatten()))
        values = torch.stack(sums).cpu().numpy() if sums else np.zeros(0)  # a GPU computes them now
        squares = np.zeros(len(blocks))
        squares[blocks_here] = values[: len(blocks_here)]
        if self._shares is not None:
            squares = comm.sum(squares)  # exact, since all but one rank add 0
        total = float(squares.sum())
        if self._touched is not None:
            total += float(values[-1])
        if not math.isfinite(total) and self._messages is not None:
            self._messages.forget()
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


def _square(x_N: torch.Tensor) -> torch.Tensor:
    # vector_norm sums in float32 on one thread: it is four times slower and 0.3 % off at 43 M
    # elements.
    return torch.dot(x_N, x_N)
