"""Initial weights, trainable and decayed tensors, dropout: pure functions of names and config.

Shared by both frameworks, so that both start from the same classifier, train and decay the same
tensors, and send them in the same order. Names are Hugging Face's torch names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from howdah.config.model import ModelSection
from howdah.config.training import LoraSection
from howdah.data.family import family_of
from howdah.errors import ConfigError, ModelError
from howdah.models.weights import lora as low_rank

BLOCKED = -1e9
"""Value added to the attention scores of padding."""


def start_weights(
    config: Mapping,
    weights: Mapping[str, np.ndarray],
    *,
    num_labels: int,
    seed: int,
    adapters: Mapping[str, tuple[int, ...]] | None = None,
) -> dict[str, np.ndarray]:
    """All tensors that a run starts from: the base's, a new classifier if it has none, a new pooler
    if the family has one and the base does not, and the adapters that are asked for.

    Args:
        config: the base's config.json, defaults filled in.
        weights: float32 by name; the encoder's, and all or none of the pooler's, the head's and the
            adapters'.
        seed: seed of new tensors: normal(0, initializer_range), biases 0, as in transformers; an
            adapter's B is 0.
        adapters: {name: shape} of the adapters' tensors (`low_rank.adapter_shapes`).
    Returns:
        name -> float32, the encoder's tensors in the model's order, then the head's.
    """
    family = family_of(config)
    heads, encoder = family.head_shapes(config, num_labels), family.encoder_shapes(config)
    fits = all(name in weights and weights[name].shape == shape for name, shape in heads.items())
    adapters = dict(adapters or {})
    missing = {name for name in (*family.pooler_names, *adapters) if name not in weights}
    result: dict[str, np.ndarray] = {}
    for name, shape in (encoder | adapters | heads).items():
        if name not in missing and (fits or name not in heads):
            result[name] = weights[name]
            continue
        # Each tensor has its generator, so that its numbers do not depend on the other tensors.
        generator = np.random.Generator(np.random.Philox(key=_stream(seed, name)))
        drawn = generator.standard_normal(shape, np.float32) * np.float32(
            config["initializer_range"]
        )
        zero = name.endswith(("bias", low_rank.B))
        result[name] = np.zeros(shape, np.float32) if zero else drawn
    return result


def trainable_names(
    config: Mapping, model: ModelSection, lora: LoraSection | None = None
) -> list[str]:
    """Names of the tensors that training changes, in the model's order, classifier last. With
    adapters these and the classifier, which is all that is behind the last layer.

    Raises:
        ConfigError: model.freeze_layers exceeds the model's layers.
    """
    family = family_of(config)
    layers = config[family.keys.layers]
    if model.freeze_layers > layers:
        raise ConfigError(
            "the base model has fewer layers than model.freeze_layers",
            where="model.freeze_layers",
            expected=f"at most {layers}",
            got=str(model.freeze_layers),
        )
    if lora is not None and lora.rank is not None:
        return [*low_rank.adapter_shapes(config, model, lora), *family.classifier_names]
    frozen = tuple(family.layer_name(number) for number in range(model.freeze_layers))
    if model.freeze_embeddings:
        frozen += (family.prefix + family.embeddings,)
    names = (*family.encoder_shapes(config), *family.head_names)
    return [name for name in names if not name.startswith(frozen)]


def decays(name: str) -> bool:
    """True if weight decay applies to a tensor: it does except to biases and LayerNorm."""
    lower = name.lower()
    return not lower.endswith(".bias") and "layer_norm" not in lower and "layernorm" not in lower


def dropout_rates(config: Mapping, model: ModelSection) -> tuple[float, float, float]:
    """(transformer, attention weights, before the classifier): `model`'s rates, else the base's.

    Raises:
        ModelError: a rate in the base's config.json is not a number from 0 on and below 1.
    """
    if model.dropout is not None:
        return (model.dropout,) * 3
    keys = family_of(config).dropouts.all()
    rates = [config[key] for key in keys]
    if rates[2] is None:  # in BERT's config.json: the transformer's rate
        rates[2] = rates[0]
    for key, rate in zip(keys, rates, strict=True):
        if not isinstance(rate, int | float) or not 0 <= rate < 1:
            raise ModelError(
                "the base model's config.json has a dropout that is not a rate",
                where=f"config.json: {key}",
                expected="a number from 0 on and below 1",
                got=repr(rate),
                remedy="correct it, or set model.dropout",
            )
    hidden, attention, classifier = map(float, rates)
    return hidden, attention, classifier


def with_dropouts(config: Mapping, model: ModelSection) -> dict:
    """The base's config.json with the dropouts that a run trains with."""
    keys = family_of(config).dropouts.all()
    return dict(config) | dict(zip(keys, dropout_rates(config, model), strict=True))


def dropout_draw(rate: float) -> tuple[int, float]:
    """(smallest 16-bit signed draw that keeps an element, factor of the elements that are kept).

    Args:
        rate: share of zeros, to a precision of 1 / 65,536; the factor is exact for the rounded
            rate.
    """
    draws = 2**16
    dropped = min(round(rate * draws), draws - 1)
    return dropped - draws // 2, draws / (draws - dropped)


def dropout_seed(seed: int, step: int, micro: int, rank: int) -> int:
    """Seed of a micro-batch's dropout, 63 bits; so checkpoints need not hold a generator's
    state."""
    data = np.array([seed, step, micro, rank], "<i8").tobytes()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") >> 1


def _stream(seed: int, name: str) -> int:
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=16).digest()
    return int.from_bytes(digest, "little")
