"""AdamW in torch: with all moments on every rank, or divided among the ranks (ZeRO-1).

Source of the division: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion
Parameter Models", stage 1. Why it is done so: docs/decisions/sharded-optimizer.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import torch

from howdah.config.model import TrainingSection
from training.checkpoint.read import ADAM_M, ADAM_V
from training.checkpoint.stored import Spool, StoredArray
from training.comm.base import NODE_MESSAGE, Comm
from training.model import parameters
from training.optim.flat_torch import Shares
from training.optim.gradients_torch import FlatGradients

__all__ = ["DividedAdamW", "WholeAdamW", "adamw", "set_state", "update"]

_MOMENTS = (("exp_avg", ADAM_M), ("exp_avg_sq", ADAM_V))
"""What torch's AdamW calls its moments, and what a checkpoint does."""
_MESSAGE, _FETCHED = 2**24, 2**22
"""Elements of a message of weights between nodes, and of one of moments for a checkpoint."""


def adamw(
    named: Iterable[tuple[str, torch.Tensor]], training: TrainingSection, peak: float
) -> torch.optim.AdamW | None:
    """The optimizer of tensors that may be parts of those of these names; None without any."""
    decayed: dict[bool, list[torch.Tensor]] = {True: [], False: []}
    for name, tensor in named:
        decayed[parameters.decays(name)].append(tensor)
    groups = [
        {"params": tensors, "weight_decay": training.weight_decay if on else 0.0}
        for on, tensors in decayed.items()
        if tensors
    ]
    betas = (training.adam_beta1, training.adam_beta2)
    return groups and torch.optim.AdamW(
        groups, lr=peak, betas=betas, eps=training.adam_epsilon, fused=True
    )


def update(optimizer: torch.optim.AdamW | None, lr: float) -> None:
    """One step of it, at this learning rate; nothing without an optimizer."""
    if not optimizer:
        return
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()


def set_state(
    optimizer: torch.optim.AdamW,
    parameter: torch.nn.Parameter,
    updates: int,
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
) -> None:
    """Set a parameter's state after `updates` updates, without copying the moments."""
    optimizer.state[parameter] = {
        "step": _count(updates, parameter.device),
        "exp_avg": exp_avg,
        "exp_avg_sq": exp_avg_sq,
    }


def _count(updates: int, device: torch.device) -> torch.Tensor:
    """torch's counter of a parameter's updates."""
    return torch.tensor(float(updates), dtype=torch.float32, device=device)


class WholeAdamW:
    """Every rank has all moments, and computes the same update.

    Args:
        trainable: parameters by name.
        training: the configuration's section.
        peak: the first learning rate.
    """

    collect: None = None
    """Every rank has all of it: there is nothing to collect."""

    def __init__(
        self, trainable: Mapping[str, torch.nn.Parameter], training: TrainingSection, peak: float
    ) -> None:
        self._trainable = trainable
        self._optimizer = adamw(trainable.items(), training, peak)

    def load(self, saved: Iterable[tuple[str, np.ndarray]], updates: int) -> None:
        """Set the state after `updates` updates; zeros where no moment is saved."""
        saved = dict(saved)
        for name, parameter in self._trainable.items():
            own = []
            for _, prefix in _MOMENTS:
                moment = torch.zeros_like(parameter, memory_format=torch.preserve_format)
                if prefix + name in saved:
                    moment.copy_(torch.from_numpy(saved[prefix + name]))
                own.append(moment)
            set_state(self._optimizer, parameter, updates, *own)

    def step(self, lr: float) -> None:
        """Update the weights by their gradients."""
        update(self._optimizer, lr)

    def share(self, comm: Comm) -> None:
        """Every rank has computed the new weights itself."""

    def moments(self) -> Iterator[tuple[str, np.ndarray]]:
        """The moments as in a checkpoint; copy what is kept: they may be its own memory."""
        for key, prefix in _MOMENTS:
            for name, parameter in self._trainable.items():
                yield prefix + name, self._optimizer.state[parameter][key].to("cpu").numpy()


