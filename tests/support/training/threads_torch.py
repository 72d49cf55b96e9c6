"""A world of ranks that are threads of one process: real collectives, no launcher."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from howdah.training.comm.base import Comm, Ended

LIMIT = 60.0  # seconds; detects a rank that left the others waiting


class _World:
    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=LIMIT)
        self.parts: list[Any] = [None] * size


class ThreadComm(Comm):
    """One rank's. Sums are in the order of the ranks.

    Args:
        each: ranks of a node; None: all are on one.
    """

    backend = "threads"

    def __init__(self, world: _World, rank: int, each: int | None = None) -> None:
        super().__init__()
        self._world = world
        self.rank, self.size = rank, len(world.parts)
        self.local_size = each or self.size
        self.local_rank = rank % self.local_size

    def levels(self) -> tuple[_Group | None, _Group | ThreadComm]:
        each = self.local_size
        if not 1 < each < self.size:
            return None, self
        first = self.rank - self.local_rank
        return (
            _Group(self, range(first, first + each)),
            _Group(self, range(self.local_rank, self.size, each)),
        )

    def _all(self, mine: Any) -> list[Any]:
        """What every rank has given, in their order; all enter."""
        self._world.parts[self.rank] = mine
        self._world.barrier.wait()
        parts = list(self._world.parts)
        self._world.barrier.wait()
        return parts

    def sum(self, values: np.ndarray) -> np.ndarray:
        return np.sum(self._all(np.array(values, np.float64)), axis=0)

    def gather(self, array: np.ndarray) -> np.ndarray:
        return np.concatenate(self._all(np.array(array)))

    def reduce_gradients(self, gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        gathered = self._all([one.clone() for one in gradients])
        return [sum(parts[1:], parts[0].clone()) for parts in zip(*gathered, strict=True)]

    def begin_sum(self, number: int, message: torch.Tensor) -> Ended:
        return Ended(self.reduce_gradients([message])[0])

    def begin_exchange(self, number: int, parts_NB: torch.Tensor) -> Ended:
        return Ended(torch.stack([parts[self.rank] for parts in self._all(parts_NB.clone())]))

    def begin_gather(self, number: int, part_B: torch.Tensor) -> Ended:
        return Ended(torch.stack(self._all(part_B.clone())))

    def reduce_rows(self, ids_U: torch.Tensor, values_UD: torch.Tensor) -> tuple[Any, Any]:
        gathered = self._all((ids_U.clone(), values_UD.clone()))
        return tuple(torch.cat(parts) for parts in zip(*gathered, strict=True))

    def reduce_to(self, messages: Sequence[torch.Tensor], owners: Sequence[int]) -> None:
        sums = self.reduce_gradients(messages)
        for message, total, owner in zip(messages, sums, owners, strict=True):
            message.copy_(total if owner == self.rank else torch.tensor(torch.nan))

    def broadcast_from(self, messages: Sequence[torch.Tensor], owners: Sequence[int]) -> None:
        gathered = self._all([one.clone() for one in messages])
        for number, (message, owner) in enumerate(zip(messages, owners, strict=True)):
            message.copy_(gathered[owner][number])

    def fetch(self, message: torch.Tensor, owner: int) -> None:
        gathered = self._all(message.clone())
        message.copy_(gathered[owner] if self.rank == 0 else torch.tensor(torch.nan))

    def _broadcast(self, array: np.ndarray, root: int) -> np.ndarray:
        return self._all(array.copy())[root].copy()

    def shutdown(self) -> None:
        """Nothing is connected."""


class _Group:
    """Some of a world's ranks; all groups of its kind enter at the same time."""

    def __init__(self, comm: ThreadComm, ranks: range) -> None:
        self._comm, self._ranks = comm, ranks
        self.rank, self.size = ranks.index(comm.rank), len(ranks)

    def begin_exchange(self, number: int, parts_NB: torch.Tensor) -> Ended:
        parts = self._comm._all(parts_NB.clone())
        return Ended(torch.stack([parts[rank][self.rank] for rank in self._ranks]))

    def begin_gather(self, number: int, part_B: torch.Tensor) -> Ended:
        parts = self._comm._all(part_B.clone())
        return Ended(torch.stack([parts[rank] for rank in self._ranks]))


def in_threads(size: int, rank: Callable[[Comm], Any], *, each: int | None = None) -> list[Any]:
    """What `rank` returns for the Comm of each rank; raises the first one's error. For `each` see
    ThreadComm."""
    world = _World(size)
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            results[number] = rank(ThreadComm(world, number, each))
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)
            world.barrier.abort()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise next(
            (e for e in errors if not isinstance(e, threading.BrokenBarrierError)), errors[0]
        )
    return results
