"""The batches as a `tf.data.Dataset`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from howdah.training.data.readers import Batch, BatchSource

_TYPES = [tf.int32, tf.int32, tf.int32, tf.float32, tf.float32, tf.int32]


def tf_dataset(source: BatchSource) -> tf.data.Dataset:
    """Micro-batches of `source`: {input_ids [B, T], attention_mask [B, T], labels [B], weights [B],
    global_weight []}, each time it is iterated the same.

    A block of batches crosses from Python to TensorFlow at a time, flat, and is cut there: a
    crossing costs more than a batch.
    """

    def block(number: tf.Tensor) -> list[tf.Tensor]:
        return tf.numpy_function(lambda n: _joined(source.block(int(n))), [number], _TYPES)

    blocks = tf.data.Dataset.range(source.block_count).map(block)
    return blocks.prefetch(2).flat_map(_cut)


def _joined(block: list[Batch]) -> tuple[np.ndarray, ...]:
    """Several batches as flat arrays, and where each begins: int32[K, 4] cell, row, B, T."""
    shapes_K2 = np.array([batch.ids_BT.shape for batch in block], np.int32)
    rows_K = shapes_K2[:, 0]
    cells_K = shapes_K2.prod(1)
    begins_K2 = np.stack([np.cumsum(cells_K) - cells_K, np.cumsum(rows_K) - rows_K], 1)
    return (
        np.concatenate([batch.ids_BT.ravel() for batch in block]),
        np.concatenate([batch.mask_BT.ravel() for batch in block]),
        np.concatenate([batch.labels_B for batch in block]),
        np.concatenate([batch.weights_B for batch in block]),
        np.array([batch.global_weight for batch in block], np.float32),
        np.concatenate([begins_K2, shapes_K2], 1).astype(np.int32),
    )


def _cut(
    ids: tf.Tensor,
    mask: tf.Tensor,
    labels: tf.Tensor,
    weights: tf.Tensor,
    global_weights_K: tf.Tensor,
    places_K4: tf.Tensor,
) -> tf.data.Dataset:
    """The batches of a block again."""
    places_K4 = tf.ensure_shape(places_K4, [None, 4])

    def one(place: tf.Tensor, global_weight: tf.Tensor) -> dict[str, tf.Tensor]:
        cell, row, shape = place[0:1], place[1:2], place[2:4]
        cells, rows = tf.reduce_prod(shape, keepdims=True), place[2:3]
        return {
            "input_ids": tf.reshape(tf.slice(ids, cell, cells), shape),
            "attention_mask": tf.reshape(tf.slice(mask, cell, cells), shape),
            "labels": tf.slice(labels, row, rows),
            "weights": tf.slice(weights, row, rows),
            "global_weight": global_weight,
        }

    return tf.data.Dataset.from_tensor_slices(
        (places_K4, tf.ensure_shape(global_weights_K, [None]))
    ).map(one)


def tf_batches(source: BatchSource) -> Iterator[dict[str, tf.Tensor]]:
    """The same, as eager tensors one after the other: the cheapest way to a step that is called
    from Python (at 32 rows a batch, tf.data's own work costs several times what reading does)."""
    for batch in source:
        tensors = {name: tf.constant(array) for name, array in batch.arrays().items()}
        tensors["global_weight"] = tf.constant(batch.global_weight, tf.float32)
        yield tensors
