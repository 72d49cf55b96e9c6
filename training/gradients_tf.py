"""Gradients in variables of their own: accumulated over micro-batches, reduced over ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from training.comm import Comm, split_evenly
from training.parameters import WORD_EMBEDDINGS

__all__ = ["Gradients"]


class Gradients:
    """The gradients of a model's trainable variables. Its methods are graph operations.

    Args:
        named: trainable variables by name.
    """

    def __init__(self, named: Mapping[str, tf.Variable]) -> None:
        self.sums = {
            name: tf.Variable(tf.zeros(variable.shape), trainable=False)
            for name, variable in named.items()
        }
        self.arrange(None, sparse_embeddings=False)

    def arrange(self, groups: int | None, *, sparse_embeddings: bool) -> None:
        """How the gradients cross the network from now on; the same on every rank of a world.

        What has been traced of `reduce` before stays as it was.

        Args:
            groups: training.fusion_groups: messages that the reduction takes; None: by size.
            sparse_embeddings: the word embeddings' gradient is sent as the rows that a batch
                touched.
        """
        rows = sparse_embeddings and WORD_EMBEDDINGS in self.sums
        self._table = self.sums[WORD_EMBEDDINGS] if rows else None
        self._dense = [sums for sums in self.sums.values() if sums is not self._table]
        sizes = [sums.shape.num_elements() for sums in self._dense]
        self._groups = split_evenly(sizes, groups)

    def add(self, gradients: Sequence[tf.Tensor | tf.IndexedSlices], *, first: bool) -> None:
        """Take in a micro-batch's gradients.

        Args:
            gradients: in the order of the variables; the word embeddings' as rows, an id as often
                as the batch has it.
            first: of a step: what was there is replaced (by the tensor itself, nothing is copied).
        """
        for sums, gradient in zip(self.sums.values(), gradients, strict=True):
            if first:
                sums.assign(tf.convert_to_tensor(gradient))
            elif isinstance(gradient, tf.IndexedSlices):
                sums.scatter_add(gradient)
            else:
                sums.assign_add(gradient)

    def reduce(self, comm: Comm, ids_U: tf.Tensor) -> None:
        """Sum over all ranks. Every rank enters.

        Args:
            ids_U: int64, the token ids of this rank's micro-batches of the step, each once.
        """
        if comm.size == 1:
            return
        count = self._groups[-1] + 1
        members = [
            [sums for sums, group in zip(self._dense, self._groups, strict=True) if group == number]
            for number in range(count)
        ]
        messages = [tf.concat([tf.reshape(s, [-1]) for s in part], 0) for part in members]
        for part, reduced in zip(members, comm.reduce_gradients(messages), strict=True):
            pieces = tf.split(reduced, [sums.shape.num_elements() for sums in part])
            for sums, piece in zip(part, pieces, strict=True):
                sums.assign(tf.reshape(piece, sums.shape))
        if self._table is not None:
            ids, values = comm.reduce_rows(ids_U, tf.gather(self._table, ids_U))
            table = tf.math.unsorted_segment_sum(values, ids, self._table.shape[0])
            self._table.assign(table)

    def norm(self) -> tf.Tensor:
        """Global L2 norm, a scalar."""
        squares = [2.0 * tf.nn.l2_loss(sums) for sums in self.sums.values()]
        return tf.sqrt(tf.add_n(squares))
