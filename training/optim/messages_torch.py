"""The messages of a gradient: begun while the backward pass still computes, compressed or not.

Without compression a message is an all-reduce. A compressed one has a ring's two legs: each rank
gets all ranks' versions of its part, adds them in float32 in the order of the ranks, and sends the
sum to all. So the network carries bf16 or int8, no sum is rounded more than once, and its bits are
the same on every rank, for any carrier. A rank sends 2 (N - 1) / N of the gradient, as in a ring.

On a CPU the second leg of a message begins when its first one has ended, also during the backward
pass. When that is differs between the ranks, so the carrier keeps the legs apart.

Where nodes have several ranks and the carrier has two levels, a node's ranks first sum their
gradients in float32, each a slice of the message. The two legs then join the ranks with the same
place on each node, so that a node's link carries what one rank's would; the node's ranks exchange
their slices of the sum in the end.

int8 rounds more than a training may lose. What a rank's rounding leaves out, of its own gradient
and of the sum of its part, is held back and added to the next step's (error feedback: Seide et al.,
2014; Karimireddy et al., arXiv:1901.09847). A step that sends the whole sends it too, in float32,
and nothing is held back afterwards (training/hooks/compression.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from howdah.training.comm.base import BLOCK, COMPRESSED_FROM, Comm, Exchange, Pending, wire_bytes
from howdah.training.optim import coding_torch as coding


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
    """Its sum, or the leg that is under way; None: its sum is stored."""
    slice_S: torch.Tensor | None = None
    """What this rank sends: its slice of the node's sum, or its gradient."""
    held_NL: torch.Tensor | None = None
    """float32 [ranks, length of a part]: what int8 has held back, of the sum in this rank's row, of
    `slice_S` in the others; None: there is nothing."""


