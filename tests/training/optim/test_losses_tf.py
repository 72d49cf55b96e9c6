"""Losses in TensorFlow: those of numpy, and so those in torch."""

import pytest
import tensorflow as tf

from howdah.training.optim.losses_tf import LABELS, row_losses
from tests.support.training.task_losses import batch, by_hand, options


@pytest.mark.parametrize("task", ["single_label", "multi_label", "regression"])
def test_losses(task):
    logits, labels = batch(task)
    assert LABELS[task].is_compatible_with(tf.constant(labels))
    losses = row_losses(task, **options(task))(tf.constant(logits), tf.constant(labels))
    assert losses.numpy() == pytest.approx(by_hand(task), rel=1e-5)
