"""A second family for tests: DistilBERT's arithmetic with every name and key another one.

It holds the seam: what reads a name or key of DistilBERT's past its record fails on this one.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping

import numpy as np
from safetensors.numpy import load_file, save_file

from howdah.data.family import DISTILBERT, DropoutKeys, LayerNames, SizeKeys
from tests.support.models.tiny_model import write_tiny_model

_KEYS = SizeKeys(
    width="hidden_size",
    inner="intermediate_size",
    heads="num_attention_heads",
    layers="num_hidden_layers",
    vocabulary="words",
    positions="places",
)
_DROPOUTS = DropoutKeys(hidden="hidden_drop", attention="attention_drop", classifier="head_drop")
_RENAMED_KEYS = dict(
    zip(
        (*DISTILBERT.keys.all(), *DISTILBERT.dropouts.all(), DISTILBERT.activation),
        (*_KEYS.all(), *_DROPOUTS.all(), "hidden_act"),
        strict=True,
    )
)
_OFFSET = 2


def other_config(config: Mapping) -> dict:
    """A config.json of DistilBERT's as this family has it."""
    renamed = {_RENAMED_KEYS.get(key, key): value for key, value in config.items()}
    renamed["model_type"] = "other"
    renamed[_KEYS.positions] += _OFFSET
    return renamed


OTHER = dataclasses.replace(
    DISTILBERT,
    model_type="other",
    title="Other",
    architecture="OtherForSequenceClassification",
    defaults=other_config(DISTILBERT.defaults),
    keys=_KEYS,
    dropouts=_DROPOUTS,
    activation="hidden_act",
    position_offset=_OFFSET,
    prefix="other.",
    encoder=("inputs.", "stack."),
    embeddings="inputs.",
    word_table="words",
    position_table="places",
    embeddings_norm="LayerNorm",
    layers="stack.",
    layer=LayerNames(
        query="self.query",
        key="self.key",
        value="self.value",
        attended="self.out",
        attention_norm="self.LayerNorm",
        inner="up",
        outer="down",
        output_norm="LayerNorm",
    ),
    head=("head.dense", "head.out"),
    other_heads=("lm_head.",),
    tokenizer_class="BertTokenizer",
    hub_owner="others",
    hub_models={"other-base": {}},
)


def other_weights(weights: Mapping[str, np.ndarray], config: Mapping) -> dict[str, np.ndarray]:
    """A DistilBERT's tensors under this family's names; the table's unused rows would show.

    Args:
        weights: the encoder's, and the classifier's where it is there.
        config: DistilBERT's config.json.
    """
    old = (*DISTILBERT.encoder_shapes(config), *DISTILBERT.head_names)
    new = (*OTHER.encoder_shapes(other_config(config)), *OTHER.head_names)
    names = dict(zip(old, new, strict=True))
    renamed = {names[name]: array for name, array in weights.items()}
    places_PD = renamed[OTHER.position_embeddings]
    unused = np.full((_OFFSET, places_PD.shape[1]), 9.0, np.float32)
    return renamed | {OTHER.position_embeddings: np.concatenate([unused, places_PD])}


def write_other_model(directory: str) -> str:
    """The tiny model as one of this family; returns `directory`."""
    write_tiny_model(directory)
    path, weights_path = (os.path.join(directory, n) for n in ("config.json", "model.safetensors"))
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    weights = other_weights(load_file(weights_path), config)
    save_file(weights, weights_path, metadata={"format": "pt"})
    with open(path, "w", encoding="utf-8") as file:
        json.dump(other_config(config), file)
    return directory
