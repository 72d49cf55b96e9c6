"""`training.class_weights` as an array, the same for the model and for its baseline."""

from __future__ import annotations

from typing import assert_never

import numpy as np

from howdah.config.training import TrainingSection
from howdah.data.splits.shards import ShardSet, class_counts
from howdah.errors import ConfigError


def positive_weights(training: TrainingSection, shards: ShardSet) -> np.ndarray | None:
    """float32[C] for task multi_label: the weight of a label's term in rows that have the label;
    None: all 1. balanced: rows without it / rows with it, so that both sides weigh the same.

    Args:
        shards: the training split.
    Raises:
        ConfigError: see `class_weights`.
    """
    if training.class_weights != "balanced":
        return class_weights(training, shards)
    having_C = class_counts(shards, len(shards.dataset.manifest.labels))
    weights_C = (shards.rows - having_C) / np.maximum(having_C, 1)
    return np.where((having_C > 0) & (weights_C > 0), weights_C, 1.0).astype(np.float32)


def class_weights(training: TrainingSection, shards: ShardSet) -> np.ndarray | None:
    """float32[C]: the weight of each class in the loss; None: all 1.

    Args:
        shards: the training split.
    Raises:
        ConfigError: labels that the dataset does not have, or weights that are not above 0.
    """
    option, labels = training.class_weights, shards.dataset.manifest.labels
    if not isinstance(option, str):
        unknown = [name for name in option if name not in labels]
        bad = [name for name, weight in option.items() if not 0 < weight < float("inf")]
        if unknown or bad:
            raise ConfigError(
                "class weights do not fit the dataset's labels",
                where="training.class_weights",
                expected=f"weights above 0 for {', '.join(labels)}",
                got=", ".join([*unknown, *(f"{name}: {option[name]}" for name in bad)]),
                remedy="name each label as the dataset does; labels left out weigh 1",
            )
        return np.array([option.get(label, 1.0) for label in labels], np.float32)
    if option == "none":
        return None
    if option != "balanced":
        assert_never(option)
    counts_C = class_counts(shards, len(labels))  # scikit-learn's compute_class_weight("balanced")
    balanced_C = counts_C.sum() / (np.count_nonzero(counts_C) * np.maximum(counts_C, 1))
    return np.where(counts_C > 0, balanced_C, 1.0).astype(np.float32)
