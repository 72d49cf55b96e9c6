"""The loops' only interface to other ranks, whichever library carries the collectives.

Only plain arrays and JSON cross the network, never a pickle. Every method that exchanges data is a
collective: all ranks must enter it in the same order. training/comm/backends.py chooses the
implementation.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import numpy as np

from howdah.core.processes import limit
from howdah.errors import TrainingError

NODE_MESSAGE = 2**21
"""Elements of a message within a node (8 MiB), which keeps MPI's pieces in the CPU's cache. A sum
of 42 MB with 2 ranks takes MPI 9 ms in six messages and 20 ms in one; it takes Gloo 25 and 23
ms."""


NETWORK_MESSAGE = 2**22
"""Elements of the longest message between nodes (16 MiB); see `network_message`."""
COMPRESSED_FROM = 2**12
"""Elements from which a message is compressed: the time of a shorter one is latency."""
BLOCK = 128
"""Numbers in int8 that share a scale."""
SCALE_OF_ONE = (1 + 2**-8) / 127
"""Scale of a block whose largest number is 1: its rounding to bf16 leaves it above 1 / 127."""
LEAST_SCALE = 1e-30
"""Scales below it count as 0: a float32's reciprocal would be infinite."""


def network_message(ranks: int) -> int:
    """Elements of a message that CPUs send while the backward pass computes: 4 to 16 MiB.

    A short message begins early, and the last one, which nothing hides, ends soon. But each hop of
    a ring carries a message / `ranks`: below 2 MiB its latency counts.

    >>> [network_message(ranks) // 2**20 for ranks in (2, 4, 512)]
    [1, 2, 4]
    """
    return min(2**19 * ranks, NETWORK_MESSAGE)


def wire_bytes(length: int) -> int:
    """Bytes of `length` numbers in int8, a multiple of BLOCK, with their scales in bf16."""
    return length + 2 * length // BLOCK


class RankLost(TrainingError):
    """Another rank was lost: collectives of this world cannot complete."""


class WorldChanged(TrainingError):
    """All ranks leave this world at the same step, to form another one."""


