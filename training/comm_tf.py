"""Horovod for TensorFlow behind training/comm.py."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from horovod.common.exceptions import HorovodInternalError

from training.comm import Comm, RankLost


class HorovodTfComm(Comm):
    """A world of TensorFlow processes.

    `reduce_gradients` and `reduce_rows` are graph operations as well: inside a `tf.function` the
    caller puts `watch()` around its call.
    """

    def __init__(self) -> None:
        # As in comm_torch.py: gradients arrive joined, and stay as they are.
        os.environ.setdefault("HOROVOD_FUSION_THRESHOLD", "0")
        hvd.init()
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

    def _broadcast(self, array: np.ndarray) -> np.ndarray:
        tensor = tf.constant(array, dtype=array.dtype)
        with self.watch():
            return np.array(hvd.broadcast(tensor, root_rank=0, name="howdah.broadcast"))

    def shutdown(self) -> None:
        hvd.shutdown()

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Turn a failed Horovod operation into RankLost."""
        try:
            yield
        except HorovodInternalError as error:
            raise self._lost(error) from error
        except tf.errors.OpError as error:
            # Horovod's kernels raise UnknownError (or Aborted); other operators' stay as they are.
            if "Horovod" not in str(error):
                raise
            raise self._lost(error) from error

    def _lost(self, error: Exception) -> RankLost:
        text = getattr(error, "message", None) or str(error)
        return RankLost(
            "another rank was lost, and training stopped",
            where=f"rank {self.rank} of {self.size}",
            got=text.splitlines()[0] if text else "a collective failed",
            remedy="the lost rank's log says why; start again: the run goes on from the newest"
            " checkpoint",
        )
