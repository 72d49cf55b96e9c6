"""What a DistilBERT is: its configuration's defaults, its tensors' names and shapes. Pure data.

Names are those of Hugging Face's torch `DistilBertForSequenceClassification`.
"""

from __future__ import annotations

from collections.abc import Mapping

from howdah.errors import ModelError

__all__ = [
    "ACTIVATIONS",
    "BLOCKED",
    "CONFIG_DEFAULTS",
    "EPSILON",
    "HEAD_NAMES",
    "PREFIX",
    "check_activation",
    "encoder_shapes",
    "head_shapes",
    "label_names_of",
]

PREFIX = "distilbert."
HEAD_NAMES = (
    "pre_classifier.weight",
    "pre_classifier.bias",
    "classifier.weight",
    "classifier.bias",
)

EPSILON = 1e-12  # of every LayerNorm
BLOCKED = -1e9  # added to attention scores of padding

ACTIVATIONS = ("gelu", "gelu_new", "relu", "silu")
"""What DistilBertConfig documents for `activation`."""

# transformers' DistilBertConfig: what a config.json leaves out has these values.
CONFIG_DEFAULTS = {
    "activation": "gelu",
    "attention_dropout": 0.1,
    "dim": 768,
    "dropout": 0.1,
    "hidden_dim": 3072,
    "initializer_range": 0.02,
    "max_position_embeddings": 512,
    "n_heads": 12,
    "n_layers": 6,
    "pad_token_id": 0,
    "qa_dropout": 0.1,
    "seq_classif_dropout": 0.2,
    "sinusoidal_pos_embds": False,
    "vocab_size": 30522,
}


def encoder_shapes(config: Mapping) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor of DistilBERT's encoder, in the order of the model.

    Source: transformers' `DistilBertModel` (names with the prefix of its classifier).
    """
    dim, hidden = config["dim"], config["hidden_dim"]
    embeddings = PREFIX + "embeddings."
    shapes: dict[str, tuple[int, ...]] = {
        embeddings + "word_embeddings.weight": (config["vocab_size"], dim),
        embeddings + "position_embeddings.weight": (config["max_position_embeddings"], dim),
        embeddings + "LayerNorm.weight": (dim,),
        embeddings + "LayerNorm.bias": (dim,),
    }
    for number in range(config["n_layers"]):
        layer = f"{PREFIX}transformer.layer.{number}."
        for linear in ("q_lin", "k_lin", "v_lin", "out_lin"):
            shapes[f"{layer}attention.{linear}.weight"] = (dim, dim)
            shapes[f"{layer}attention.{linear}.bias"] = (dim,)
        shapes[layer + "sa_layer_norm.weight"] = shapes[layer + "sa_layer_norm.bias"] = (dim,)
        shapes[layer + "ffn.lin1.weight"] = (hidden, dim)
        shapes[layer + "ffn.lin1.bias"] = (hidden,)
        shapes[layer + "ffn.lin2.weight"] = (dim, hidden)
        shapes[layer + "ffn.lin2.bias"] = (dim,)
        shapes[layer + "output_layer_norm.weight"] = (dim,)
        shapes[layer + "output_layer_norm.bias"] = (dim,)
    return shapes


def head_shapes(config: Mapping, num_labels: int) -> dict[str, tuple[int, ...]]:
    """Name -> shape of the classifier's tensors."""
    dim = config["dim"]
    shapes = [(dim, dim), (dim,), (num_labels, dim), (num_labels,)]
    return dict(zip(HEAD_NAMES, shapes, strict=True))


def label_names_of(config: Mapping) -> list[str] | None:
    """The labels of config.json's id2label in their order; None where it has none of its own."""
    id2label = config.get("id2label")
    if not id2label:
        return None
    try:
        by_number = {int(key): str(value) for key, value in id2label.items()}
        return [by_number[number] for number in range(len(by_number))]
    except (ValueError, KeyError):
        return None


def check_activation(config: Mapping) -> None:
    """Refuse a base with an activation that the models do not have.

    Raises:
        ModelError: it is none of ACTIVATIONS.
    """
    if config["activation"] not in ACTIVATIONS:
        raise ModelError(
            "the base model's activation is not known",
            where="config.json: activation",
            expected=" or ".join(ACTIVATIONS),
            got=str(config["activation"]),
        )
