"""The layout of a model's trainable tensors in a flat buffer, and its division among ranks."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from howdah.core.machine import return_free_memory

ALIGNED = 16
"""Float32 elements in a cache line. A tensor is only cut at multiples of it, so that fused AdamW
divides it into the same vectors, whole or in parts, and computes the same bits."""
_BLOCKS, _BLOCK_ELEMENTS = 64, 2**20


class FlatLayout:
    """The positions of tensors in a flat float32 buffer, word embeddings last.

    Args:
        named: trainable parameters by name.
        words: the name of the word embeddings, which may be frozen and so missing.
    """

    def __init__(self, named: Mapping[str, torch.nn.Parameter], *, words: str) -> None:
        # The word embeddings are last, so that the tensors that are sent dense are contiguous.
        self.names = sorted(named, key=lambda name: name == words)
        self.sizes = [named[name].numel() for name in self.names]
        """Number of elements of each tensor."""
        ends = list(itertools.accumulate(self.sizes))
        self.starts = dict(zip(self.names, [0, *ends], strict=False))
        self.total = ends[-1]
        self.table_start = self.starts.get(words, self.total)
        """Start of the word embeddings; the end of the buffer if they are not trained."""
        even = -(-self.total // (_BLOCKS * ALIGNED)) * ALIGNED
        starts = list(self.starts.values())
        self.grid: list[int] = []
        """Starts of blocks. They do not depend on the number of ranks, so that values computed by
        blocks have the same bits however the blocks are divided."""
        for at in range(0, self.total, min(_BLOCK_ELEMENTS, even)):
            tensor = starts[bisect.bisect_right(starts, at) - 1]
            self.grid.append(tensor + (at - tensor) // ALIGNED * ALIGNED)

    def blocks(self) -> list[tuple[int, int]]:
        """(start, end) of each block; the start of the word embeddings is a boundary."""
        cuts = sorted({*self.grid, self.table_start, self.total})
        return list(itertools.pairwise(cuts))

    def view(self, flat: torch.Tensor, name: str, like: torch.Tensor) -> torch.Tensor:
        """The tensor of this name in a buffer."""
        start = self.starts[name]
        return flat[start : start + like.numel()].view_as(like)


def flatten(named: Mapping[str, torch.nn.Parameter], *, words: str) -> torch.Tensor:
    """Move parameters into one buffer of the layout. Returns the buffer.

    Each tensor's previous memory is freed before the next one is moved.
    """
    layout = FlatLayout(named, words=words)
    flat = torch.empty(layout.total, device=next(iter(named.values())).device)
    for name, parameter in named.items():
        place = layout.view(flat, name, parameter)
        place.copy_(parameter.detach())
        parameter.data = place
    return_free_memory()
    return flat


@dataclass(frozen=True)
class Shares:
    """Division of the blocks among ranks: each has neighbouring ones, as evenly as blocks allow."""

    bounds: tuple[int, ...]
    """Start of each rank's share, then the end of the buffer."""
    rank: int

    @classmethod
    def of(cls, layout: FlatLayout, rank: int, world: int) -> Shares:
        """The shares of a world.

        >>> layout = FlatLayout({"a": torch.nn.Parameter(torch.zeros(100))}, words="")
        >>> Shares.of(layout, rank=0, world=2).bounds
        (0, 48, 100)
        """
        grid = [*layout.grid, layout.total]
        count = len(layout.grid)
        return cls(tuple(grid[count * number // world] for number in range(world + 1)), rank)

    @property
    def part(self) -> tuple[int, int]:
        """(start, end) of this rank's share."""
        return self.bounds[self.rank], self.bounds[self.rank + 1]

    def cut(self, sizes: Sequence[int], most: int) -> tuple[list[tuple[int, int]], list[int]]:
        """Divide neighbouring messages where the owner changes.

        Args:
            sizes: number of elements of each message, from the beginning of the buffer.
            most: maximum number of elements of a part.
        Returns:
            ([(start, end) of each part], [its owner]).
        """
        cuts, at = set(self.bounds), 0
        for size in sizes:
            cuts |= set(range(at, at + size, most))
            at += size
        cuts = sorted(cut for cut in cuts | {at} if cut <= at)
        parts = list(itertools.pairwise(cuts))
        return parts, [self._owner(start) for start, _ in parts]

    def _owner(self, at: int) -> int:
        return sum(bound <= at for bound in self.bounds[1:])
