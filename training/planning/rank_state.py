"""The bytes of a model's state on a rank: weights, gradients, AdamW's moments. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from howdah.config.model import ModelSection, ParallelSection
from howdah.data.family import family_of
from howdah.models.weights import parameters
from howdah.training.model.stages import Stage

__all__ = ["rank_state"]

_FLOAT = 4


def rank_state(
    base: Mapping[str, Any], labels: int, model: ModelSection, parallel: ParallelSection, ranks: int
) -> dict[str, int]:
    """Bytes by what they hold, on the rank that has most; activations are not among them.

    Args:
        base: the base's config.json, complete.
        labels: classes.
        model, parallel: the configuration's sections.
        ranks: of the world.
    Returns:
        {weights, gradients, moments, gathered}: the last is what a rank holds for a moment, where
        it has only a part of the weights: the largest module's weights and gradients.
    """
    family = family_of(base)
    shapes = family.encoder_shapes(base) | family.head_shapes(base, labels)
    trainable = set(parameters.trainable_names(base, model))
    share = dict.fromkeys(shapes, 1.0)
    if parallel.tensor > 1:
        share |= dict.fromkeys(parameters.divided_axes(family, shapes), 1 / parallel.tensor)
    if parallel.pipeline > 1:
        layers = base[family.keys.layers]
        stages = [Stage.of(n, parallel.pipeline, layers) for n in range(parallel.pipeline)]
        held = [{name for name in shapes if stage.has(family, name)} for stage in stages]
        most = max(held, key=lambda names: sum(math.prod(shapes[name]) for name in names))
        share = {name: float(name in most) for name in shapes}
    elements = {name: math.prod(shape) * share[name] for name, shape in shapes.items()}
    every = _FLOAT * sum(elements.values())
    trained = _FLOAT * sum(elements[name] for name in trainable)
    divided = parallel.shard == "full" and ranks > 1
    held = ranks if divided else 1
    gathered = 0
    if divided:
        prefixes = (
            family.prefix + family.embeddings,
            *(family.layer_name(number) for number in range(base[family.keys.layers])),
        )
        for prefix in prefixes:
            inside = [name for name in shapes if name.startswith(prefix)]
            own = sum(elements[n] * (2 if n in trainable else 1) for n in inside)
            gathered = max(gathered, round(_FLOAT * own))
    return {
        "weights": round(every / held),
        "gradients": round(trained / held),
        "moments": round(2 * trained / (1 if parallel.shard == "none" else ranks)),
        "gathered": gathered,
    }
