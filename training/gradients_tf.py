"""Gradients in variables of their own: accumulated over micro-batches, reduced over ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from training.comm import Comm, split_apart, split_evenly
from training.parameters import WORD_EMBEDDINGS

__all__ = ["Gradients", "sums_in_order"]


class Gradients:
    """The gradients of a model's trainable variables. Its methods are graph operations.

    Args:
        named: trainable variables by name.
    """

    def __init__(self, named: Mapping[str, tf.Variable]) -> None:
        self.sums: dict[str, tf.Variable] = {
            name: tf.Variable(tf.zeros(variable.shape), trainable=False)
            for name, variable in named.items()
        }
        """By name; the word embeddings' from `reduce` on: till then it is in `_rows`."""
        self._table = self.sums.get(WORD_EMBEDDINGS)
        if self._table is not None:
            width = self._table.shape[1]
            self._ids = tf.Variable(tf.zeros([0], tf.int32), trainable=False, shape=[None])
            self._rows = tf.Variable(tf.zeros([0, width]), trainable=False, shape=[None, width])
            self._on_gpu = "GPU" in self._table.device
        self.arrange(None, sparse_embeddings=False)

    def arrange(self, groups: int | None, *, sparse_embeddings: bool) -> None:
        """How the gradients cross the network from now on; the same on every rank of a world.

        What has been traced of `reduce` before stays as it was.

        Args:
            groups: training.fusion_groups: messages that the reduction takes; None: by size.
            sparse_embeddings: the word embeddings' gradient is sent as the rows that a batch
                touched.
        """
        self._by_rows = sparse_embeddings and self._table is not None
        self._dense = [
            sums for sums in self.sums.values() if not (self._by_rows and sums is self._table)
        ]
        self._wanted_groups = groups

    def add(self, gradients: Sequence[tf.Tensor | tf.IndexedSlices], *, first: bool) -> None:
        """Take in a micro-batch's gradients.

        Args:
            gradients: in the order of the variables; the word embeddings' as rows, an id as often
                as the batch has it.
            first: of a step: what was there is replaced (but for the rows by the tensor itself,
                nothing is copied).
        """
        for sums, gradient in zip(self.sums.values(), gradients, strict=True):
            if sums is self._table:
                self._add_rows(gradient, first=first)
            elif first:
                sums.assign(gradient)
            else:
                sums.assign_add(gradient)

    def _add_rows(self, gradient: tf.IndexedSlices, *, first: bool) -> None:
        # As rows for as long as it may be: the table is half of a small model, and a batch
        # touches a hundredth of it.
        ids, rows = gradient.indices, gradient.values
        if not first:
            ids = tf.concat([self._ids, ids], 0)
            rows = tf.concat([self._rows, rows], 0)
        self._keep_rows(ids, rows)

    def _keep_rows(self, ids: tf.Tensor, rows: tf.Tensor) -> None:
        """Sum the rows of each id."""
        unique_U, place = tf.unique(ids)
        self._ids.assign(unique_U)
        self._rows.assign(tf.math.unsorted_segment_sum(rows, place, tf.size(unique_U)))

    def reduce(self, comm: Comm) -> None:
        """Sum over all ranks; `sums` are whole from here on. Every rank enters."""
        if self._table is not None:
            if self._by_rows and comm.size > 1:
                self._reduce_rows(comm)
            # Written as a whole: a variable that is once written by rows is copied at each read.
            self._table.assign(
                tf.math.unsorted_segment_sum(self._rows, self._ids, self._table.shape[0])
            )
        if comm.size == 1:
            return
        parts = self._messages(comm)
        # Of a part with one member TensorFlow copies nothing, neither here nor in the split.
        messages = [tf.concat([tf.reshape(s, [-1]) for s in part], 0) for part in parts]
        for part, reduced in zip(parts, comm.reduce_gradients(messages), strict=True):
            pieces = tf.split(reduced, [sums.shape.num_elements() for sums in part])
            for sums, piece in zip(part, pieces, strict=True):
                sums.assign(tf.reshape(piece, sums.shape))

    def _reduce_rows(self, comm: Comm) -> None:
        if not self._on_gpu:  # a CPU sums the rows of an id in their order: the same on all ranks
            ids, rows = comm.reduce_rows(tf.cast(self._ids, tf.int64), self._rows)
            self._keep_rows(tf.cast(ids, tf.int32), rows)
            return
        order = tf.argsort(self._ids)
        own_ids, own_rows = tf.gather(self._ids, order), tf.gather(self._rows, order)
        ids, rows = comm.reduce_rows(tf.cast(own_ids, tf.int64), own_rows)
        ids, rows = sums_in_order(tf.cast(ids, tf.int32), rows)
        self._ids.assign(ids)
        self._rows.assign(rows)

    def _messages(self, comm: Comm) -> list[list[tf.Variable]]:
        """What is sent as one each."""
        # Within a node joining costs more than a message; between nodes a message of a large world
        # has as many hops as the whole gradient.
        split = split_apart if comm.within_node else split_evenly
        groups = split([sums.shape.num_elements() for sums in self._dense], self._wanted_groups)
        parts: list[list[tf.Variable]] = [[] for _ in range(max(groups) + 1)]
        for sums, group in zip(self._dense, groups, strict=True):
            parts[group].append(sums)
        return parts

    def norm(self, comm: Comm) -> tf.Tensor:
        """Global L2 norm of what was reduced, a scalar."""
        by_rows = self._by_rows or comm.size == 1
        squares = [
            2.0 * tf.nn.l2_loss(self._rows if by_rows and sums is self._table else sums)
            for sums in self.sums.values()
        ]
        return tf.sqrt(tf.add_n(squares))


def sums_in_order(ids: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Each id once, with the sum of its rows: added in the order of the ranks on any device.

    A GPU adds rows that come to one place in one call in an order of its own, and no two ranks
    would have the same bits. In a stretch of ids that ascends none comes twice.

    Args:
        ids: int32 [N], of one rank after the other, those of a rank ascending.
        rows: float32 [N, D].
    """
    unique_U, place = tf.unique(ids)
    first = tf.cast(tf.where(ids[1:] <= ids[:-1])[:, 0], tf.int32) + 1
    starts, ends = tf.concat([[0], first], 0), tf.concat([first, [tf.size(ids)]], 0)

    def add(number: tf.Tensor, sums_UD: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        part = slice(starts[number], ends[number])
        return number + 1, tf.tensor_scatter_nd_add(sums_UD, place[part][:, None], rows[part])

    _, sums_UD = tf.while_loop(
        lambda number, _: number < tf.size(starts),
        add,
        (tf.constant(0), tf.zeros([tf.size(unique_U), rows.shape[1]])),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, rows.shape[1]])),
    )
    return unique_U, sums_UD
