"""Model families: a record of each, for loading, training, export, serving and checks. Pure data.

A new family is a record in FAMILIES and a forward pass in training/model/forward_torch.py and in
training/model/forward_tf.py. Tensors have the names of Hugging Face's torch classifiers
(`...ForSequenceClassification`). It is in the core because ETL, training and yarn read it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from howdah.errors import ModelError

__all__ = [
    "DISTILBERT",
    "FAMILIES",
    "TOKENIZERS",
    "TOKENIZER_FILES",
    "WORDPIECE",
    "DropoutKeys",
    "LayerNames",
    "ModelFamily",
    "SizeKeys",
    "TokenizerKind",
    "family_of",
    "hub_config",
    "known_titles",
]

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class SizeKeys:
    """The keys of config.json that give a model's sizes."""

    width: str
    """Elements of a token's vector between layers."""
    inner: str
    """Width of the feed-forward layers."""
    heads: str
    layers: str
    vocabulary: str
    """Rows of the table of word embeddings."""
    positions: str
    """Rows of the table of position embeddings."""

    def all(self) -> tuple[str, ...]:
        """Every key."""
        return (
            self.width, self.inner, self.heads, self.layers, self.vocabulary, self.positions,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DropoutKeys:
    """The keys of config.json that give the rates of dropout."""

    hidden: str
    attention: str
    """Dropout of the attention weights."""
    classifier: str
    """Dropout before the last layer of the classifier."""

    def all(self) -> tuple[str, str, str]:
        """Every key, in the order of training.parameters.dropout_rates."""
        return self.hidden, self.attention, self.classifier


@dataclass(frozen=True, kw_only=True)
class LayerNames:
    """The modules of one transformer layer, by their names below the layer's."""

    query: str
    key: str
    value: str
    attended: str
    """Projection of the heads' output."""
    attention_norm: str
    inner: str
    outer: str
    output_norm: str


@dataclass(frozen=True, kw_only=True)
class TokenizerKind:
    """A kind of tokenizer, which several families may have."""

    algorithm: str
    """`model.type` of tokenizer.json."""
    files: tuple[str, ...]
    """Names of its possible files."""
    vocabularies: tuple[str, ...]
    """Files of which at least one must exist."""
    pad_token: str
    """Padding token if tokenizer_config.json names none."""


@dataclass(frozen=True, kw_only=True)
class ModelFamily:
    """Models that differ only in sizes and weights."""

    model_type: str
    """`model_type` in config.json."""
    title: str
    """Name in messages."""
    architecture: str
    """Class of its classifier in transformers."""
    forward: str
    """Name of its forward pass in training/model/forward_*.py."""

    # -- config.json
    defaults: Mapping[str, Any]
    """Values of the keys that a config.json leaves out."""
    keys: SizeKeys
    dropouts: DropoutKeys
    activation: str
    """The key of the feed-forward layers' activation."""
    activations: tuple[str, ...]
    """The values of that key that the models support."""
    norm_epsilon: float
    """Of every LayerNorm."""
    position_offset: int = 0
    """Rows at the start of the position table that no token uses."""

    # -- tensors
    prefix: str
    """Prefix of the encoder's tensors in a classifier; a bare encoder's file has no prefix."""
    encoder: tuple[str, ...]
    """Prefixes of the encoder's tensors, below `prefix`."""
    embeddings: str
    """Below `prefix`, as all names of the encoder."""
    word_table: str
    """Below `embeddings`, as the two that follow."""
    position_table: str
    embeddings_norm: str
    layers: str
    """Followed by a layer's number and a dot."""
    layer: LayerNames
    head: tuple[str, ...]
    """Linear layers of the classifier: width to width, the last one width to labels."""
    other_heads: tuple[str, ...]
    """Modules of other tasks in a pretrained file, ignored without a warning."""

    # -- tokenizer
    tokenizer: TokenizerKind
    tokenizer_class: str
    """Class in transformers, for exports whose tokenizer_config.json names none."""
    inputs: tuple[str, ...]
    """The parts of a tokenizer's output that the forward pass takes, for exports."""

    # -- the hub
    hub_owner: str
    hub_models: Mapping[str, Mapping[str, Any]]
    """{name: the keys of its config.json that differ from `defaults`}."""

    def complete(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """config.json with the family's defaults for what it leaves out."""
        return {**self.defaults, **config}

    def longest(self, config: Mapping) -> int:
        """Most tokens of a row."""
        return int(config[self.keys.positions]) - self.position_offset

    def check_activation(self, config: Mapping) -> None:
        """Refuse a base model whose activation is not supported.

        Raises:
            ModelError: it is none of `activations`.
        """
        if config[self.activation] not in self.activations:
            raise ModelError(
                "the base model's activation is not known",
                where=f"config.json: {self.activation}",
                expected=" or ".join(self.activations),
                got=str(config[self.activation]),
            )

    @property
    def word_embeddings(self) -> str:
        """Name of the table of word embeddings."""
        return f"{self.prefix}{self.embeddings}{self.word_table}.weight"

    @property
    def position_embeddings(self) -> str:
        """Name of the table of position embeddings."""
        return f"{self.prefix}{self.embeddings}{self.position_table}.weight"

    def layer_name(self, number: int) -> str:
        """Prefix of the names of a layer's tensors, with its final dot."""
        return f"{self.prefix}{self.layers}{number}."

    @property
    def head_names(self) -> tuple[str, ...]:
        """Names of the classifier's tensors."""
        return tuple(f"{name}.{kind}" for name in self.head for kind in ("weight", "bias"))

    def encoder_shapes(self, config: Mapping) -> Shapes:
        """Name -> shape of every tensor of the encoder, in the order of the model."""
        keys, part = self.keys, self.layer
        width, inner = config[keys.width], config[keys.inner]
        shapes: Shapes = {
            self.word_embeddings: (config[keys.vocabulary], width),
            self.position_embeddings: (config[keys.positions], width),
        } | _norm(self.prefix + self.embeddings + self.embeddings_norm, width)
        for number in range(config[keys.layers]):
            name = self.layer_name(number)
            for projection in (part.query, part.key, part.value, part.attended):
                shapes |= _linear(name + projection, width, width)
            shapes |= _norm(name + part.attention_norm, width)
            shapes |= _linear(name + part.inner, width, inner)
            shapes |= _linear(name + part.outer, inner, width)
            shapes |= _norm(name + part.output_norm, width)
        return shapes

    def head_shapes(self, config: Mapping, num_labels: int) -> Shapes:
        """Name -> shape of the classifier's tensors."""
        width = config[self.keys.width]
        shapes: Shapes = {}
        for name in self.head:
            shapes |= _linear(name, width, num_labels if name == self.head[-1] else width)
        return shapes

    def parameters(self, config: Mapping, num_labels: int) -> int:
        """Parameters of the encoder and a classifier.

        Args:
            config: config.json, complete.
            num_labels: classes.
        """
        shapes = self.encoder_shapes(config) | self.head_shapes(config, num_labels)
        return sum(math.prod(shape) for shape in shapes.values())


def _linear(name: str, inputs: int, outputs: int) -> Shapes:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def _norm(name: str, width: int) -> Shapes:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


# ------------------------------------------------------------------------------- the records
WORDPIECE = TokenizerKind(
    algorithm="WordPiece",
    files=(
        "tokenizer.json",
        "vocab.txt",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
    ),
    vocabularies=("tokenizer.json", "vocab.txt"),
    pad_token="[PAD]",
)

DISTILBERT = ModelFamily(
    model_type="distilbert",
    title="DistilBERT",
    architecture="DistilBertForSequenceClassification",
    forward="post-norm",
    # Source: transformers' DistilBertConfig.
    defaults={
        "activation": "gelu",
        "attention_dropout": 0.1,
        "dim": 768,
        "dropout": 0.1,
        "hidden_dim": 3072,
        "initializer_range": 0.02,
        "max_position_embeddings": 512,
        "model_type": "distilbert",
        "n_heads": 12,
        "n_layers": 6,
        "pad_token_id": 0,
        "qa_dropout": 0.1,
        "seq_classif_dropout": 0.2,
        "sinusoidal_pos_embds": False,
        "vocab_size": 30522,
    },
    keys=SizeKeys(
        width="dim",
        inner="hidden_dim",
        heads="n_heads",
        layers="n_layers",
        vocabulary="vocab_size",
        positions="max_position_embeddings",
    ),
    dropouts=DropoutKeys(
        hidden="dropout", attention="attention_dropout", classifier="seq_classif_dropout"
    ),
    activation="activation",
    activations=("gelu", "gelu_new", "relu", "silu"),  # what DistilBertConfig documents
    norm_epsilon=1e-12,
    # Source: transformers' DistilBertForSequenceClassification.
    prefix="distilbert.",
    encoder=("embeddings.", "transformer."),
    embeddings="embeddings.",
    word_table="word_embeddings",
    position_table="position_embeddings",
    embeddings_norm="LayerNorm",
    layers="transformer.layer.",
    layer=LayerNames(
        query="attention.q_lin",
        key="attention.k_lin",
        value="attention.v_lin",
        attended="attention.out_lin",
        attention_norm="sa_layer_norm",
        inner="ffn.lin1",
        outer="ffn.lin2",
        output_norm="output_layer_norm",
    ),
    head=("pre_classifier", "classifier"),
    other_heads=("vocab_transform.", "vocab_layer_norm.", "vocab_projector.", "qa_outputs."),
    tokenizer=WORDPIECE,
    tokenizer_class="DistilBertTokenizer",
    inputs=("input_ids", "attention_mask"),  # no token types, which BertTokenizer returns too
    hub_owner="distilbert",
    hub_models={
        "distilbert-base-uncased": {},
        "distilbert-base-cased": {"vocab_size": 28996},
        "distilbert-base-german-cased": {"vocab_size": 31102},
        "distilbert-base-multilingual-cased": {"vocab_size": 119547},
    },
)

FAMILIES: dict[str, ModelFamily] = {family.model_type: family for family in (DISTILBERT,)}
"""By model_type."""

TOKENIZERS: dict[str, TokenizerKind] = {
    family.tokenizer.algorithm: family.tokenizer for family in FAMILIES.values()
}
"""By algorithm."""

TOKENIZER_FILES: tuple[str, ...] = tuple(
    dict.fromkeys(name for kind in TOKENIZERS.values() for name in kind.files)
)
"""Files that a tokenizer of some family may consist of."""


def family_of(config: object, *, where: str = "config.json") -> ModelFamily:
    """The family of a model by the model_type of its config.json.

    Raises:
        ModelError: it is none of FAMILIES.
    """
    model_type = config.get("model_type") if isinstance(config, Mapping) else None
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        example = next(name for family in FAMILIES.values() for name in family.hub_models)
        raise ModelError(
            "the model is of a family that is not known",
            where=where,
            expected=f"model_type {' or '.join(FAMILIES)}",
            got=f"model_type {model_type}",
            remedy=f"take a {known_titles()}, e.g. {example}",
        )
    return family


def known_titles() -> str:
    """The families, for messages."""
    return " or ".join(family.title for family in FAMILIES.values())


def hub_config(name: str) -> dict[str, Any] | None:
    """The config.json of a family's own model on the hub, without asking it; None: not known.

    >>> hub_config("distilbert-base-cased")["vocab_size"]
    28996
    """
    for family in FAMILIES.values():
        fields = family.hub_models.get(name.removeprefix(f"{family.hub_owner}/"))
        if fields is not None:
            return family.complete(fields)
    return None