class Messages:
    """Sums slices of a flat gradient over all ranks.

    Args:
        flat: float32 [elements], of which every parameter's gradient is a view.
        slices: (start, end) of each message.
        spans: (start, end) of each parameter's gradient, in the order of the forward pass.
        compression: "none", "bf16" or "int8".
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
        self._compression = compression
        self._comm: Comm | None = None
        self._node: Exchange | None = None
        """The ranks of this node, if there are two levels."""
        self._across: Exchange | None = None
        """The ranks that exchange messages."""
        self._begun = self._continued = 0
        """Messages whose first leg, and whose second leg, has begun."""
        self._whole = False

    def arm(self, comm: Comm, *, whole: bool) -> None:
        """Begin each message once all of its gradients are `added`; for `whole` see `reduce_`."""
        self._form(comm, whole=whole)
        self._comm = comm
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
        while self._continued < self._begun and not self._messages[0].flat.is_cuda:
            if not self._messages[self._continued].pending.ended():
                break
            self._continue(self._comm)

    def proceed(self, comm: Comm) -> None:
        """Begin the second leg of what has begun. Every rank enters, after its backward pass."""
        while self._comm is not None and self._continued < self._begun:
            self._continue(comm)

    def begin(self, comm: Comm, *, whole: bool = True) -> None:
        """Begin what has not begun, with the gradients as they are."""
        if self._comm is None:
            self.arm(comm, whole=whole)
        while self._begun < len(self._messages):
            self._begin(comm)

    def reduce_(self, comm: Comm, *, whole: bool = True) -> None:
        """Begin what has not begun, and wait until the flat gradient holds the sums. Every rank
        enters.

        Args:
            whole: send what int8 has held back too, in float32. It has been decided when `arm` is
                called, and is equal on all ranks.
        """
        if self._comm is None:
            self._form(comm, whole=whole)
        self._comm = None
        with comm.watch():
            while self._begun < len(self._messages):
                self._begin(comm)
            while self._continued < len(self._messages):
                self._continue(comm)
            for message in self._messages:
                if message.pending is not None:
                    self._store(message, message.pending.wait())
            if self._messages:
                comm.synchronise(self._messages[0].flat)

    def _form(self, comm: Comm, *, whole: bool) -> None:
        """Find the ranks that exchange messages, and begin a step. Every rank enters."""
        if self._across is None:
            plain = self._compression == "none"
            self._node, self._across = (None, comm) if plain else comm.levels()
        self._begun = self._continued = 0
        self._whole = whole

    def forget(self) -> None:
        """Drop what is held back: it may contain NaN or infinity."""
        for message in self._messages:
            message.held_NL = None

    def _begin(self, comm: Comm) -> None:
        message = self._messages[self._begun]
        self._begun += 1
        numbers = self._numbers(message)
        if numbers == "none":
            if message.held_NL is not None:
                held = message.held_NL.view(-1)
                start = 0 if self._node is None else self._node.rank * held.numel()
                kept = message.flat[start : start + held.numel()]
                kept += held[: kept.numel()]
                message.held_NL = None
            message.pending = comm.begin_sum(message.number, message.flat)
            return
        message.slice_S = self._of_node(message) if self._node else message.flat
        if numbers == "bf16":
            parts = _parts(message.slice_S, self._across.size)
        else:
            parts = _round_off(message, self._across)
        message.pending = self._across.begin_exchange(message.number, parts)

    def _of_node(self, message: Message) -> torch.Tensor:
        """This rank's slice of the sum over the node's ranks, in their order."""
        node, multiple = self._node, self._across.size * BLOCK
        length = -(-message.flat.numel() // (node.size * multiple)) * multiple
        slices_PS = message.flat.new_zeros(node.size, length)
        slices_PS.view(-1)[: message.flat.numel()] = message.flat
        sent = node.begin_exchange(message.number, slices_PS.view(torch.uint8))
        slices_PS = sent.wait().view(torch.float32)
        for part in slices_PS[1:]:
            slices_PS[0] += part
        return slices_PS[0]

    def _continue(self, comm: Comm) -> None:
        """Wait for the first leg of the next message, and begin its second one."""
        message = self._messages[self._continued]
        self._continued += 1
        with comm.watch():
            message.pending = self._second_leg(message, message.pending.wait())

    def _second_leg(self, message: Message, received: torch.Tensor) -> Pending | None:
        """Begin the second leg; None: the sum is already stored."""
        numbers, across = self._numbers(message), self._across
        if numbers == "none":
            if received is not message.flat:
                message.flat.copy_(received)
            return None
        if numbers == "int8":
            mine = message.held_NL[across.rank]
            coding.add_int8_(mine, received, across.rank)
            sums = received[across.rank]
            coding.to_int8_(mine, sums)
            return across.begin_gather(message.number, sums)
        parts = coding.from_bf16(received)
        start = across.rank * parts.shape[1]
        mine = message.slice_S[start : start + parts.shape[1]]
        parts[across.rank, : mine.numel()] = mine  # not rounded
        total = parts[0]
        for part in parts[1:]:
            total += part
        return across.begin_gather(message.number, coding.to_bf16(total))

    def _store(self, message: Message, sums_NB: torch.Tensor) -> None:
        if self._node is not None:
            gathered = self._node.begin_gather(message.number, sums_NB.view(-1)).wait()
            sums_NB = gathered.view(-1, sums_NB.shape[1])  # in the order of the gradient
        message.slice_S = message.pending = None
        if self._numbers(message) == "bf16":
            sums = sums_NB.view(torch.bfloat16).view(-1)
            message.flat.copy_(sums[: message.flat.numel()])
            return
        length = message.held_NL.shape[1]
        for rank, sums_B in enumerate(sums_NB):
            part = message.flat[rank * length : (rank + 1) * length]
            if part.numel() == length:
                coding.from_int8(sums_B, part)
            elif part.numel():  # the gradient ends in this part
                sums = part.new_empty(length)
                coding.from_int8(sums_B, sums)
                part.copy_(sums[: part.numel()])

    def _numbers(self, message: Message) -> str:
        """The numbers that this message is sent in."""
        if message.flat.numel() < COMPRESSED_FROM or (self._whole and self._compression == "int8"):
            return "none"
        return self._compression


def rows_on_the_wire(rows_UD: torch.Tensor, compression: str) -> torch.Tensor:
    """Rows as they are sent, in uint8 if they are compressed: in bf16, also beside int8. What a row
    holds back would wait for the next batch with its id."""
    return rows_UD if compression == "none" else coding.to_bf16(rows_UD)


def rows_from_the_wire(sent: torch.Tensor) -> torch.Tensor:
    """float32 rows, from what `rows_on_the_wire` has made."""
    return coding.from_bf16(sent) if sent.dtype == torch.uint8 else sent


def _parts(flat: torch.Tensor, ranks: int) -> torch.Tensor:
    """uint8 [ranks, bytes]: the part of each rank in bf16; the last is filled up with zeros."""
    length = -(-flat.numel() // ranks)
    if length * ranks == flat.numel():
        return coding.to_bf16(flat.view(ranks, length))
    parts = flat.new_zeros(ranks, length, dtype=torch.bfloat16)
    parts.view(-1)[: flat.numel()] = flat
    return parts.view(torch.uint8)


def _round_off(message: Message, across: Exchange) -> torch.Tensor:
    """uint8 [ranks, bytes]: the part of each other rank in int8, with what was held back so far;
    what is rounded off now is held back, and this rank's part is kept as it is."""
    mine = message.slice_S
    if message.held_NL is None:
        blocks = -(-mine.numel() // (across.size * BLOCK))
        message.held_NL = mine.new_zeros(across.size, blocks * BLOCK)
    held = message.held_NL
    held.view(-1)[: mine.numel()] += mine
    sent = mine.new_empty(across.size, wire_bytes(held.shape[1]), dtype=torch.uint8)
    for rank in range(across.size):
        if rank == across.rank:
            sent[rank] = 0
        else:
            coding.to_int8_(held[rank], sent[rank])
    return sent
