"""The names of a dataset's splits."""

from __future__ import annotations

from typing import Literal, get_args

Split = Literal["train", "validation", "test"]
HeldOut = Literal["validation", "test"]
"""A split that a model can be evaluated on: none of its rows is trained on."""

SPLITS: tuple[Split, ...] = get_args(Split)
TRAIN, VALIDATION, TEST = SPLITS

SPLIT_WORDS: dict[str, Split] = {
    "train": TRAIN,
    "training": TRAIN,
    "validation": VALIDATION,
    "valid": VALIDATION,
    "val": VALIDATION,
    "dev": VALIDATION,
    "test": TEST,
    "eval": TEST,
}
"""Words of other data sets and writers for the splits."""
