"""Horovod for torch behind training/comm.py."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import horovod.torch as hvd
import numpy as np
import torch
from horovod.common.exceptions import HorovodInternalError

from training.comm import Comm, Waits, lost
from training.connections import Connections
from training.env import rank_env


class HorovodTorchComm(Comm):
    """A world of torch processes."""

    def __init__(self, waits: Waits | None = None, connections: Connections | None = None) -> None:
        super().__init__(waits)
        self._connections = connections or Connections()
        # Gradients arrive joined (split_evenly): fusing them again, by who happens to be ready,
        # would change the bits of the sums from three ranks on.
        os.environ.setdefault("HOROVOD_FUSION_THRESHOLD", "0")
        here = rank_env()
        with self._connections:
            try:
                hvd.init()
            except ValueError as error:  # what it has to say of why is in the log
                hvd.shutdown()
                raise lost(f"rank {here.rank} of {here.size}", str(error)) from error
        self.rank, self.size = hvd.rank(), hvd.size()
        self.local_rank, self.local_size = hvd.local_rank(), hvd.local_size()
        carrier = "mpi" if hvd.mpi_enabled() else "gloo"
        self.backend = f"horovod ({carrier})"

    def sum(self, values: np.ndarray) -> np.ndarray:
        tensor = torch.from_numpy(np.array(values, np.float64))
        with self.watch():
            return hvd.allreduce_(tensor, op=hvd.Sum, name="howdah.sum").numpy()

    def gather(self, array: np.ndarray) -> np.ndarray:
        tensor = torch.from_numpy(np.array(array))
        with self.watch():
            return hvd.allgather(tensor, name=f"howdah.gather.{array.dtype}").numpy()

    def reduce_gradients(self, gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        with self.watch():
            handles = [
                hvd.allreduce_async_(gradient, op=hvd.Sum, name=f"howdah.gradient.{number}")
                for number, gradient in enumerate(gradients)
            ]
            return [hvd.synchronize(handle) for handle in handles]

    def reduce_rows(
        self, ids_U: torch.Tensor, values_UD: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        with self.watch():
            ids = hvd.allgather_async(ids_U.contiguous(), name="howdah.rows.ids")
            values = hvd.allgather_async(values_UD.contiguous(), name="howdah.rows.values")
            return hvd.synchronize(ids), hvd.synchronize(values)

    def _broadcast(self, array: np.ndarray, root: int) -> np.ndarray:
        tensor = torch.from_numpy(np.array(array))
        with self.watch():
            return hvd.broadcast_(tensor, root_rank=root, name="howdah.broadcast").numpy()

    def shutdown(self) -> None:
        hvd.shutdown()

    def give_up(self) -> None:
        self._connections.shut()

    @contextmanager
    def _typed(self) -> Iterator[None]:
        """Turn Horovod's internal error into RankLost."""
        try:
            yield
        except HorovodInternalError as error:
            raise lost(f"rank {self.rank} of {self.size}", str(error)) from error
