"""The loops' only interface to other ranks, whichever library carries the collectives.

Only plain arrays and JSON cross the network, never a pickle. Every method that exchanges data is a
collective: all ranks must enter it, in the same order. training/comm/backends.py chooses the
implementation.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

from howdah.errors import TrainingError

NODE_MESSAGE = 2**21
"""Elements of a message within a node (8 MiB), so that MPI's pieces stay in the CPU's cache. A sum
of 42 MB at np=2 takes MPI 9 ms in six messages and 20 ms in one; Gloo 25 and 23 ms."""


class RankLost(TrainingError):
    """Another rank is lost: collectives of this world cannot complete."""


class WorldChanged(TrainingError):
    """All ranks leave this world at the same step, to form another one."""


class Waits:
    """Time that this process has spent inside collectives, over all its worlds."""

    def __init__(self) -> None:
        self.total = 0.0
        """Seconds."""
        self.since: float | None = None
        """Begin (time.monotonic) of the collective under way; None: there is none."""
        self.until = 0.0
        """End (time.monotonic) of the last one."""
        self._pass: float | None = None

    @property
    def longest_since(self) -> float | None:
        """Begin (time.monotonic) of what a limit of collectives counts: the collective under way,
        or the pass through a divided model, which has collectives inside."""
        return self.since if self._pass is None else self._pass

    @contextmanager
    def limited(self) -> Iterator[None]:
        """A limit of collectives counts the time inside, which is not waiting time."""
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


class Comm(ABC):
    """A world of ranks. `init` makes one.

    The arguments of `reduce_gradients` are the framework's tensors; everything else is numpy.

    Args:
        waits: counts the time in collectives.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    backend: str
    """What carries the collectives, for the log and run.json."""
    waits_for_ever = False
    """Whether a collective on CPUs has no time limit of its own: it is as long as the slowest rank
    takes to enter it, and a rank that is stopped never does."""

    def __init__(self, waits: Waits | None = None) -> None:
        self.waits = waits or Waits()

    @property
    def within_node(self) -> bool:
        """Whether all ranks are on one node."""
        return self.local_size == self.size

    # ----------------------------------------------------- by each implementation
    @abstractmethod
    def sum(self, values: np.ndarray) -> np.ndarray:
        """Sum of all ranks' float64 arrays of one shape, on every rank."""

    @abstractmethod
    def gather(self, array: np.ndarray) -> np.ndarray:
        """Rows of all ranks in the order of the ranks, on every rank.

        Args:
            array: [rows, ...]; rows may differ between ranks and be 0, other dimensions may not.
        """

    @abstractmethod
    def reduce_gradients(self, gradients: Sequence[Any]) -> list[Any]:
        """Sum over all ranks, one message per tensor, in their order.

        Args:
            gradients: float32 tensors of the framework, of the same shapes on every rank. The
                caller joins small ones (`split_evenly`), so that the messages, and with them the
                bits of the sums, are the same at every step and in every run.
        Returns:
            The sums, perhaps in the arguments' memory.
        """

    @abstractmethod
    def reduce_rows(self, ids_U: Any, values_UD: Any) -> tuple[Any, Any]:
        """Rows of a sparse gradient from all ranks, in the order of the ranks.

        Args:
            ids_U: int64, the rows of the table that this rank has; each once.
            values_UD: float32, their gradients.
        Returns:
            (ids, values) of all ranks, concatenated; an id occurs once per rank that has it.
        """

    # ------------------------------------- by those that carry a state divided among the ranks
    def reduce_to(self, messages: Sequence[Any], owners: Sequence[int]) -> None:
        """Sum each message over all ranks, in place, on its owner; undefined on other ranks.

        Args:
            messages: contiguous float32 tensors of the framework, as `reduce_gradients` takes them.
            owners: a rank for each.
        """
        raise self._divides_nothing()

    def broadcast_from(self, messages: Sequence[Any], owners: Sequence[int]) -> None:
        """Give every rank each message as its owner has it, in place; arguments as `reduce_to`."""
        raise self._divides_nothing()

    def fetch(self, message: Any, owner: int) -> None:
        """Give rank 0 the message as its owner has it, in place; undefined on the other ranks.

        Args:
            message: a contiguous tensor of the CPU, of the same length on every rank.
        """
        raise self._divides_nothing()

    def mesh(self, device: str) -> Any:
        """All ranks as torch's mesh of one dimension, for what torch itself divides among them.

        Args:
            device: torch's name of the kind of device.
        """
        raise self._divides_nothing()

    def _divides_nothing(self) -> Exception:
        return NotImplementedError(f"{type(self).__name__} carries no divided state")

    @abstractmethod
    def _broadcast(self, array: np.ndarray, root: int) -> np.ndarray:
        """The root's array; shape and dtype are equal on all ranks."""

    @abstractmethod
    def shutdown(self) -> None:
        """Leave the world cleanly. Every rank enters."""

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Count the time inside as waiting, and turn the framework's error of a lost rank into
        RankLost.

        Implementations do this in every collective; a caller's own collective needs it too.
        """
        with self.waits.counted(), self._typed():
            yield

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """As `watch`, for computation with collectives inside: it is not counted as waiting, and an
        error of its own stays what it is."""
        yield

    def limited(self) -> AbstractContextManager[None]:
        """For a pass through a model that this world divides (FSDP2 waits for the other ranks
        inside it): the limit of collectives holds for the pass."""
        return self.waits.limited()

    @contextmanager
    def _typed(self) -> Iterator[None]:
        """Turn the framework's error of a lost rank into RankLost."""
        yield

    def give_up(self) -> None:  # noqa: B027 - nothing to break in a world of one
        """Break the connections to the other ranks: collectives under way fail, here and on them.

        For another thread, when a rank is known to be lost and the main thread waits for it.
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
        """As `broadcast`, one (name, array) after the other: every rank enters while it iterates.

        Args:
            arrays: the root's; those that are read when they are used (StoredArray) are held one at
                a time.
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


