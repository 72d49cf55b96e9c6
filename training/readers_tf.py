"""The batches as a `tf.data.Dataset`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
import tensorflow as tf

from training.readers import Batch, BatchSource

_BLOCK = 16
"""Batches that cross from Python to TensorFlow at a time: a crossing costs more than a batch."""

_SIGNATURE = {
    "ids": tf.TensorSpec([None], tf.int32),
    "mask": tf.TensorSpec([None], tf.int32),
    "labels": tf.TensorSpec([None], tf.int32),
    "weights": tf.TensorSpec([None], tf.float32),
    "global_weights": tf.TensorSpec([None], tf.float32),
    "shapes": tf.TensorSpec([None, 2], tf.int32),
}


def tf_dataset(source: BatchSource) -> tf.data.Dataset:
    """Micro-batches of `source`: {input_ids [B, T], attention_mask [B, T], labels [B], weights [B],
    global_weight []}, each time it is iterated the same."""

    def blocks() -> Iterator[dict[str, np.ndarray]]:
        batches = iter(source)
        while block := list(islice(batches, _BLOCK)):
            yield _joined(block)

    found = tf.data.Dataset.from_generator(blocks, output_signature=_SIGNATURE)
    return found.flat_map(_cut)


def _joined(block: list[Batch]) -> dict[str, np.ndarray]:
    """Several batches as flat arrays, with the shape [B, T] of each."""
    return {
        "ids": np.concatenate([batch.ids_BT.ravel() for batch in block]),
        "mask": np.concatenate([batch.mask_BT.ravel() for batch in block]),
        "labels": np.concatenate([batch.labels_B for batch in block]),
        "weights": np.concatenate([batch.weights_B for batch in block]),
        "global_weights": np.array([batch.global_weight for batch in block], np.float32),
        "shapes": np.array([batch.ids_BT.shape for batch in block], np.int32),
    }


def _cut(block: dict[str, tf.Tensor]) -> tf.data.Dataset:
    """The batches of a block again, cut inside TensorFlow."""
    shapes = block["shapes"]
    rows_end = tf.cumsum(shapes[:, 0])
    cells_end = tf.cumsum(shapes[:, 0] * shapes[:, 1])

    def one(n: tf.Tensor) -> dict[str, tf.Tensor]:
        shape = shapes[n]
        cells = slice(cells_end[n] - shape[0] * shape[1], cells_end[n])
        rows = slice(rows_end[n] - shape[0], rows_end[n])
        return {
            "input_ids": tf.reshape(block["ids"][cells], shape),
            "attention_mask": tf.reshape(block["mask"][cells], shape),
            "labels": block["labels"][rows],
            "weights": block["weights"][rows],
            "global_weight": block["global_weights"][n],
        }

    return tf.data.Dataset.range(tf.cast(tf.shape(shapes)[0], tf.int64)).map(one)
