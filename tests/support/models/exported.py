"""Exports of tiny models of each family, for tests of formats."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np

from howdah.data.encode import Encoder
from howdah.data.family import DISTILBERT
from howdah.models.export.export import export
from howdah.models.export.run_info import RunInfo
from howdah.models.weights.pretrained import BaseModel, load_base
from tests.support.models.tiny_families import FAMILY_NAMES, LABELS, tiny_weights, write_family
from tests.support.models.tiny_model import write_tiny_model

FAMILIES = (DISTILBERT.model_type, *FAMILY_NAMES)


def base_of(directory: str, family: str, **config: object) -> BaseModel:
    """A tiny base of a family, with some keys of config.json changed."""
    if family == DISTILBERT.model_type:
        base = load_base(write_tiny_model(directory))
    else:
        base = load_base(write_family(directory, family))
    base.config.update(config)
    return base


def weights_of(base: BaseModel, classes: int = len(LABELS)) -> dict[str, np.ndarray]:
    """Every tensor random, biases and norms too, so that a mix-up shows."""
    return tiny_weights(base.family, base.config, classes=classes, seed=3)


def info_of(base: BaseModel, **changes: object) -> RunInfo:
    """A run's record."""
    fields = {
        "run_id": "run-1",
        "max_length": 48,
        "clean": {"collapse_whitespace": True},
        "base": {"source": "base", "hash": base.hash},
        "tokenizer_hash": Encoder(base.tokenizer_files, "base").hash,
        "framework": "torch",
    }
    return RunInfo(**(fields | changes))


def write_export(
    target: str | os.PathLike, base: BaseModel, weights: Mapping | None = None, **changes: object
) -> str:
    """An export of the base with `weights_of` it; `changes` are arguments of `export`."""
    arguments = {
        "weights": weights_of(base) if weights is None else weights,
        "base_config": base.config,
        "tokenizer_files": base.tokenizer_files,
        "label_names": LABELS,
        "run_info": info_of(base),
    }
    return export(str(target), **(arguments | changes))
