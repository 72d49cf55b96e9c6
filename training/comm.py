"""How ranks reach each other: the only way that the loops have, whatever carries it.

Horovod is behind it (training/comm_torch.py, training/comm_tf.py), and nothing at all in a world of
one. Only plain arrays and JSON cross the network, never a pickle. Every method that talks to other
ranks is a collective: every rank must enter it, in the same order.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from howdah.errors import ClusterError, TrainingError
from training.connections import Connections
from training.env import rank_env

__all__ = [
    "Comm",
    "NODE_MESSAGE",
    "RankLost",
    "SoloComm",
    "Waits",
    "WorldChanged",
    "init",
    "lost",
    "rank_lost",
    "split_apart",
    "split_evenly",
]


NODE_MESSAGE = 2**21
"""Elements of a message among processes of one node (8 MiB): MPI's pieces stay in the cache then.
A sum of 42 MB at np=2 takes 9 ms by six messages, 20 by one; by Gloo 25 and 23."""


class RankLost(TrainingError):
    """Another rank is gone: what it was needed for cannot be finished."""


class WorldChanged(TrainingError):
    """Every rank leaves this world at the same step, for another one."""


class Waits:
    """Time that this process has spent inside collectives, over all its worlds."""

    def __init__(self) -> None:
        self.total = 0.0
        """Seconds."""
        self.since: float | None = None
        """Begin (time.monotonic) of the one that goes on now."""
        self.until = 0.0
        """End of the last one."""

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Inside is a collective; one inside another counts once."""
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
    """What carries the collectives, to be told and put into run.json."""

    def __init__(self, waits: Waits | None = None) -> None:
        self.waits = waits or Waits()

    @property
    def within_node(self) -> bool:
        """All ranks are on one node."""
        return self.local_size == self.size

    # ------------------------------------------------------------- what an implementation gives
    @abstractmethod
    def sum(self, values: np.ndarray) -> np.ndarray:
        """Sum of all ranks' float64 arrays of one shape, on every rank."""

    @abstractmethod
    def gather(self, array: np.ndarray) -> np.ndarray:
        """Rows of all ranks in the order of the ranks, on every rank.

        Args:
            array: [rows, ...]; rows may differ between ranks and be 0, the rest may not.
        """

    @abstractmethod
    def reduce_gradients(self, gradients: Sequence[Any]) -> list[Any]:
        """Sum over all ranks, one message for each tensor, in their order.

        Args:
            gradients: float32 tensors of the framework, of the same shapes on every rank. The
                caller joins small ones (`split_evenly`): the messages are then the same at
                every step and in every run, and so are the bits of the sums.
        Returns:
            The sums. They may be the arguments themselves, overwritten.
        """

    @abstractmethod
    def reduce_rows(self, ids_U: Any, values_UD: Any) -> tuple[Any, Any]:
        """Rows of a sparse gradient from all ranks, in the order of the ranks.

        Args:
            ids_U: int64, the rows of the table that this rank has; each once.
            values_UD: float32, their gradients.
        Returns:
            (ids, values) of all ranks joined; an id comes as often as ranks have it, to be summed.
        """

    @abstractmethod
    def _broadcast(self, array: np.ndarray, root: int) -> np.ndarray:
        """The root's array; shape and dtype are the same on every rank already."""

    @abstractmethod
    def shutdown(self) -> None:
        """Leave the world in good order. Every rank enters."""

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Count the time inside as waiting; what the framework raises for a lost rank is RankLost.

        Every collective above is inside one; a collective of the caller's own needs one.
        """
        with self.waits.counted(), self._typed():
            yield

    @contextmanager
    def _typed(self) -> Iterator[None]:
        """Turn what the framework raises for a lost rank into RankLost."""
        yield

    def give_up(self) -> None:  # noqa: B027 - nothing to break in a world of one
        """Break the connections to the other ranks: collectives under way fail, here and there.

        For another thread, where a rank is known to be gone and the main thread would wait for it.
        """

    # ------------------------------------------------------------------------- built upon these
    def broadcast(
        self, arrays: Mapping[str, np.ndarray], *, root: int = 0
    ) -> dict[str, np.ndarray]:
        """The root's arrays, on every rank. What other ranks give is not looked at."""
        if self.size == 1:
            return dict(arrays)
        shapes = [[name, a.dtype.str, list(a.shape)] for name, a in arrays.items()]
        result = {}
        for name, dtype, shape in self.broadcast_json(shapes, root=root):
            mine = arrays[name] if self.rank == root else np.empty(shape, np.dtype(dtype))
            result[name] = self._broadcast(np.ascontiguousarray(mine), root).reshape(shape)
        return result

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
        """True if any rank says True."""
        return bool(self.sum(np.array([float(flag)]))[0] > 0)

    def barrier(self) -> None:
        """Come back when every rank has entered."""
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

    def _broadcast(self, array: np.ndarray, root: int) -> np.ndarray:
        return array

    def shutdown(self) -> None:
        """Nothing to leave."""


