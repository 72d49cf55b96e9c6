"""Comm by Horovod: the parts that do not depend on the framework."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
from horovod.common.exceptions import HorovodInternalError  # noqa: TID253 - as its subclasses

from howdah.core.processes import limit as test_limit
from howdah.process.env import rank_env
from howdah.training.comm.base import Comm, Exchange, Pending, Waits, lost
from howdah.training.comm.connections import Connections


class HorovodComm(Comm):
    """A world connected by Horovod; the constructor joins it.

    A subclass sets `hvd` and implements the collectives with it.

    Args:
        limit: not used: Horovod does not have a limit for a collective.
        groups: True if this world's ranks may form groups (`levels`). Horovod has to know when it
            starts, and then asks all ranks in every cycle whether one forms a group.
    Raises:
        RankLost: a rank was lost while the world formed.
    """

    hvd: ModuleType
    """Horovod's module for the framework."""

    def __init__(
        self,
        waits: Waits | None = None,
        connections: Connections | None = None,
        limit: float | None = None,
        *,
        groups: bool = False,
    ) -> None:
        super().__init__(waits)
        self._levels: tuple[RankGroup | None, Exchange] | None = None
        self._connections = connections or Connections()
        # Gradients are already joined (split_evenly). Horovod would fuse those that happen to be
        # ready: with three or more ranks, the bits of the sums would differ between runs.
        os.environ.setdefault("HOROVOD_FUSION_THRESHOLD", "0")
        here = rank_env()
        # Equal on all ranks, as it must be: if one is among all of its world on its node, all are.
        self._may_form_groups = groups and here.local_size < here.size
        os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = str(int(self._may_form_groups))
        with self._connections:
            try:
                self.hvd.init()
            except ValueError as error:  # only Horovod's log has the cause
                self.hvd.shutdown()
                raise lost(f"rank {here.rank} of {here.size}", str(error)) from error
        self.rank, self.size = self.hvd.rank(), self.hvd.size()
        self.local_rank, self.local_size = self.hvd.local_rank(), self.hvd.local_size()
        self.waits_for_ever = self.hvd.mpi_enabled()
        self.backend = f"horovod ({'mpi' if self.waits_for_ever else 'gloo'})"

    def levels(self) -> tuple[Exchange | None, Exchange]:
        if self._levels is None:
            with self.watch(), self._connections:
                self._levels = self._formed()
        return self._levels

    def has_levels(self) -> bool:
        each, size = self.local_size, self.size
        places = self.gather(np.array([[self.hvd.cross_rank(), self.local_rank, each]]))
        alike = np.array_equal(places, [[n // each, n % each, each] for n in range(size)])
        return test_limit("levels", self._may_form_groups and 1 < each < size and alike)

    def _formed(self) -> tuple[RankGroup | None, Exchange]:
        if not self.has_levels():
            return None, self
        each, size = self.local_size, self.size
        # Every rank adds every group, in one order.
        nodes = [self._add_group(range(first, first + each)) for first in range(0, size, each)]
        across = [self._add_group(range(place, size, each)) for place in range(each)]
        return nodes[self.rank // each], across[self.local_rank]

    def _add_group(self, ranks: range) -> RankGroup:
        try:
            return RankGroup(self, self.hvd.add_process_set(list(ranks)), ranks)
        except ValueError as error:  # it is shutting down: only its log has the cause
            raise lost(self._where, str(error)) from error

    def begin_exchange(self, number: int, parts_NB: Any) -> Pending:
        return self.exchange(number, parts_NB, self.hvd.global_process_set)

    def begin_gather(self, number: int, part_B: Any) -> Pending:
        return self.gather_parts(number, part_B, self.hvd.global_process_set)

    @abstractmethod
    def exchange(self, number: int, parts_NB: Any, among: Any) -> Pending:
        """`begin_exchange` among a process set."""

    @abstractmethod
    def gather_parts(self, number: int, part_B: Any, among: Any) -> Pending:
        """`begin_gather` among a process set."""

    def shutdown(self) -> None:
        self.hvd.shutdown()

    def give_up(self) -> None:
        self._connections.shut()

    @contextmanager
    def guarded(self) -> Iterator[None]:
        with self._typed():  # Horovod's errors have a class, unlike a computation's
            yield

    @contextmanager
    def _typed(self) -> Iterator[None]:
        try:
            yield
        except HorovodInternalError as error:
            raise lost(self._where, str(error)) from error

    @property
    def _where(self) -> str:
        return f"rank {self.rank} of {self.size}"


class RankGroup:
    """Some of a world's ranks, a process set of Horovod's; `rank` is this one's place in it."""

    def __init__(self, comm: HorovodComm, group: Any, ranks: range) -> None:
        self._comm, self._group = comm, group
        self.rank, self.size = (ranks.index(comm.rank) if comm.rank in ranks else -1), len(ranks)

    def begin_exchange(self, number: int, parts_NB: Any) -> Pending:
        with self._there():
            return self._comm.exchange(number, parts_NB, self._group)

    def begin_gather(self, number: int, part_B: Any) -> Pending:
        with self._there():
            return self._comm.gather_parts(number, part_B, self._group)

    @contextmanager
    def _there(self) -> Iterator[None]:
        """Where a rank was lost, Horovod has ended, and its process sets with it."""
        try:
            yield
        except ValueError as error:
            raise lost(f"rank {self._comm.rank} of {self._comm.size}", str(error)) from error
