"""BERT, RoBERTa and XLM-RoBERTa in TensorFlow: the logits that transformers computed."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from howdah.config.model import ModelSection, TrainingSection
from howdah.data.family import FAMILIES
from tests.support.tiny_families import FAMILY_NAMES, LABELS, LOGITS, batch, write_family
from training.model import forward_tf
from training.model.pretrained import load_base


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_logits_are_those_of_transformers(name, tmp_path):
    """LOGITS are transformers': test_families_torch.py compares them."""
    base = load_base(write_family(str(tmp_path), name, labels=LABELS), label_names=LABELS)
    model = forward_tf.build(
        base.config, base.weights, num_labels=len(LABELS),
        training=TrainingSection(framework="tensorflow"), model=ModelSection(),
    )  # fmt: skip
    ids_BT, mask_BT, types_BT = batch(base.config["pad_token_id"])
    forward = forward_tf.forward_fn(model)
    np.testing.assert_allclose(forward(ids_BT, mask_BT), LOGITS[name], atol=1e-5)
    typed = LOGITS.get(f"{name}, two types", LOGITS[name])
    np.testing.assert_allclose(forward(ids_BT, mask_BT, types_BT), typed, atol=1e-5)

    inputs = [tf.constant(array) for array in (ids_BT, mask_BT)]
    for types in (None, tf.constant(types_BT)):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(*inputs, tf.constant([1, 2], tf.int64), types) ** 2)
        gradients = dict(
            zip(model.variables, tape.gradient(loss, list(model.variables.values())), strict=True)
        )
        assert all(gradient is not None for gradient in gradients.values())
        sparse = {n for n, g in gradients.items() if isinstance(g, tf.IndexedSlices)}
        assert sparse == {FAMILIES[name].word_embeddings}
