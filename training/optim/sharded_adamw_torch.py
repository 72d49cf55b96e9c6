"""Gradients and AdamW of a model whose parameters FSDP2 divides among the ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
import torch

from howdah.config.training import TrainingSection
from howdah.models.forward.sharded_torch import part_of, rows_of
from howdah.models.weights.stored import Spool, StoredArray
from howdah.training.checkpoint.read import ADAM_M, ADAM_V, MODEL
from howdah.training.comm.base import Comm
from howdah.training.optim.adamw_torch import AdamW

_FETCHED = 2**22
"""Number of elements of a message of a checkpoint's tensor."""


class ShardedGradients:
    """Gradients that FSDP2 sums over all ranks during the backward pass; each rank has its rows."""

    def __init__(self, named: Mapping[str, torch.nn.Parameter]) -> None:
        self._named = named

    dense_elements = 0

    def zero_(self) -> None:
        """Drop the gradients, whose memory is free until the backward pass makes new ones."""
        for parameter in self._named.values():
            parameter.grad = None

    def overlap(self, comm: Comm, *, whole: bool = True) -> None:
        """Do nothing: FSDP2 sums while the backward pass computes."""

    def proceed(self, comm: Comm) -> None:
        """Do nothing: the gradients are already summed."""

    def cut_short(self, comm: Comm, *, whole: bool = True) -> None:
        """Do nothing: a rank that lacks memory ends the run (training/comm/fitting.py)."""

    def reduce_(self, comm: Comm, ids: list[torch.Tensor], *, whole: bool = True) -> None:
        """Do nothing: the gradients are already summed."""

    def norm(self, comm: Comm) -> float:
        """Global L2 norm. Every rank enters with the squares of its rows."""
        squares = [torch.dot(part, part) for part in self._parts()]
        square = torch.stack(squares).double().sum().item() if squares else 0.0
        total = float(comm.sum(np.array([square]))[0])
        return math.sqrt(total) if total >= 0 else total

    def scale_(self, factor: float) -> None:
        """Multiply this rank's gradients by `factor`."""
        for part in self._parts() if factor != 1.0 else ():
            part.mul_(factor)

    def _parts(self) -> list[torch.Tensor]:
        grads = (parameter.grad for parameter in self._named.values())
        parts = (part_of(grad)[0].view(-1) for grad in grads if grad is not None)
        return [part for part in parts if part.numel()]


class ShardedAdamW:
    """AdamW in which each rank has the weights and moments of its rows, and updates those.

    Args:
        directory: local directory for rank 0's copy of the state while a checkpoint is written.
    """

    moments: None = None
    """None: no rank has all moments; see `collect`."""

    def __init__(
        self,
        net: torch.nn.Module,
        trainable: Mapping[str, torch.nn.Parameter],
        training: TrainingSection,
        *,
        directory: str,
    ) -> None:
        self._net, self._trainable, self._directory = net, trainable, directory
        named = [(name, part_of(parameter)[0]) for name, parameter in trainable.items()]
        self._parts = {name: torch.nn.Parameter(part) for name, part in named if part.numel()}
        self._moments = {
            prefix: {name: torch.zeros_like(part) for name, part in named}
            for prefix in (ADAM_M, ADAM_V)
        }
        self._optimizer = AdamW(self._parts.items(), training)

    def load(self, saved: Iterable[tuple[str, np.ndarray]], updates: int) -> None:
        """Set the state after `updates` updates; moments that are not saved are zeros.

        Args:
            saved: (name, whole tensor) pairs, which are read one at a time; this rank keeps its
                rows.
        """
        for moments in self._moments.values():
            for moment in moments.values():
                moment.zero_()
        for full_name, array in saved:
            prefix, _, name = full_name.partition("/")
            moment = self._moments.get(prefix + "/", {}).get(name)
            if moment is not None:
                _, rows = part_of(self._trainable[name])
                moment.copy_(torch.from_numpy(np.ascontiguousarray(array[rows])))
        for name, part in self._parts.items():
            self._optimizer.set_state(part, updates, *(m[name] for m in self._moments.values()))

    def step(self, lr: float) -> None:
        """Update this rank's rows with their gradients."""
        for name, part in self._parts.items():
            parameter = self._trainable[name]
            # FSDP2 may have moved the rows since the last step.
            part.data = part_of(parameter)[0]
            part.grad = None if parameter.grad is None else part_of(parameter.grad)[0]
        self._optimizer.step(lr)
        for part in self._parts.values():
            part.grad = None  # its memory is free with the parameter's

    def share(self, comm: Comm) -> None:
        """Do nothing: FSDP2 gathers the new weights in the next pass."""

    def collect(
        self, comm: Comm, weights: Iterable[tuple[str, np.ndarray]] = ()
    ) -> dict[str, StoredArray] | None:
        """Collect weights and moments of all ranks in a file on rank 0's disk. Every rank enters.

        Only one message is in memory at a time.

        Args:
            weights: ignored, since no rank has all of them.
        Returns:
            The tensors by their names in a checkpoint; None on other ranks.
        Raises:
            StorageError: rank 0's disk is full or fails; rank 0 raises it after all collectives.
        """
        tensors = self._weights()
        for prefix, moments in self._moments.items():
            tensors |= {prefix + name: (name, moment) for name, moment in moments.items()}
        return self._collected(comm, tensors)

    def collect_weights(
        self, comm: Comm, weights: Iterable[tuple[str, np.ndarray]] = ()
    ) -> dict[str, StoredArray] | None:
        """`collect`, but only the weights, by their plain names."""
        stored = self._collected(comm, self._weights())
        return stored and {name.removeprefix(MODEL): array for name, array in stored.items()}

    def _weights(self) -> dict[str, tuple[str, torch.Tensor]]:
        return {MODEL + n: (n, part_of(p)[0]) for n, p in self._net.named_parameters()}

    def _collected(
        self, comm: Comm, tensors: Mapping[str, tuple[str, torch.Tensor]]
    ) -> dict[str, StoredArray] | None:
        """Collect tensors on rank 0.

        Args:
            tensors: {name in a checkpoint: (the parameter's name, this rank's rows)}.
        """
        spool = Spool(self._directory) if comm.rank == 0 else None
        shapes = {name: tuple(p.shape) for name, p in self._net.named_parameters()}
        buffer, stored = torch.empty(_FETCHED), {}
        for full_name, (name, part) in tensors.items():
            shape, begun = shapes[name], 0 if spool is None else spool.size
            row = math.prod(shape[1:])
            for owner in range(comm.size):
                first, end = rows_of(shape[0], owner, comm.size)
                for start in range(0, (end - first) * row, _FETCHED):
                    message = buffer[: min(_FETCHED, (end - first) * row - start)]
                    if owner == comm.rank:
                        message.copy_(part.reshape(-1)[start : start + message.numel()])
                    comm.fetch(message, owner)
                    if spool is not None:
                        spool.add(message.numpy())
            if spool is not None:
                stored[full_name] = spool.at(begun, np.dtype("<f4"), shape)
        if spool is None:
            return None
        spool.check()
        return stored
