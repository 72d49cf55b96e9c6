"""Gradients and AdamW of a model whose layers ranks divide (training.parallel.tensor)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import torch

from howdah.config.model import TrainingSection
from howdah.models.weights.stored import StoredArray, spooled
from howdah.training.checkpoint.read import MODEL
from howdah.training.comm.base import Comm
from howdah.training.comm.groups import Groups
from howdah.training.model.split_torch import Split
from howdah.training.optim.adamw_torch import WholeAdamW
from howdah.training.optim.gradients_torch import FlatGradients

__all__ = ["SplitAdamW", "SplitGradients"]


class SplitGradients(FlatGradients):
    """The gradients of this rank's parts, and of what every rank has.

    Args:
        named: trainable parameters by name.
        words: the name of the word embeddings.
        split: which of them are parts.
    """

    def __init__(
        self, named: Mapping[str, torch.nn.Parameter], *, words: str, split: Split
    ) -> None:
        super().__init__(named, words=words)
        self._split = split
        self._parts = [p.grad.view(-1) for n, p in named.items() if split.axis(n) is not None]

    def norm(self, comm: Comm) -> float:
        """Global L2 norm. Every rank that divides the model enters, and has the same bits: what
        each has of its own is added up, and what all have is their mean."""
        own = sum(torch.dot(part, part).item() for part in self._parts)
        all_have = super().norm(comm) ** 2 - own
        parts, same = self._split.comm.sum(np.array([own, all_have]))
        total = parts + same / self._split.comm.size
        return math.sqrt(total) if total >= 0 else total


class SplitAdamW(WholeAdamW):
    """AdamW of this rank's parts, and of what every rank has.

    Args:
        trainable, training: as WholeAdamW.
        split, groups: how the model and the ranks are divided.
        directory: on a local disk, for rank 0's copy of the state while a checkpoint is written.
    """

    def __init__(
        self,
        trainable: Mapping[str, torch.nn.Parameter],
        training: TrainingSection,
        *,
        split: Split,
        groups: Groups,
        directory: str,
    ) -> None:
        super().__init__(trainable, training)
        self._split, self._directory = split, directory
        self._gives = groups.rows.rank == 0
        """This rank is of the group that rank 0 is in, which has the whole model together."""

    def load(self, saved: Iterable[tuple[str, np.ndarray]], updates: int) -> None:
        own = ((full, self._split.own(full.partition("/")[2], array)) for full, array in saved)
        super().load(own, updates)

    def collect(
        self, comm: Comm, weights: Iterable[tuple[str, np.ndarray]]
    ) -> dict[str, StoredArray] | None:
        """Weights and moments of all ranks, in a file of rank 0's disk. The ranks that divide the
        model with rank 0 enter; the others have the same.

        One tensor is in memory at a time.

        Args:
            weights: by their names in a checkpoint.
        Returns:
            By name, as in a checkpoint; None on other ranks.
        Raises:
            StorageError: on rank 0, which has entered all collectives nevertheless: its disk is
                full or fails.
        """
        if not self._gives:
            return None
        arrays = self._joined([*weights, *self.moments()])
        return spooled(self._directory, arrays, keeps=comm.rank == 0)

    def _joined(self, arrays: Iterable[tuple[str, np.ndarray]]) -> Iterator[tuple[str, np.ndarray]]:
        """The whole tensors, on rank 0. Every rank of its group enters."""
        among = self._split.comm
        for name, array in arrays:
            axis = self._split.axis(name.partition("/")[2])
            if axis is None:
                yield name, array
                continue
            parts = []
            for owner in range(among.size):
                message = torch.from_numpy(np.array(array, order="C"))
                among.fetch(message, owner)
                parts.append(message.numpy())
            yield name, np.concatenate(parts, axis)

    def collect_weights(
        self, comm: Comm, weights: Iterable[tuple[str, np.ndarray]]
    ) -> dict[str, np.ndarray] | None:
        """All weights by their plain names, on rank 0; as `collect` otherwise."""
        if not self._gives:
            return None
        named = ((MODEL + name, array) for name, array in weights)
        return {name.removeprefix(MODEL): np.array(a) for name, a in self._joined(named)}
