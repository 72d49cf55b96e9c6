"""AdamW in torch: with all moments on every rank, or divided among the ranks (ZeRO-1).

Source of the division: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion
Parameter Models", stage 1. For the reasons see docs/decisions/sharding.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import torch
from torch.optim.adamw import adamw

from howdah.config.training import TrainingSection
from howdah.models.weights import parameters
from howdah.models.weights.stored import Spool, StoredArray
from howdah.training.checkpoint.read import ADAM_M, ADAM_V
from howdah.training.comm.base import NODE_MESSAGE, Comm
from howdah.training.optim.flat_torch import Shares
from howdah.training.optim.gradients_torch import FlatGradients
from howdah.training.optim.schedule import BETAS, EPSILON

_MOMENTS = (("exp_avg", ADAM_M), ("exp_avg_sq", ADAM_V))
"""(torch's name of a moment, its prefix in a checkpoint)."""
_MESSAGE, _FETCHED = 2**24, 2**22
"""Elements of a message of weights between nodes, and of a message of moments for a checkpoint."""


class AdamW:
    """`torch.optim.AdamW(fused=True)` through the function that torch's class calls.

    The class imports torch._dynamo, though nothing is compiled, which costs 2.5 s of processor time
    and some 100 MB in every rank (torch 2.13: `Optimizer.add_param_group` and `step`).

    Args:
        named: trainable tensors, or parts of them, by name.
    """

    def __init__(
        self, named: Iterable[tuple[str, torch.Tensor]], training: TrainingSection
    ) -> None:
        self._training = training
        self._tensors: dict[bool, list[torch.Tensor]] = {True: [], False: []}
        """{True if weight decay applies: the tensors}."""
        for name, tensor in named:
            self._tensors[parameters.decays(name)].append(tensor)
        self._states: dict[torch.Tensor, dict[str, torch.Tensor]] = {}

    def set_state(
        self,
        tensor: torch.Tensor,
        updates: int,
        exp_avg: torch.Tensor,
        exp_avg_sq: torch.Tensor,
    ) -> None:
        """Set a tensor's state after `updates` updates, without copying the moments."""
        self._states[tensor] = {
            "step": torch.tensor(float(updates), dtype=torch.float32, device=tensor.device),
            "exp_avg": exp_avg,
            "exp_avg_sq": exp_avg_sq,
        }

    def moment(self, tensor: torch.Tensor, key: str) -> torch.Tensor:
        """A tensor's `exp_avg` or `exp_avg_sq`."""
        return self._states[tensor][key]

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Update the tensors that have a gradient, at this learning rate."""
        for decays, tensors in self._tensors.items():
            updated = [tensor for tensor in tensors if tensor.grad is not None]
            if not updated:
                continue
            states = [self._states[tensor] for tensor in updated]
            adamw(
                updated,
                [tensor.grad for tensor in updated],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                [state["step"] for state in states],
                fused=True,
                amsgrad=False,
                beta1=BETAS[0],
                beta2=BETAS[1],
                lr=lr,
                weight_decay=self._training.weight_decay if decays else 0.0,
                eps=EPSILON,
                maximize=False,
            )


class WholeAdamW:
    """AdamW with all moments on every rank, which all compute the same update."""

    collect: None = None
    """None: every rank has all moments, so there is nothing to collect."""

    def __init__(
        self, trainable: Mapping[str, torch.nn.Parameter], training: TrainingSection
    ) -> None:
        self._trainable = trainable
        self._optimizer = AdamW(trainable.items(), training)
        self._moments = {
            prefix + name: torch.zeros_like(parameter, memory_format=torch.preserve_format)
            for _, prefix in _MOMENTS
            for name, parameter in trainable.items()
        }

    def load(self, saved: Iterable[tuple[str, np.ndarray]], updates: int) -> None:
        """Set the state after `updates` updates; moments that are not saved are zeros.

        Args:
            saved: (name, tensor) pairs, which are read one at a time.
        """
        for moment in self._moments.values():
            moment.zero_()
        for name, array in saved:
            if name in self._moments:
                self._moments[name].copy_(torch.from_numpy(array))
            del array  # before the next one is made
        for name, parameter in self._trainable.items():
            moments = (self._moments[prefix + name] for _, prefix in _MOMENTS)
            self._optimizer.set_state(parameter, updates, *moments)

    def step(self, lr: float) -> None:
        """Update the weights with their gradients."""
        self._optimizer.step(lr)

    def share(self, comm: Comm) -> None:
        """Do nothing: every rank has computed all new weights."""

    def moments(self) -> Iterator[tuple[str, np.ndarray]]:
        """The moments by their names in a checkpoint; copy an array to keep it."""
        for key, prefix in _MOMENTS:
            for name, parameter in self._trainable.items():
                yield prefix + name, self._optimizer.moment(parameter, key).to("cpu").numpy()


class DividedAdamW:
    """AdamW in which each rank has the moments of its share of the weights, updates the share and
    sends it to all.

    Args:
        weights: the flat buffer that they are in (`flatten`).
        shares: the ranks' parts of the buffers.
        directory: local directory for rank 0's copy of the state while a checkpoint is written.
    """

    moments: None = None
    """None: no rank has all moments; see `collect`."""

    def __init__(
        self,
        trainable: Mapping[str, torch.nn.Parameter],
        weights: torch.Tensor,
        gradients: FlatGradients,
        shares: Shares,
        training: TrainingSection,
        *,
        directory: str,
    ) -> None:
        self._trainable, self._layout, self._shares = trainable, gradients.layout, shares
        self._weights, self._directory = weights, directory
        first, end = shares.part
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
        self._optimizer = AdamW(named, training)
        whole = [self._layout.total]
        self._sent = {
            near: shares.cut(whole, NODE_MESSAGE if near else _MESSAGE) for near in (True, False)
        }

    def load(self, saved: Iterable[tuple[str, np.ndarray]], updates: int) -> None:
        """Set the state after `updates` updates; moments that are not saved are zeros.

        Args:
            saved: (name, whole tensor) pairs, which are read one at a time; this rank keeps its
                part.
        """
        first, end = self._shares.part
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
            self._optimizer.set_state(part, updates, *(m[place] for m in self._moments.values()))

    def step(self, lr: float) -> None:
        """Update this rank's share of the weights with its gradients."""
        self._optimizer.step(lr)

    def share(self, comm: Comm) -> None:
        """Send this share's new weights to all ranks. Every rank enters."""
        parts, owners = self._sent[comm.within_node]
        comm.broadcast_from([self._weights[start:end] for start, end in parts], owners)

    def collect(
        self, comm: Comm, weights: Iterable[tuple[str, np.ndarray]]
    ) -> dict[str, StoredArray] | None:
        """Collect the moments of all ranks, and the weights, in a file on rank 0's disk. Every rank
        enters.

        Only one message is in memory at a time.

        Args:
            weights: rank 0's weights by their names in a checkpoint.
        Returns:
            The tensors by their names in a checkpoint; None on other ranks.
        Raises:
            StorageError: rank 0's disk is full or fails; rank 0 raises it after all collectives.
        """
        spool = Spool(self._directory) if comm.rank == 0 else None
        stored = {} if spool is None else {name: spool.add(array) for name, array in weights}
        parts, owners = self._shares.cut([self._layout.total], _FETCHED)
        first, _ = self._shares.part
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
                    stored[prefix + name] = spool.at(at, np.dtype("<f4"), tuple(parameter.shape))
        if spool is None:
            return None
        spool.check()
        return stored
