"""The bytes of a model's state on a rank: weights, gradients, AdamW's moments. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from howdah.config.model import ModelSection
from howdah.config.training import LoraSection, ParallelSection
from howdah.data.family import family_of
from howdah.models.weights import parameters
from howdah.models.weights.lora import adapter_shapes

_FLOAT = 4


def rank_state(
    base: Mapping[str, Any],
    labels: int,
    model: ModelSection,
    parallel: ParallelSection,
    ranks: int,
    *,
    lora: LoraSection | None = None,
) -> dict[str, int]:
    """Bytes of each kind of state on the rank that has the most, without activations, and of a
    checkpoint.

    Args:
        base: the base's config.json, defaults filled in.
        labels: number of classes.
    Returns:
        {weights, gradients, moments, gathered, trained, checkpoint}. `gathered` is temporary, if
        ranks only have parts of the weights: the largest module's weights and gradients. `trained`
        are the weights that all ranks together train, and send the gradient of.
    """
    family = family_of(base)
    shapes = family.encoder_shapes(base) | family.head_shapes(base, labels)
    shapes |= {} if lora is None else adapter_shapes(base, model, lora)
    trainable = set(parameters.trainable_names(base, model, lora))
    elements = {name: math.prod(shape) for name, shape in shapes.items()}
    every = _FLOAT * sum(elements.values())
    trained = _FLOAT * sum(elements[name] for name in trainable)
    divided = parallel.shard == "full" and ranks > 1
    holders = ranks if divided else 1
    gathered = 0
    if divided:
        prefixes = (
            family.prefix + family.embeddings,
            *(family.layer_name(number) for number in range(base[family.keys.layers])),
        )
        for prefix in prefixes:
            inside = [name for name in shapes if name.startswith(prefix)]
            module_elements = sum(elements[n] * (2 if n in trainable else 1) for n in inside)
            gathered = max(gathered, round(_FLOAT * module_elements))
    return {
        "weights": round(every / holders),
        "gradients": round(trained / holders),
        "moments": round(2 * trained / (1 if parallel.shard == "none" else ranks)),
        "gathered": gathered,
        "trained": trained,
        "checkpoint": 3 * trained,
    }
