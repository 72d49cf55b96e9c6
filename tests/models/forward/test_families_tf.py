"""BERT, RoBERTa and XLM-RoBERTa in TensorFlow: the logits that transformers computed."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from howdah.config.model import ModelSection
from howdah.config.training import TrainingSection
from howdah.data.encode import Encoder
from howdah.data.family import FAMILIES
from howdah.models.forward import forward_tf
from howdah.models.weights.pretrained import load_base
from tests.support.models.tiny_families import FAMILY_NAMES, LABELS, LOGITS, batch, write_family


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


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_token_types_of_pairs_follow_from_the_token_between_the_texts(name, tmp_path):
    """test_families_torch.py holds the types against transformers'."""
    base = load_base(write_family(str(tmp_path), name, labels=LABELS), label_names=LABELS)
    encoder = Encoder(base.tokenizer_files, str(tmp_path))
    pairs = [("the first text", "another"), ("the", "first text, another one")]
    rows = encoder.encode_pairs(pairs, 16)
    width = max(map(len, rows))
    ids_BT = np.full((len(rows), width), base.config["pad_token_id"], np.int32)
    mask_BT, types_BT = np.zeros_like(ids_BT), np.zeros_like(ids_BT)
    for at, row in enumerate(rows):
        ids_BT[at, : len(row)], mask_BT[at, : len(row)] = row, 1
        if encoder.first_type_ends is not None:
            types_BT[at, list(row).index(encoder.first_type_ends) + 1 : len(row)] = 1
    by_separator, whole = (
        forward_tf.forward_fn(
            forward_tf.build(
                base.config, base.weights, num_labels=len(LABELS), model=ModelSection(),
                training=TrainingSection(framework="tensorflow"), first_type_ends=ends,
            )
        )
        for ends in (encoder.first_type_ends, None)
    )  # fmt: skip
    logits, untyped = by_separator(ids_BT, mask_BT), whole(ids_BT, mask_BT)
    np.testing.assert_array_equal(logits, whole(ids_BT, mask_BT, types_BT))
    assert (np.abs(logits - untyped).max() > 1e-3) == (encoder.first_type_ends is not None)