class Waits:
    """Time that this process has spent inside collectives, over all its worlds."""

    def __init__(self) -> None:
        self.total = 0.0
        """Seconds inside collectives."""
        self.since: float | None = None
        """Start (time.monotonic) of the collective under way; None if there is none."""
        self.until = 0.0
        """End (time.monotonic) of the last collective."""
        self._pass: float | None = None

    @property
    def longest_since(self) -> float | None:
        """Start (time.monotonic) of the time that the limit of collectives applies to: the
        collective under way, or a pass through a divided model, which has collectives inside."""
        return self.since if self._pass is None else self._pass

    @contextmanager
    def limited(self) -> Iterator[None]:
        """Apply the limit of collectives to the time inside, without counting it as waiting."""
        self._pass = time.monotonic()
        try:
            yield
        finally:
            self._pass = None

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the time inside; nested calls count once."""
        if self.since is not None:
            yield
            return
        self.since = time.monotonic()
        try:
            yield
        finally:
            self.until = time.monotonic()
            self.total += self.until - self.since
            self.since = None


class Pending(Protocol):
    """A collective that has begun; others may begin before it ends."""

    def wait(self) -> Any:
        """The result, a tensor of the framework. The caller enters `Comm.watch`."""

    def ended(self) -> bool:
        """True if `wait` would return at once, with the result or an error."""


class Exchange(Protocol):
    """Ranks that exchange parts of a message: a world, or some of its ranks. Exchanges begin in one
    order on all ranks, and so do gathers; their order among each other may differ."""

    rank: int
    size: int

    def begin_exchange(self, number: int, parts_NB: Any) -> Pending:
        """See `Comm.begin_exchange`."""

    def begin_gather(self, number: int, part_B: Any) -> Pending:
        """See `Comm.begin_gather`."""


class Comm(ABC):
    """A world of ranks; `backends.init` joins one.

    The arguments of `reduce_gradients` are the framework's tensors; everything else is numpy.

    Args:
        waits: counts the time in collectives.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    backend: str
    """Name of the library that carries the collectives, for the log and run.json."""
    waits_for_ever = False
    """True if the library has no time limit for a collective on CPUs: it waits for the slowest
    rank, and never ends if a rank is stopped."""

    def __init__(self, waits: Waits | None = None) -> None:
        self.waits = waits or Waits()

    @property
    def within_node(self) -> bool:
        """True if all ranks are on one node."""
        return self.local_size == self.size

    def overlaps(self, *, on_gpu: bool) -> bool:
        """True if gradients are sent while the backward pass computes: between nodes, and on GPUs.

        Within a node without GPUs the processors that copy and add the messages are those that
        compute.
        """
        return limit("overlap", self.size > 1 and (on_gpu or not self.within_node))

    # ----------------------------------------------------- by each implementation
    @abstractmethod
    def sum(self, values: np.ndarray) -> np.ndarray:
        """Sum of all ranks' float64 arrays of one shape, on every rank."""

    @abstractmethod
    def gather(self, array: np.ndarray) -> np.ndarray:
        """Rows of all ranks in the order of the ranks, on every rank.

        Args:
            array: [rows, ...]; the number of rows may differ between ranks and be 0; the other
                dimensions are equal.
        """

    @abstractmethod
    def reduce_gradients(self, gradients: Sequence[Any]) -> list[Any]:
        """Sum over all ranks, one message per tensor, in their order.

        Args:
            gradients: float32 tensors of the framework with the same shapes on every rank. The
                caller joins small ones (`split_evenly`), so that the messages, and with them the
                bits of the sums, are the same at every step and in every run.
        Returns:
            The sums, possibly in the arguments' memory.
        """

    @abstractmethod
    def reduce_rows(self, ids_U: Any, values_UD: Any) -> tuple[Any, Any]:
        """Rows of a sparse gradient from all ranks, in the order of the ranks.

        Args:
            ids_U: int64, the rows of the table that this rank has gradients for, each once.
            values_UD: float32, their gradients.
        Returns:
            (ids, values) of all ranks, concatenated; an id occurs once per rank that has it.
        """

    @abstractmethod
    def begin_sum(self, number: int, message: Any) -> Pending:
        """Begin one message of `reduce_gradients`.

        Args:
            number: its place in a step, which names it on all ranks. Messages of one world begin in
                the same order on every rank.
        """

    @abstractmethod
    def begin_exchange(self, number: int, parts_NB: Any) -> Pending:
        """Begin an all-to-all: row r is sent to rank r, and the result's row r is from rank r.

        Args:
            parts_NB: uint8 [ranks, bytes], of one shape on all ranks.
        """

    @abstractmethod
    def begin_gather(self, number: int, part_B: Any) -> Pending:
        """Begin an all-gather of uint8 [bytes], of one length on all ranks; the result is [ranks,
        bytes]."""

    def levels(self) -> tuple[Exchange | None, Exchange]:
        """(this node's ranks, the ranks with this one's place on each node) if there are several
        nodes with equally many ranks, more than one; else, or if this library has one level, (None,
        all ranks). Every rank enters the first call."""
        return None, self

    def has_levels(self) -> bool:
        """True if `levels` returns two groups. Every rank enters."""
        return False

    def synchronise(self, message: Any) -> None:  # noqa: B027 - on a CPU nothing is queued
        """Wait for collectives that the GPU of this message has only queued: a lost rank would
        otherwise block later code, to which the limit of collectives does not apply."""

    # ------------------------------------- by those that carry a state divided among the ranks
    def reduce_to(self, messages: Sequence[Any], owners: Sequence[int]) -> None:
        """Sum each message over all ranks, in place, on its owner; undefined on other ranks.

        Args:
            messages: contiguous float32 tensors of the framework, as `reduce_gradients` takes them.
            owners: a rank for each message.
        """
        raise NotImplementedError

    def broadcast_from(self, messages: Sequence[Any], owners: Sequence[int]) -> None:
        """Copy each message from its owner to every rank, in place; for the arguments see
        `reduce_to`."""
        raise NotImplementedError

    def fetch(self, message: Any, owner: int) -> None:
        """Copy the message from its owner to rank 0, in place; undefined on the other ranks.

        Args:
            message: a contiguous CPU tensor with the same length on every rank.
        """
        raise NotImplementedError

    def mesh(self, device: str) -> Any:
        """All ranks as torch's mesh of one dimension, for state that torch divides among them.

        Args:
            device: torch's name of the kind of device.
        """
        raise NotImplementedError

    @abstractmethod
    def _broadcast(self, array: np.ndarray, root: int) -> np.ndarray:
        """The root's array; shape and dtype are equal on all ranks."""

    @abstractmethod
    def shutdown(self) -> None:
        """Leave the world cleanly. Every rank enters."""

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Count the time inside as waiting, and turn the framework's error for a lost rank into
        RankLost.

        Implementations do this in every collective; a caller's collective needs it too.
        """
        with self.waits.counted(), self._typed():
            yield

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Turn a collective's error into RankLost inside a computation that has collectives. The
        time is not counted as waiting, and the computation's errors are not changed."""
        yield

    def limited(self) -> AbstractContextManager[None]:
        """Apply the limit of collectives to a pass through a model that this world divides: FSDP2
        waits for the other ranks inside it."""
        return self.waits.limited()

    @contextmanager
    def _typed(self) -> Iterator[None]:
        """Turn the framework's error for a lost rank into RankLost."""
        yield

    def give_up(self) -> None:  # noqa: B027 - nothing to break in a world of one
        """Break the connections to the other ranks: collectives under way fail here and there.

        Another thread calls it when a rank is lost and the main thread waits for it.
        """

    # ------------------------------------------------------------- built on these
    def broadcast(
        self, arrays: Mapping[str, np.ndarray], *, root: int = 0
    ) -> dict[str, np.ndarray]:
        """The root's arrays, on every rank; other ranks' `arrays` are ignored."""
        return dict(arrays) if self.size == 1 else dict(self.broadcast_each(arrays, root=root))

    def broadcast_each(
        self, arrays: Mapping[str, Any], *, root: int = 0
    ) -> Iterator[tuple[str, np.ndarray]]:
        """`broadcast`, one (name, array) after the other: every rank enters while it iterates.

        Args:
            arrays: the root's arrays; a StoredArray is in memory only while it is sent.
        """
        shapes = [[name, a.dtype.str, list(a.shape)] for name, a in arrays.items()]
        for name, dtype, shape in self.broadcast_json(shapes, root=root):
            mine = arrays[name] if self.rank == root else np.empty(shape, np.dtype(dtype))
            yield name, self._broadcast(np.ascontiguousarray(mine), root).reshape(shape)

    def broadcast_json(self, obj: Any, *, root: int = 0) -> Any:
        """The root's JSON value, on every rank."""
        if self.size == 1:
            return obj
        data = json.dumps(obj).encode() if self.rank == root else b""
        length = int(self._broadcast(np.array([len(data)], np.int64), root)[0])
        mine = np.frombuffer(data, np.uint8) if self.rank == root else np.zeros(length, np.uint8)
        return json.loads(self._broadcast(mine.copy(), root).tobytes())

    def gather_json(self, obj: Any) -> list[Any]:
        """Every rank's JSON value in the order of the ranks, on every rank."""
        data = np.frombuffer(json.dumps(obj).encode(), np.uint8)
        ends = np.cumsum(self.gather(np.array([len(data)], np.int64)))
        joined = self.gather(data.copy()).tobytes()
        starts = [0, *ends[:-1]]
        return [json.loads(joined[a:b]) for a, b in zip(starts, ends, strict=True)]

    def agree(self, flag: bool) -> bool:
        """True if `flag` is True on any rank."""
        return bool(self.sum(np.array([float(flag)]))[0] > 0)

    def barrier(self) -> None:
        """Return when every rank has entered."""
        self.sum(np.zeros(1))


