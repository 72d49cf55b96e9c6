"""Comm by Horovod: the parts that do not depend on the framework."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from horovod.common.exceptions import HorovodInternalError  # noqa: TID253 - as its subclasses

from howdah.process.env import rank_env
from howdah.training.comm.base import Comm, Waits, lost
from howdah.training.comm.connections import Connections


class HorovodComm(Comm):
    """A world connected by Horovod; the constructor joins it.

    A subclass sets `hvd` and implements the collectives with it.

    Args:
        limit: not used: Horovod does not have a limit for a collective.
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
    ) -> None:
        super().__init__(waits)
        self._connections = connections or Connections()
        # Gradients are already joined (split_evenly). Horovod would fuse those that happen to be
        # ready: with three or more ranks, the bits of the sums would differ between runs.
        os.environ.setdefault("HOROVOD_FUSION_THRESHOLD", "0")
        here = rank_env()
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
