"""Gradients in TensorFlow variables: accumulated over micro-batches, reduced over ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from howdah.training.comm.base import (
    COMPRESSED_FROM,
    NETWORK_MESSAGE,
    Comm,
    network_message,
    split_apart,
    split_evenly,
)
from howdah.training.optim import coding_tf as coding


class Gradients:
    """The gradients of a model's trainable variables. Its methods are graph operations."""

    def __init__(self, named: Mapping[str, tf.Variable], *, words: str) -> None:
        self.sums: dict[str, tf.Variable] = {
            name: tf.Variable(tf.zeros(variable.shape), trainable=False)
            for name, variable in named.items()
        }
        """Gradients by name. The word embeddings' is complete only after `reduce`; until then it is
        in `_rows`."""
        self._table = self.sums.get(words)
        if self._table is not None:
            width = self._table.shape[1]
            self._ids = tf.Variable(tf.zeros([0], tf.int32), trainable=False, shape=[None])
            self._rows = tf.Variable(tf.zeros([0, width]), trainable=False, shape=[None, width])
            self._on_gpu = "GPU" in self._table.device
        self.arrange(None, sparse_embeddings=False)

    def arrange(
        self, groups: int | None, *, sparse_embeddings: bool, compression: str = "none"
    ) -> None:
        """Set how gradients are sent from now on; all ranks of a world must do the same.

        A `reduce` that was traced before does not change.

        Args:
            groups: number of messages of a reduction; None: by size.
            sparse_embeddings: send only those rows of the word embeddings' gradient that a batch
                touches.
            compression: "none", "bf16" or "int8".
        """
        self._by_rows = sparse_embeddings and self._table is not None
        self._dense = [
            sums for sums in self.sums.values() if not (self._by_rows and sums is self._table)
        ]
        self._groups = groups
        self.send_in(compression)

    def send_in(self, compression: str) -> None:
        """Send gradients in these numbers from now on, as in `arrange`; drop what is held back."""
        self._compression = compression
        self._held: dict[int, tf.Variable] = {}
        """What int8 has held back of each message: training/optim/messages_torch.py."""

    @property
    def dense_elements(self) -> int:
        """Number of gradients that are sent as they are, not as rows."""
        return sum(sums.shape.num_elements() for sums in self._dense)

    def add(self, gradients: Sequence[tf.Tensor | tf.IndexedSlices], *, first: bool) -> None:
        """Add a micro-batch's gradients.

        Args:
            gradients: gradients in the order of the variables; the word embeddings' are rows, an id
                occurs as often as in the batch.
            first: this is the first micro-batch of a step: replace the gradients of the last step
                (dense ones without a copy).
        """
        for sums, gradient in zip(self.sums.values(), gradients, strict=True):
            if sums is self._table:
                self._add_rows(gradient, first=first)
            elif first:
                sums.assign(gradient)
            else:
                sums.assign_add(gradient)

    def _add_rows(self, gradient: tf.IndexedSlices, *, first: bool) -> None:
        # Rows are kept until the reduction: the table is half of a small model, and a batch touches
        # a hundredth of it.
        ids, rows = gradient.indices, gradient.values
        if not first:
            ids = tf.concat([self._ids, ids], 0)
            rows = tf.concat([self._rows, rows], 0)
        self._keep_rows(ids, rows)

    def _keep_rows(self, ids: tf.Tensor, rows: tf.Tensor) -> None:
        """Sum the rows of each id."""
        unique_U, index_N = tf.unique(ids)
        self._ids.assign(unique_U)
        self._rows.assign(tf.math.unsorted_segment_sum(rows, index_N, tf.size(unique_U)))  # [U, D]

    def reduce(self, comm: Comm, *, whole: bool = True) -> None:
        """Sum over all ranks; `sums` are complete afterwards. Every rank enters.

        Args:
            whole: send what int8 has held back too, so that nothing is held back afterwards.
        """
        if self._table is not None:
            if self._by_rows and comm.size > 1:
                self._reduce_rows(comm)
            # Assigned as a whole: a variable that was written by rows once is copied at each read.
            self._table.assign(
                tf.math.unsorted_segment_sum(self._rows, self._ids, self._table.shape[0])
            )
        if comm.size == 1:
            return
        parts = self._messages(comm)
        # TensorFlow does not copy a part with one member, neither here nor in the split.
        messages = [tf.concat([tf.reshape(s, [-1]) for s in part], 0) for part in parts]
        for number, (part, message) in enumerate(zip(parts, messages, strict=True)):
            reduced = self._sum(comm, number, message, whole)
            pieces = tf.split(reduced, [sums.shape.num_elements() for sums in part])
            for sums, piece in zip(part, pieces, strict=True):
                sums.assign(tf.reshape(piece, sums.shape))

    def _sum(self, comm: Comm, number: int, message: tf.Tensor, whole: bool) -> tf.Tensor:
        """The sum of a message over all ranks, sent as `arrange` says."""
        size = message.shape.num_elements()
        if self._compression == "none" or size < COMPRESSED_FROM:
            return comm.begin_sum(number, message).wait()
        if self._compression == "bf16":
            return coding.bf16_sum(comm, number, message)
        if number not in self._held:
            with tf.init_scope():
                held = tf.zeros(coding.held_shape(size, comm.size))
                self._held[number] = tf.Variable(held, trainable=False)
        by = coding.whole_sum if whole else coding.int8_sum
        return by(comm, number, message, self._held[number])

    def forget(self) -> None:
        """Drop what int8 holds back: it may contain NaN or infinity."""
        for held in self._held.values():
            held.assign(tf.zeros(held.shape))

    def _reduce_rows(self, comm: Comm) -> None:
        if not self._on_gpu:  # a CPU sums an id's rows in order, with equal bits on all ranks
            ids, rows = self._exchanged_rows(comm, self._ids, self._rows)
            self._keep_rows(ids, rows)
            return
        order = tf.argsort(self._ids)
        sorted_ids, sorted_rows = tf.gather(self._ids, order), tf.gather(self._rows, order)
        ids, rows = sums_in_order(*self._exchanged_rows(comm, sorted_ids, sorted_rows))
        self._ids.assign(ids)
        self._rows.assign(rows)

    def _exchanged_rows(
        self, comm: Comm, ids: tf.Tensor, rows: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """All ranks' ids and rows, in the order of the ranks."""
        plain = self._compression == "none"
        sent = rows if plain else coding.to_bf16(rows)
        ids, sent = comm.reduce_rows(tf.cast(ids, tf.int64), sent)
        return tf.cast(ids, tf.int32), sent if plain else coding.from_bf16(sent)

    def _messages(self, comm: Comm) -> list[list[tf.Variable]]:
        """The variables of each message."""
        # Within a node joining tensors costs more than a message.
        sizes = [sums.shape.num_elements() for sums in self._dense]
        if comm.within_node:
            groups = split_apart(sizes, self._groups)
        else:
            on_gpu = tf.config.get_visible_devices("GPU")
            most = NETWORK_MESSAGE if on_gpu else network_message(comm.size)
            groups = split_evenly(sizes, self._groups, most=most)
        parts: list[list[tf.Variable]] = [[] for _ in range(max(groups) + 1)]
        for sums, group in zip(self._dense, groups, strict=True):
            parts[group].append(sums)
        return parts

    def norm(self, comm: Comm) -> tf.Tensor:
        """Global L2 norm of the reduced gradient, a scalar."""
        by_rows = self._by_rows or comm.size == 1
        squares = [
            2.0 * tf.nn.l2_loss(self._rows if by_rows and sums is self._table else sums)
            for sums in self.sums.values()
        ]
        return tf.sqrt(tf.add_n(squares))


def sums_in_order(ids: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Each id once, with the sum of its rows; on any device they are added in the order of ranks.

    Within one call a GPU adds rows of the same id in an arbitrary order, so that ranks would get
    different bits. Therefore each call adds the rows of one rank, which has each id once.

    Args:
        ids: int32 [N], concatenated by rank; the ids of each rank ascend.
        rows: float32 [N, D].
    Returns:
        ids int32 [U], rows float32 [U, D].
    """
    unique_U, index_N = tf.unique(ids)
    first = tf.cast(tf.where(ids[1:] <= ids[:-1])[:, 0], tf.int32) + 1
    starts, ends = tf.concat([[0], first], 0), tf.concat([first, [tf.size(ids)]], 0)

    def add(number: tf.Tensor, sums_UD: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        part = slice(starts[number], ends[number])
        return number + 1, tf.tensor_scatter_nd_add(sums_UD, index_N[part][:, None], rows[part])

    _, sums_UD = tf.while_loop(
        lambda number, _: number < tf.size(starts),
        add,
        (tf.constant(0), tf.zeros([tf.size(unique_U), rows.shape[1]])),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, rows.shape[1]])),
    )
    return unique_U, sums_UD
