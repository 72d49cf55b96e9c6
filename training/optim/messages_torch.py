"""The messages of a gradient: begun while the backward pass still computes, compressed or not.

Without compression a message is an all-reduce. A compressed one has a ring's two legs: each rank
gets all ranks' versions of its part, adds them in float32 in the order of the ranks, and sends the
sum to all. So the network carries bf16, no sum is rounded more than once, and its bits are the same
on every rank, for any carrier. A rank sends 2 (N - 1) / N of the gradient, as in a ring.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from howdah.training.comm.base import COMPRESSED_FROM, Comm, Pending


@dataclass
class Message:
    """A slice of the flat gradients, and what is under way with it."""

    flat: torch.Tensor
    number: int
    """Its place in the order in which messages begin, which is the same on every rank."""
    members: frozenset[int]
    """Numbers of the parameters whose gradients it has a part of."""
    lacks: set[int] = field(default_factory=set)
    """The members whose gradient the backward pass has not yet added."""
    pending: Pending | None = None


class Messages:
    """Sums slices of a flat gradient over all ranks.

    Args:
        flat: float32 [elements], of which every parameter's gradient is a view.
        slices: (start, end) of each message.
        spans: (start, end) of each parameter's gradient, in the order of the forward pass.
        compression: "none" or "bf16".
    """

    def __init__(
        self,
        flat: torch.Tensor,
        slices: Sequence[tuple[int, int]],
        spans: Mapping[int, tuple[int, int]],
        compression: str,
    ) -> None:
        members = [
            {n for n, (a, b) in spans.items() if a < end and start < b} for start, end in slices
        ]
        # The backward pass ends with the parameters that the forward pass begins with.
        order = sorted(range(len(slices)), key=lambda k: -min(members[k], default=0))
        self._messages = [
            Message(flat[slice(*slices[k])], number, frozenset(members[k]))
            for number, k in enumerate(order)
        ]
        self._with = {n: [m for m in self._messages if n in m.members] for n in spans}
        self._compressed = compression != "none"
        self._comm: Comm | None = None
        self._begun = 0

    def arm(self, comm: Comm) -> None:
        """Begin each message once all of its gradients are `added`."""
        self._comm, self._begun = comm, 0
        for message in self._messages:
            message.lacks = set(message.members)

    def added(self, parameter: int) -> None:
        """Note that the gradient of a parameter is complete. Every rank enters: messages begin in
        one order, so a message also waits for those before it."""
        if self._comm is None:
            return
        for message in self._with[parameter]:
            message.lacks.discard(parameter)
        while self._begun < len(self._messages) and not self._messages[self._begun].lacks:
            self._begin(self._comm)

    def begin(self, comm: Comm) -> None:
        """Begin what has not begun, with the gradients as they are."""
        if self._comm is None:
            self.arm(comm)
        while self._begun < len(self._messages):
            self._begin(comm)

    def reduce_(self, comm: Comm) -> None:
        """Begin what has not begun, and wait until the flat gradient holds the sums. Every rank
        enters."""
        if self._comm is None:
            self._begun = 0
        self._comm = None
        while self._begun < len(self._messages):
            self._begin(comm)
        with comm.watch():
            second_legs = [self._second_leg(message, comm) for message in self._messages]
            for message, pending in zip(self._messages, second_legs, strict=True):
                if pending is not None:
                    _store(message.flat, pending.wait())
            if self._messages:
                comm.synchronise(self._messages[0].flat)

    def _begin(self, comm: Comm) -> None:
        message = self._messages[self._begun]
        self._begun += 1
        if self._is_compressed(message):
            parts = _parts(message.flat, comm.size)
            message.pending = comm.begin_exchange(message.number, parts)
        else:
            message.pending = comm.begin_sum(message.number, message.flat)

    def _second_leg(self, message: Message, comm: Comm) -> Pending | None:
        """Wait for the first leg, and begin the second; None: the sum is already stored."""
        received = message.pending.wait()
        message.pending = None
        if not self._is_compressed(message):
            if received is not message.flat:
                message.flat.copy_(received)
            return None
        parts = _decoded(received)
        start = comm.rank * parts.shape[1]
        mine = message.flat[start : start + parts.shape[1]]
        parts[comm.rank, : mine.numel()] = mine  # not rounded
        total = parts[0]
        for part in parts[1:]:
            total += part
        return comm.begin_gather(message.number, _encoded(total))

    def _is_compressed(self, message: Message) -> bool:
        return self._compressed and message.flat.numel() >= COMPRESSED_FROM


def rows_on_the_wire(rows_UD: torch.Tensor, compression: str) -> torch.Tensor:
    """Rows as they are sent, uint8 if they are compressed."""
    return rows_UD if compression == "none" else _encoded(rows_UD)


def rows_from_the_wire(sent: torch.Tensor) -> torch.Tensor:
    """float32 rows, from what `rows_on_the_wire` has made."""
    return _decoded(sent) if sent.dtype == torch.uint8 else sent


def _parts(flat: torch.Tensor, ranks: int) -> torch.Tensor:
    """uint8 [ranks, bytes]: the part of each rank; the last is filled up with zeros."""
    length = -(-flat.numel() // ranks)
    if length * ranks == flat.numel():
        return _encoded(flat.view(ranks, length))
    parts = flat.new_zeros(ranks, length, dtype=torch.bfloat16)
    parts.view(-1)[: flat.numel()] = flat
    return parts.view(torch.uint8)


def _store(flat: torch.Tensor, sent: torch.Tensor) -> None:
    flat.copy_(sent.view(torch.bfloat16).view(-1)[: flat.numel()])


def _encoded(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.bfloat16).view(torch.uint8)


def _decoded(sent: torch.Tensor) -> torch.Tensor:
    return sent.view(torch.bfloat16).float()