def init(
    framework: str, waits: Waits | None = None, connections: Connections | None = None
) -> Comm:
    """Join the world that a launcher has made, or be a world of one.

    Args:
        framework: "tensorflow" or "torch"; training/env.py has prepared the process for it.
        waits: counts the time in collectives.
        connections: takes those to the other ranks; another thread may shut them, also while the
            world forms.
    Raises:
        ClusterError: Horovod is missing or lacks the framework, or found another world than the
            launcher's.
        RankLost: a rank was lost while the world formed.
    """
    here = rank_env()
    if here.size == 1:
        return SoloComm(waits)
    try:
        if framework == "tensorflow":
            from training.comm_tf import HorovodTfComm as Horovod
        else:
            from training.comm_torch import HorovodTorchComm as Horovod
    except ImportError as error:
        raise ClusterError(
            f"Horovod for {framework} cannot be loaded, and {here.size} ranks need it",
            got=str(error),
            remedy="run `make setup`, which builds it; `howdah doctor` says what is missing",
        ) from error
    comm = Horovod(waits, connections)
    if (comm.rank, comm.size) != (here.rank, here.size):
        raise ClusterError(
            "Horovod found another world than the launcher's",
            expected=f"rank {here.rank} of {here.size} ({here.launcher})",
            got=f"rank {comm.rank} of {comm.size}",
            remedy="start it with one launcher: `howdah train`, mpirun or horovodrun",
        )
    return comm


def rank_lost(error: BaseException | None) -> bool:
    """The error is, or comes from, the loss of another rank."""
    while error is not None:
        if isinstance(error, RankLost):
            return True
        error = error.__cause__
    return False


def lost(where: str, got: str) -> RankLost:
    """The error of a rank whose collective has failed.

    Args:
        where: "rank 1 of 2".
        got: what was raised.
    """
    return RankLost(
        "another rank was lost, and training stopped",
        where=where,
        got=got.splitlines()[0] if got else "a collective failed",
        remedy="the lost rank's log says why; start again: the run goes on from the newest"
        " checkpoint",
    )


def split_evenly(sizes: Sequence[int], groups: int | None, *, most: int = 2**24) -> list[int]:
    """Where to cut a list of tensors into neighbouring groups that are sent as one each.

    Args:
        sizes: elements of each tensor.
        groups: how many groups; None: as many as keep a group near `most` elements (64 MiB of
            float32). Never more than there are tensors.
        most: elements of a group.
    Returns:
        The group of each tensor, 0 .. groups-1, never falling.

    >>> split_evenly([4, 4, 4, 4], 2)
    [0, 0, 1, 1]
    >>> split_evenly([100, 1, 1], None, most=50)
    [0, 1, 2]
    """
    total = sum(sizes)
    wanted = min(len(sizes), groups or max(1, -(-total // most)))
    found, group, done = [], 0, 0
    for number, size in enumerate(sizes):
        # A tensor belongs where its middle lies; groups are never left empty.
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
    """As `split_evenly`, where joining tensors costs a copy and a message next to nothing.

    Args:
        groups: how many groups, then as `split_evenly` has them; None: the small tensors as it
            joins them, and each large one by itself.
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
