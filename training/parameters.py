"""What each tensor of the model is to a training run: pure functions of its name and the config.

Shared by both frameworks, so that both start from the same classifier, train and decay the same
tensors, and send them in the same order. Names are Hugging Face's torch names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from howdah.config_model import ModelSection
from howdah.errors import ConfigError
from training.distilbert import HEAD_NAMES, PREFIX, encoder_shapes, head_shapes

__all__ = [
    "WORD_EMBEDDINGS",
    "decays",
    "dropout_draw",
    "dropout_rates",
    "dropout_seed",
    "start_weights",
    "trainable_names",
]

WORD_EMBEDDINGS = PREFIX + "embeddings.word_embeddings.weight"


def start_weights(
    config: Mapping, weights: Mapping[str, np.ndarray], *, num_labels: int, seed: int
) -> dict[str, np.ndarray]:
    """All tensors a run starts from: the base's, and a new classifier where it has none.

    Args:
        config: the base's config.json, defaults filled in.
        weights: float32 by name; the encoder's, and the head's or none of it.
        num_labels: classes.
        seed: of the new classifier: normal(0, initializer_range), biases 0, as transformers does.
    Returns:
        name -> float32, the encoder's tensors in the model's order, then the head's.
    """
    heads = head_shapes(config, num_labels)
    result = {name: weights[name] for name in encoder_shapes(config)}
    if all(name in weights and weights[name].shape == shape for name, shape in heads.items()):
        return result | {name: weights[name] for name in HEAD_NAMES}
    for name, shape in heads.items():
        # A stream for each tensor: what one draws does not depend on the others.
        generator = np.random.Generator(np.random.Philox(key=_stream(seed, name)))
        drawn = generator.standard_normal(shape, np.float32) * np.float32(
            config["initializer_range"]
        )
        result[name] = np.zeros(shape, np.float32) if name.endswith("bias") else drawn
    return result


def trainable_names(config: Mapping, model: ModelSection) -> list[str]:
    """Names of the tensors that training changes, in the model's order, classifier last.

    Raises:
        ConfigError: more layers are to be frozen than there are.
    """
    if model.freeze_layers > config["n_layers"]:
        raise ConfigError(
            "more layers are to be frozen than the base model has",
            where="model.freeze_layers",
            expected=f"at most {config['n_layers']}",
            got=str(model.freeze_layers),
            remedy="lower it; with all of them frozen the classifier alone is trained",
        )
    frozen = tuple(f"{PREFIX}transformer.layer.{n}." for n in range(model.freeze_layers))
    if model.freeze_embeddings:
        frozen += (PREFIX + "embeddings.",)
    return [name for name in (*encoder_shapes(config), *HEAD_NAMES) if not name.startswith(frozen)]


def decays(name: str) -> bool:
    """Weight decay applies: everything but biases and LayerNorm."""
    return not name.endswith(".bias") and "layer_norm" not in name and "LayerNorm" not in name


def dropout_rates(config: Mapping, model: ModelSection) -> tuple[float, float, float]:
    """(transformer, attention weights, before the classifier): the config's, or the base's."""
    chosen = (
        (model.dropout, "dropout"),
        (model.attention_dropout, "attention_dropout"),
        (model.classifier_dropout, "seq_classif_dropout"),
    )
    return tuple(float(config[key] if value is None else value) for value, key in chosen)


def dropout_draw(rate: float) -> tuple[int, float]:
    """How dropout reads a draw of 16 bits, signed: (the least that keeps an element, its factor).

    Args:
        rate: share of zeros, met to 1 in 65,536; the factor makes up for that very share.
    """
    draws = 2**16
    dropped = round(rate * draws)
    return dropped - draws // 2, draws / (draws - dropped)


def dropout_seed(seed: int, step: int, micro: int, rank: int) -> int:
    """Seed of one micro-step's dropout, 63 bits: nothing of a generator's state needs saving."""
    data = np.array([seed, step, micro, rank], "<i8").tobytes()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") >> 1


def _stream(seed: int, name: str) -> int:
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=16).digest()
    return int.from_bytes(digest, "little")
