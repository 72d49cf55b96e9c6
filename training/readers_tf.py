"""The batches as a `tf.data.Dataset`."""

from __future__ import annotations

import tensorflow as tf

from training.readers import BatchSource

_SIGNATURE = {
    "input_ids": tf.TensorSpec([None, None], tf.int32),
    "attention_mask": tf.TensorSpec([None, None], tf.int32),
    "labels": tf.TensorSpec([None], tf.int32),
    "weights": tf.TensorSpec([None], tf.float32),
    "global_weight": tf.TensorSpec([], tf.float32),
}


def tf_dataset(source: BatchSource) -> tf.data.Dataset:
    """Micro-batches of `source`: {input_ids [B, T], attention_mask [B, T], labels [B], weights [B],
    global_weight []}, each time it is iterated the same."""

    def batches():
        for batch in source:
            yield {**batch.arrays(), "global_weight": batch.global_weight}

    return tf.data.Dataset.from_generator(batches, output_signature=_SIGNATURE)
