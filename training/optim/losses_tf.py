"""The loss of each row in TensorFlow by task; training/optim/losses_torch.py has the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

import numpy as np
import tensorflow as tf

from howdah.config.tasks import Task

LABELS: dict[Task, tf.TensorSpec] = {
    "single_label": tf.TensorSpec([None], tf.int32),
    "multi_label": tf.TensorSpec([None, None], tf.float32),
    "regression": tf.TensorSpec([None], tf.float32),
}
"""Shape and type of a batch's labels by task."""


def row_losses(
    task: Task, *, label_smoothing: float = 0.0, positive_weights: np.ndarray | None = None
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """(logits_BC, labels) -> loss_B, with a Batch's labels.

    Args:
        label_smoothing: training.label_smoothing_factor.
        positive_weights: float32[C] for task multi_label; None: all 1.
    """

    def cross_entropy(logits_BC: tf.Tensor, labels_B: tf.Tensor) -> tf.Tensor:
        loss_B = tf.nn.sparse_softmax_cross_entropy_with_logits(labels_B, logits_BC)
        if not label_smoothing:
            return loss_B
        # Like torch.nn.functional.cross_entropy: the factor is spread evenly over all classes.
        uniform_B = -tf.reduce_mean(tf.nn.log_softmax(logits_BC), axis=-1)
        return (1.0 - label_smoothing) * loss_B + label_smoothing * uniform_B

    def binary(logits_BC: tf.Tensor, labels_BC: tf.Tensor) -> tf.Tensor:
        if positive_weights is None:
            losses_BC = tf.nn.sigmoid_cross_entropy_with_logits(labels_BC, logits_BC)
        else:
            losses_BC = tf.nn.weighted_cross_entropy_with_logits(
                labels_BC, logits_BC, pos_weight=positive_weights
            )
        return tf.reduce_mean(losses_BC, axis=1)

    def squared(logits_B1: tf.Tensor, targets_B: tf.Tensor) -> tf.Tensor:
        return tf.square(logits_B1[:, 0] - targets_B)

    if task == "single_label":
        return cross_entropy
    if task == "multi_label":
        return binary
    if task == "regression":
        return squared
    assert_never(task)