class Ended:
    """A collective whose result is there when it begins: that of a world of one, or a tensor of a
    graph, which waits where it is read."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def wait(self) -> Any:
        return self._result

    def ended(self) -> bool:
        return True


class SoloComm(Comm):
    """A world of one rank, without a launcher or Horovod."""

    rank, size, local_rank, local_size, backend = 0, 1, 0, 1, "none"

    def sum(self, values: np.ndarray) -> np.ndarray:
        return np.asarray(values, np.float64)

    def gather(self, array: np.ndarray) -> np.ndarray:
        return array

    def reduce_gradients(self, gradients: Sequence[Any]) -> list[Any]:
        return list(gradients)

    def begin_sum(self, number: int, message: Any) -> Pending:
        return Ended(message)

    def begin_exchange(self, number: int, parts_NB: Any) -> Pending:
        return Ended(parts_NB)

    def begin_gather(self, number: int, part_B: Any) -> Pending:
        return Ended(part_B[None])

    def reduce_rows(self, ids_U: Any, values_UD: Any) -> tuple[Any, Any]:
        return ids_U, values_UD

    def reduce_to(self, messages: Sequence[Any], owners: Sequence[int]) -> None:
        """Do nothing: this rank owns all messages."""

    def broadcast_from(self, messages: Sequence[Any], owners: Sequence[int]) -> None:
        """Do nothing: this rank owns all messages."""

    def fetch(self, message: Any, owner: int) -> None:
        """Do nothing: this rank owns the message."""

    def _broadcast(self, array: np.ndarray, root: int) -> np.ndarray:
        return array

    def shutdown(self) -> None:
        """Do nothing: there is no world to leave."""


def rank_lost(error: BaseException | None) -> bool:
    """True if the error is, or was caused by, the loss of another rank."""
    while error is not None:
        if isinstance(error, RankLost):
            return True
        error = error.__cause__
    return False


def lost(where: str, got: str) -> RankLost:
    """The error of a rank whose collective failed.

    Args:
        where: this rank, such as "rank 1 of 2".
        got: message of the original error.
    """
    return RankLost(
        "training stopped because another rank was lost",
        where=where,
        got=got.splitlines()[0] if got else "a collective failed",
        remedy="see the lost rank's log for the cause; start again: the run resumes from the newest"
        " checkpoint",
    )


def split_evenly(
    sizes: Sequence[int], groups: int | None, *, most: int = NETWORK_MESSAGE
) -> list[int]:
    """Divide a list of tensors into groups of neighbours, each of which is sent as one message.

    Args:
        sizes: number of elements of each tensor.
        groups: number of groups, at most one per tensor. None: groups of about `most` elements.
        most: number of elements of a group.
    Returns:
        The group of each tensor, 0 .. groups-1, ascending.

    >>> split_evenly([4, 4, 4, 4], 2)
    [0, 0, 1, 1]
    >>> split_evenly([100, 1, 1], None, most=50)
    [0, 1, 2]
    """
    total = sum(sizes)
    count = min(len(sizes), groups or max(1, -(-total // most)))
    group_of, group, done = [], 0, 0
    for number, size in enumerate(sizes):
        # A tensor belongs to the group that its middle lies in; no group may be empty.
        by_middle = int((done + size / 2) * count / max(1, total))
        if number:
            group = min(max(group, by_middle), group + 1)
            group = max(group, count - (len(sizes) - number))
        group_of.append(group)
        done += size
    return group_of


def split_apart(
    sizes: Sequence[int], groups: int | None, *, alone: int = 2**18, most: int = NODE_MESSAGE
) -> list[int]:
    """`split_evenly` for a network on which joining tensors costs more than another message.

    Args:
        groups: number of groups, see `split_evenly`; None: small tensors are joined, and each large
            one is a separate group.
        alone: number of elements from which a tensor is large (1 MiB of float32).
        most: number of elements of a group of small tensors.

    >>> split_apart([100, 1, 70, 1], None, alone=50)
    [1, 0, 2, 0]
    """
    if groups is not None:
        return split_evenly(sizes, groups)
    small = [size for size in sizes if size < alone]
    joined = iter(split_evenly(small, None, most=most))
    group_of = [next(joined) if size < alone else -1 for size in sizes]
    separate = iter(range(max(group_of) + 1, len(sizes)))
    return [next(separate) if group < 0 else group for group in group_of]
