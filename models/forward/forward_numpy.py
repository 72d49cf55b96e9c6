"""A classifier's logits in float64 with only numpy: the reference that exports are compared with.

It is slow, so use it for a few short rows. It shares no code with the forward passes it checks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from howdah.data.family import family_of
from howdah.models.weights.parameters import BLOCKED

_erf = np.vectorize(math.erf, otypes=[np.float64])

_ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "gelu": lambda x: 0.5 * x * (1.0 + _erf(x / math.sqrt(2.0))),
    "gelu_new": lambda x: 0.5 * x * (1.0 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0.0),
    "silu": lambda x: x / (1.0 + np.exp(-x)),
    "tanh": np.tanh,
}


def logits(
    config: Mapping,
    weights: Mapping[str, np.ndarray],
    ids_BT: np.ndarray,
    mask_BT: np.ndarray,
    *,
    first_type_ends: int | None = None,
) -> np.ndarray:
    """Logits float64 [B, C] of the forward pass "post-norm".

    Args:
        config: config.json, defaults filled in.
        weights: by Hugging Face's torch names; the encoder's and the classifier's.
        ids_BT, mask_BT: integers.
        first_type_ends: for pairs (Encoder.first_type_ends); None: all tokens have type 0.
    Source: transformers' modeling_distilbert.py, modeling_bert.py, modeling_roberta.py.
    """
    family = family_of(config)
    part, heads = family.layer, int(config[family.keys.heads])
    epsilon = family.epsilon(config)

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
        return x @ weight.astype(np.float64).T + bias

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def split(x_BTD: np.ndarray, name: str) -> np.ndarray:  # [B, heads, T, D / heads]
        projected = linear(x_BTD, name)
        return projected.reshape(*projected.shape[:2], heads, -1).swapaxes(1, 2)

    first = family.first_position(config)
    x_BTD = weights[family.word_embeddings][ids_BT].astype(np.float64)
    x_BTD = x_BTD + weights[family.position_embeddings][first : first + ids_BT.shape[1]]
    if family.token_type_table:
        table = weights[family.token_type_embeddings]
        ends_BT = (ids_BT == first_type_ends).astype(int)
        pairs = first_type_ends is not None and len(table) > 1
        types_BT = (ends_BT.cumsum(1) > ends_BT).astype(int) if pairs else 0 * ends_BT
        x_BTD = x_BTD + table[types_BT]
    x_BTD = norm(x_BTD, family.prefix + family.embeddings + family.embeddings_norm)
    blocked_B11T = np.where(mask_BT == 0, BLOCKED, 0.0)[:, None, None]
    for number in range(int(config[family.keys.layers])):
        layer = family.layer_name(number)
        query, key, value = (split(x_BTD, layer + n) for n in (part.query, part.key, part.value))
        scores = query @ key.swapaxes(-1, -2) / math.sqrt(query.shape[-1]) + blocked_B11T
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (scores / scores.sum(-1, keepdims=True)) @ value
        joined_BTD = mixed.swapaxes(1, 2).reshape(x_BTD.shape)
        attended_BTD = linear(joined_BTD, layer + part.attended)
        x_BTD = norm(attended_BTD + x_BTD, layer + part.attention_norm)
        inner = _ACTIVATIONS[config[family.activation]](linear(x_BTD, layer + part.inner))
        x_BTD = norm(linear(inner, layer + part.outer) + x_BTD, layer + part.output_norm)
    inner_name, outer_name = family.classifier_layers
    first_BD = _ACTIVATIONS[family.head_activation](linear(x_BTD[:, 0], inner_name))
    return linear(first_BD, outer_name)
