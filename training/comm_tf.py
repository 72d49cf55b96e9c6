"""Horovod for TensorFlow behind training/comm.py."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from horovod.common.exceptions import HorovodInternalError

from training.comm import Comm, Waits, lost
from training.connections import Connections
from training.env import rank_env

_OF_A_COLLECTIVE = re.compile(
    r"horovod|gloo|\bhowdah\.(sum|gather|gradient|rows|broadcast)\b", re.I
)


class HorovodTfComm(Comm):
    """A world of TensorFlow processes.

    `reduce_gradients` and `reduce_rows` are graph operations as well: inside a `tf.function` the
    caller puts `watch()` around its call.
    """

    def __init__(self, waits: Waits | None = None, connections: Connections | None = None) -> None:
        super().__init__(waits)
        self._connections = connections or Connections()
        # As in comm_torch.py: gradients arrive joined, and stay as they are.
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
        tensor = tf.constant(np.asarray(values, np.float64))
        with self.watch():
            return np.array(hvd.allreduce(tensor, op=hvd.Sum, name="howdah.sum"))

    def gather(self, array: np.ndarray) -> np.ndarray:
        tensor = tf.constant(array, dtype=array.dtype)
        with self.watch():
            return np.array(hvd.allgather(tensor, name=f"howdah.gather.{array.dtype}"))

    def reduce_gradients(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        with self.watch():
            return [
                hvd.allreduce(gradient, op=hvd.Sum, name=f"howdah.gradient.{number}")
                for number, gradient in enumerate(gradients)
            ]

    def reduce_rows(self, ids_U: tf.Tensor, values_UD: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with self.watch():
            return (
                hvd.allgather(ids_U, name="howdah.rows.ids"),
                hvd.allgather(values_UD, name="howdah.rows.values"),
            )

    def _broadcast(self, array: np.ndarray, root: int) -> np.ndarray:
        tensor = tf.constant(array, dtype=array.dtype)
        with self.watch():
            return np.array(hvd.broadcast(tensor, root_rank=root, name="howdah.broadcast"))

    def shutdown(self) -> None:
        hvd.shutdown()

    def give_up(self) -> None:
        self._connections.shut()

    @contextmanager
    def _typed(self) -> Iterator[None]:
        """Turn a failed Horovod operation into RankLost."""
        try:
            yield
        except HorovodInternalError as error:
            raise lost(self._where, str(error)) from error
        except tf.errors.OpError as error:
            # Horovod's kernels raise UnknownError (or Aborted), with Horovod's own words or with
            # Gloo's as they are; other operators' errors stay as they are.
            if not _OF_A_COLLECTIVE.search(str(error)):
                raise
            raise lost(self._where, getattr(error, "message", None) or str(error)) from error

    @property
    def _where(self) -> str:
        return f"rank {self.rank} of {self.size}"
