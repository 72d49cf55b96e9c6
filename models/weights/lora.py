"""Low-rank adapters (training.lora): trained beside frozen weights, merged into them at export.

An adapter of a linear layer with weight W [O, I] is two tensors beside it, `<layer>.lora_A` [R, I]
and `<layer>.lora_B` [O, R]; the layer computes W x + s B A x, with s = ALPHA / R. B begins as zero,
so that a run begins with the base model's logits.

Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", arXiv:2106.09685.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

import numpy as np

from howdah.config.model import ModelSection
from howdah.config.training import LoraModule, LoraSection
from howdah.data.family import family_of

A, B = ".lora_A", ".lora_B"
"""Ends of the names of an adapter's tensors, behind the name of its linear layer."""
ALPHA = 16.0
"""Factor of an adapter's product before its division by the rank. It acts like a factor of the
adapters' learning rate, so a key for it would tune the same twice; with a constant, other ranks
learn with the same rate (section 4.1 of the paper). At rank 8 it is the usual factor 2."""


def adapter_shapes(
    config: Mapping, model: ModelSection, lora: LoraSection
) -> dict[str, tuple[int, ...]]:
    """Name -> shape of the adapters' tensors, in the order of the forward pass; {} without a rank.

    Args:
        config: the base's config.json, defaults filled in.
    """
    if lora.rank is None:
        return {}
    family = family_of(config)
    shapes, adapters = family.encoder_shapes(config), {}
    for number in range(model.freeze_layers, config[family.keys.layers]):
        for module in get_args(LoraModule):
            if module in lora.modules:
                name = family.layer_name(number) + getattr(family.layer, module)
                outputs, inputs = shapes[f"{name}.weight"]
                adapters |= {name + A: (lora.rank, inputs), name + B: (outputs, lora.rank)}
    return adapters


def scale(rank: int) -> float:
    """The factor of an adapter's product."""
    return ALPHA / rank


def described(model: ModelSection, lora: LoraSection) -> str:
    """The adapters of a run in words: checkpoints with others do not fit it."""
    if lora.rank is None:
        return "none"
    modules = [module for module in get_args(LoraModule) if module in lora.modules]
    frozen = f" of layers from {model.freeze_layers} on" if model.freeze_layers else ""
    return f"rank {lora.rank} on {', '.join(modules)}{frozen}"


def merged(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The weights with each adapter's product added to its layer's weight, and the adapter zero:
    the same logits, up to float32's rounding.

    Args:
        weights: float32 by name, adapters included; they are not changed.
    """
    result = dict(weights)
    for name, b_OR in weights.items():
        if name.endswith(B):
            layer = name.removesuffix(B)
            product_OI = b_OR @ weights[layer + A] * np.float32(scale(b_OR.shape[1]))
            result[f"{layer}.weight"] = weights[f"{layer}.weight"] + product_OI
            result[name] = np.zeros_like(b_OR)
    return result


def without_adapters(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors that a Hugging Face model has."""
    return {name: array for name, array in weights.items() if not name.endswith((A, B))}
