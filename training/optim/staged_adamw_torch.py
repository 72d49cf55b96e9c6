"""Gradients and AdamW of a stage of a model (training.parallel.pipeline)."""

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
from howdah.training.optim.adamw_torch import WholeAdamW
from howdah.training.optim.gradients_torch import FlatGradients

__all__ = ["StagedAdamW", "StagedGradients"]


class StagedGradients(FlatGradients):
    """The gradients of this rank's stage.

    Args:
        named: trainable parameters by name.
        words: the name of the word embeddings.
        stages: the ranks of all stages of a model.
    """

    def __init__(
        self, named: Mapping[str, torch.nn.Parameter], *, words: str, stages: Comm
    ) -> None:
        super().__init__(named, words=words)
        self._stages = stages

    def norm(self, comm: Comm) -> float:
        """Global L2 norm. Every rank of all stages enters."""
        total = float(self._stages.sum(np.array([super().norm(comm) ** 2]))[0])
        return math.sqrt(total) if total >= 0 else total


class StagedAdamW(WholeAdamW):
    """AdamW of this rank's stage.

    Args:
        trainable, training: as WholeAdamW.
        groups: how the ranks are divided; `model` are the stages.
        directory: on a local disk, for rank 0's copy of the state while a checkpoint is written.
    """

    def __init__(
        self,
        trainable: Mapping[str, torch.nn.Parameter],
        training: TrainingSection,
        *,
        groups: Groups,
        directory: str,
    ) -> None:
        super().__init__(trainable, training)
        self._stages, self._directory = groups.model, directory
        self._gives = groups.rows.rank == 0
        """This rank is of the group that rank 0 is in, which has the whole model together."""

    def load(self, saved: Iterable[tuple[str, np.ndarray]], updates: int) -> None:
        own = ((n, array) for n, array in saved if n.partition("/")[2] in self._trainable)
        super().load(own, updates)

    def collect(
        self, comm: Comm, weights: Iterable[tuple[str, np.ndarray]]
    ) -> dict[str, StoredArray] | None:
        """Weights and moments of all stages, in a file of rank 0's disk. The stages of rank 0's
        model enter; those of the others have the same.

        One tensor is in memory at a time.

        Args:
            weights: by their names in a checkpoint.
        Returns:
            By name, as in a checkpoint; None on other ranks.
        Raises:
            StorageError: on rank 0, which has entered all collectives nevertheless: its disk is
                full or fails.
        """
        return self._collected(comm, dict([*weights, *self.moments()]))

    def collect_weights(
        self, comm: Comm, weights: Iterable[tuple[str, np.ndarray]]
    ) -> dict[str, StoredArray] | None:
        """All weights by their plain names, on rank 0; as `collect` otherwise."""
        found = self._collected(comm, {MODEL + name: array for name, array in weights})
        return found and {name.removeprefix(MODEL): array for name, array in found.items()}

    def _collected(self, comm: Comm, own: dict[str, np.ndarray]) -> dict[str, StoredArray] | None:
        if not self._gives:
            return None
        return spooled(self._directory, self._gathered(own), keeps=comm.rank == 0)

    def _gathered(self, own: dict[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
        """All stages' arrays, on rank 0. Every stage enters."""
        # Weights first, as every checkpoint has them.
        places = self._stages.gather_json({name: list(array.shape) for name, array in own.items()})
        groups: dict[bool, list[tuple[str, list[int], int]]] = {True: [], False: []}
        for owner, shapes in enumerate(places):
            for name, shape in shapes.items():
                groups[name.startswith(MODEL)].append((name, shape, owner))
        for name, shape, owner in groups[True] + groups[False]:
            mine = self._stages.rank == owner
            message = torch.from_numpy(np.array(own[name])) if mine else torch.empty(shape)
            self._stages.fetch(message, owner)
            yield name, message.numpy()