class DividedAdamW:
    """Each rank has the moments of its share of the weights, updates it and sends it to all.

    Args:
        trainable: parameters by name.
        weights: the flat buffer that they are in (`flatten`).
        gradients: theirs.
        shares: which part of the buffers is this rank's.
        training, peak: as WholeAdamW.
        directory: on a local disk, for rank 0's copy of the state while a checkpoint is written.
    """

    moments: None = None
    """No rank has all of them: `collect`."""

    def __init__(
        self,
        trainable: Mapping[str, torch.nn.Parameter],
        weights: torch.Tensor,
        gradients: FlatGradients,
        shares: Shares,
        training: TrainingSection,
        peak: float,
        *,
        directory: str,
    ) -> None:
        self._trainable, self._layout, self._shares = trainable, gradients.layout, shares
        self._weights, self._directory = weights, directory
        first, end = shares.own
        self._moments = {
            key: torch.zeros(end - first, device=self._weights.device) for key, _ in _MOMENTS
        }
        self._parts: list[tuple[torch.Tensor, slice]] = []
        named = []
        for name, size in zip(self._layout.names, self._layout.sizes, strict=True):
            start = self._layout.starts[name]
            a, b = max(start, first), min(start + size, end)
            if a < b:
                part = torch.nn.Parameter(self._weights[a:b])
                part.grad = gradients.flat[a:b]
                self._parts.append((part, slice(a - first, b - first)))
                named.append((name, part))
        self._optimizer = adamw(named, training, peak)
        whole = [self._layout.total]
        self._sent = {
            near: shares.cut(whole, NODE_MESSAGE if near else _MESSAGE) for near in (True, False)
        }

    def load(self, saved: Iterable[tuple[str, np.ndarray]], updates: int) -> None:
        """Set the state after `updates` updates; zeros where no moment is saved.

        Args:
            saved: whole tensors, of which this rank keeps its part, one after the other.
        """
        first, end = self._shares.own
        keys = {prefix: key for key, prefix in _MOMENTS}
        for key in keys.values():
            self._moments[key].zero_()
        for full_name, array in saved:
            prefix, _, name = full_name.partition("/")
            key = keys.get(prefix + "/")
            if key is None or name not in self._trainable:
                continue
            start = self._layout.starts[name]
            a, b = max(start, first), min(start + array.size, end)
            if a < b:
                part = array.reshape(-1)[a - start : b - start]
                self._moments[key][a - first : b - first].copy_(torch.from_numpy(part))
        for part, place in self._parts:
            set_state(self._optimizer, part, updates, *(m[place] for m in self._moments.values()))

    def step(self, lr: float) -> None:
        """Update this rank's share of the weights by its gradients."""
        update(self._optimizer, lr)

    def share(self, comm: Comm) -> None:
        """Send the share's new weights to all ranks. Every rank enters."""
        parts, owners = self._sent[comm.within_node]
        comm.broadcast_from([self._weights[start:end] for start, end in parts], owners)

    def collect(
        self, comm: Comm, weights: Iterable[tuple[str, np.ndarray]]
    ) -> dict[str, StoredArray] | None:
        """The moments of all ranks, and weights, in a file of rank 0's disk. Every rank enters.

        One message is in memory at a time.

        Args:
            weights: by their names in a checkpoint; of rank 0.
        Returns:
            By name, as in a checkpoint; None on other ranks.
        Raises:
            StorageError: on rank 0, which has entered all collectives nevertheless: its disk is
                full or fails.
        """
        spool = Spool(self._directory) if comm.rank == 0 else None
        found = {} if spool is None else {name: spool.add(array) for name, array in weights}
        parts, owners = self._shares.cut([self._layout.total], _FETCHED)
        first, _ = self._shares.own
        buffer = torch.empty(max(end - start for start, end in parts))
        for key, prefix in _MOMENTS:
            begun = 0 if spool is None else spool.size
            for (start, end), owner in zip(parts, owners, strict=True):
                message = buffer[: end - start]
                if owner == comm.rank:
                    message.copy_(self._moments[key][start - first : end - first])
                comm.fetch(message, owner)
                if spool is not None:
                    spool.add(message.numpy())
            if spool is not None:
                for name, parameter in self._trainable.items():
                    at = begun + 4 * self._layout.starts[name]
                    found[prefix + name] = spool.at(at, np.dtype("<f4"), tuple(parameter.shape))
        if spool is None:
            return None
        spool.check()
        return found
