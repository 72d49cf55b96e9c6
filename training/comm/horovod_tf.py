"""Comm by Horovod for TensorFlow."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from howdah.training.comm.base import Ended, Pending, lost
from howdah.training.comm.horovod import HorovodComm

_OF_A_COLLECTIVE = re.compile(
    r"horovod|gloo|\bhowdah\.(sum|sums|gather|gradient|exchange|rows|broadcast)\b", re.I
)


class HorovodTfComm(HorovodComm):
    """A world of TensorFlow processes.

    What sums gradients also works inside a `tf.function`, whose executor begins a collective as
    soon as its input is computed; its caller then puts `watch()` or `guarded()` around the call.
    """

    hvd = hvd

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
            return [self.begin_sum(*one).wait() for one in enumerate(gradients)]

    def begin_sum(self, number: int, message: tf.Tensor) -> Pending:
        return Ended(hvd.allreduce(message, op=hvd.Sum, name=f"howdah.gradient.{number}"))

    def begin_exchange(self, number: int, parts_NB: tf.Tensor) -> Pending:
        return Ended(hvd.alltoall(parts_NB, name=f"howdah.exchange.{number}"))

    def begin_gather(self, number: int, part_B: tf.Tensor) -> Pending:
        return Ended(hvd.allgather(part_B[None], name=f"howdah.sums.{number}"))

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

    @contextmanager
    def _typed(self) -> Iterator[None]:
        with super()._typed():
            try:
                yield
            except tf.errors.OpError as error:
                # Horovod's kernels raise UnknownError or AbortedError with Horovod's or Gloo's
                # message; errors of other operators are not changed.
                if not _OF_A_COLLECTIVE.search(str(error)):
                    raise
                # A graph's error says first where the node was defined; the cause comes before the
                # node's name in braces.
                before, *_ = str(error.message).partition("\n\t [[{{")
                lines = [line.strip() for line in before.splitlines() if line.strip()]
                raise lost(self._where, "\n".join(lines[-1:])) from error