class SoloComm(Comm):
    """A world of one: no launcher, no Horovod."""

    rank, size, local_rank, local_size, backend = 0, 1, 0, 1, "none"

    def sum(self, values: np.ndarray) -> np.ndarray:
        return np.asarray(values, np.float64)

    def gather(self, array: np.ndarray) -> np.ndarray:
        return array

    def reduce_gradients(self, gradients: Sequence[Any]) -> list[Any]:
        return list(gradients)

    def reduce_rows(self, ids_U: Any, values_UD: Any) -> tuple[Any, Any]:
        return ids_U, values_UD

    def reduce_to(self, messages: Sequence[Any], owners: Sequence[int]) -> None:
        """All is here already."""

    def broadcast_from(self, messages: Sequence[Any], owners: Sequence[int]) -> None:
        """All is here already."""

    def fetch(self, message: Any, owner: int) -> None:
        """It is here already."""

    def _broadcast(self, array: np.ndarray, root: int) -> np.ndarray:
        return array

    def shutdown(self) -> None:
        """There is no world to leave."""


def rank_lost(error: BaseException | None) -> bool:
    """Whether the error is, or was caused by, the loss of another rank."""
    while error is not None:
        if isinstance(error, RankLost):
            return True
        error = error.__cause__
    return False


def lost(where: str, got: str) -> RankLost:
    """The error of a rank whose collective has failed.

    Args:
        where: "rank 1 of 2".
        got: message of the original error.
    """
    return RankLost(
        "another rank was lost, and training stopped",
        where=where,
        got=got.splitlines()[0] if got else "a collective failed",
        remedy="the lost rank's log says why; start again: the run resumes from the newest"
        " checkpoint",
    )


def split_evenly(sizes: Sequence[int], groups: int | None, *, most: int = 2**24) -> list[int]:
    """Divide a list of tensors into groups of neighbours, each sent as one message.

    Args:
        sizes: elements of each tensor.
        groups: how many; at most as many as tensors. None: groups of about `most` elements (64
            MiB of float32).
        most: elements of a group.
    Returns:
        The group of each tensor, 0 .. groups-1, ascending.

    >>> split_evenly([4, 4, 4, 4], 2)
    [0, 0, 1, 1]
    >>> split_evenly([100, 1, 1], None, most=50)
    [0, 1, 2]
    """
    total = sum(sizes)
    wanted = min(len(sizes), groups or max(1, -(-total // most)))
    found, group, done = [], 0, 0
    for number, size in enumerate(sizes):
        # A tensor goes to the group that its middle lies in; no group is left empty.
        by_middle = int((done + size / 2) * wanted / max(1, total))
        if number:
            group = min(max(group, by_middle), group + 1)
            group = max(group, wanted - (len(sizes) - number))
        found.append(group)
        done += size
    return found


def split_apart(
    sizes: Sequence[int], groups: int | None, *, alone: int = 2**18, most: int = NODE_MESSAGE
) -> list[int]:
    """As `split_evenly`, for a network where copying to join tensors costs more than a message.

    Args:
        groups: how many, as `split_evenly` divides them; None: it joins the small tensors, and each
            large one is a group by itself.
        alone: elements from which a tensor is large (1 MiB of float32).
        most: elements of a group of small ones.

    >>> split_apart([100, 1, 70, 1], None, alone=50)
    [1, 0, 2, 0]
    """
    if groups is not None:
        return split_evenly(sizes, groups)
    small = [size for size in sizes if size < alone]
    joined = iter(split_evenly(small, None, most=most))
    found = [next(joined) if size < alone else -1 for size in sizes]
    own = iter(range(max(found) + 1, len(sizes)))
    return [next(own) if group < 0 else group for group in found]
