"""What a record of a model family holds; the records themselves are in data/family.py.

ModelFamily is of models of token ids, ImageFamily of models of pixels (vision transformers).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from howdah.config.data import InputKind
from howdah.errors import ModelError

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
    """Rows of the table of word embeddings; "": an image family, which has none."""
    positions: str
    """Rows of the table of position embeddings; "": they follow from the image's size."""
    token_types: str = ""
    """Rows of the table of token types; "": the family has none."""

    def all(self) -> tuple[str, ...]:
        """Every key."""
        keys = (
            self.width, self.inner, self.heads, self.layers, self.vocabulary, self.positions,
            self.token_types,
        )  # fmt: skip
        return tuple(key for key in keys if key)


@dataclass(frozen=True, kw_only=True)
class DropoutKeys:
    """The keys of config.json that give the rates of dropout."""

    hidden: str
    attention: str
    """Dropout of the attention weights."""
    classifier: str
    """Dropout before the last layer of the classifier; null in config.json: that of `hidden`."""

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
    """Name of its forward pass in models/forward/forward_*.py."""
    frameworks: tuple[str, ...] = ("torch", "tensorflow")
    """Those that have this forward pass."""
    kind: InputKind = "text"
    """What its models read (data.kind)."""

    # -- config.json
    defaults: Mapping[str, Any]
    """Values of the keys that a config.json leaves out."""
    keys: SizeKeys
    dropouts: DropoutKeys
    activation: str
    """The key of the feed-forward layers' activation."""
    activations: tuple[str, ...]
    """The values of that key that the models support."""
    norm_epsilon: float = 0.0
    """Epsilon of every LayerNorm if config.json does not give it."""
    epsilon_key: str = ""
    """The key of every LayerNorm's epsilon; "": it is `norm_epsilon`."""
    position_offset: int = 0
    """Rows at the start of the position table that no token uses."""
    padding_key: str = ""
    """The key of the padding's id, where the position table begins with unused rows up to and with
    the row of that number; "": `position_offset` rows are unused."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Keys of config.json that must have these values."""

    # -- arithmetic
    attended_dropout: bool = False
    """Dropout of what the attention gives, before its sum with the layer's input."""
    head_activation: str = "relu"
    """Between the classifier's two layers."""
    head_dropout_first: bool = False
    """The classifier's dropout also before its first layer."""

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
    token_type_table: str = ""
    """Below `embeddings`; "": the family has no token types."""
    embeddings_norm: str
    layers: str
    """Followed by a layer's number and a dot."""
    layer: LayerNames
    pooler: str = ""
    """Below `prefix`: the classifier's first layer where it is a part of the pretrained encoder;
    "": it is the first of `head`. A base that lacks it gets a new one."""
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

    @property
    def size_keys(self) -> tuple[str, ...]:
        """The keys of config.json whose values are integers above 0."""
        return self.keys.all()

    def epsilon(self, config: Mapping) -> float:
        """Epsilon of every LayerNorm."""
        return float(config[self.epsilon_key]) if self.epsilon_key else self.norm_epsilon

    def first_position(self, config: Mapping) -> int:
        """The row of the position table that the first token has."""
        return int(config[self.padding_key]) + 1 if self.padding_key else self.position_offset

    def complete(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """config.json with the family's defaults for what it leaves out."""
        return {**self.defaults, **config}

    def longest(self, config: Mapping) -> int:
        """Most tokens of a row."""
        return int(config[self.keys.positions]) - self.first_position(config)

    def check_activation(self, config: Mapping) -> None:
        """Refuse a base model whose activation is not supported.

        Raises:
            ModelError: it is not one of `activations`.
        """
        if config[self.activation] not in self.activations:
            raise ModelError(
                "the base model's activation is not known",
                where=f"config.json: {self.activation}",
                expected=" or ".join(self.activations),
                got=str(config[self.activation]),
            )

    def check_fixed(self, config: Mapping, *, where: str) -> None:
        """Refuse a base model whose arithmetic is another one.

        Raises:
            ModelError: a key of `fixed` has another value.
        """
        wrong = [key for key, value in self.fixed.items() if config[key] != value]
        if wrong:
            raise ModelError(
                f"Howdah cannot compute a {self.title} with this configuration",
                where=where,
                expected=", ".join(f"{key}={self.fixed[key]!r}" for key in wrong),
                got=", ".join(f"{key}={config[key]!r}" for key in wrong),
                remedy="take a base model of the usual kind of its family",
            )

    @property
    def word_embeddings(self) -> str:
        """Name of the table of word embeddings."""
        return f"{self.prefix}{self.embeddings}{self.word_table}.weight"

    @property
    def position_embeddings(self) -> str:
        """Name of the table of position embeddings."""
        return f"{self.prefix}{self.embeddings}{self.position_table}.weight"

    @property
    def token_type_embeddings(self) -> str:
        """Name of the table of token types."""
        return f"{self.prefix}{self.embeddings}{self.token_type_table}.weight"

    def layer_name(self, number: int) -> str:
        """Prefix of the names of a layer's tensors, with its final dot."""
        return f"{self.prefix}{self.layers}{number}."

    @property
    def head_names(self) -> tuple[str, ...]:
        """Names of the classifier's tensors."""
        return tuple(f"{name}.{kind}" for name in self.head for kind in ("weight", "bias"))

    @property
    def pooler_names(self) -> tuple[str, ...]:
        """Names of the pooler's tensors; empty: the family has none."""
        return tuple(_linear(self.prefix + self.pooler, 0, 0)) if self.pooler else ()

    @property
    def classifier_names(self) -> tuple[str, ...]:
        """Names of all tensors behind the last layer."""
        return self.pooler_names + self.head_names

    @property
    def classifier_layers(self) -> tuple[str, str]:
        """The classifier's two linear layers."""
        return self.prefix + self.pooler if self.pooler else self.head[0], self.head[-1]

    def encoder_shapes(self, config: Mapping) -> Shapes:
        """Name -> shape of every tensor of the encoder, in the order of the model."""
        keys, part = self.keys, self.layer
        width, inner = config[keys.width], config[keys.inner]
        shapes: Shapes = {
            self.word_embeddings: (config[keys.vocabulary], width),
            self.position_embeddings: (config[keys.positions], width),
        }
        if self.token_type_table:
            shapes[self.token_type_embeddings] = (config[keys.token_types], width)
        shapes |= _norm(self.prefix + self.embeddings + self.embeddings_norm, width)
        for number in range(config[keys.layers]):
            name = self.layer_name(number)
            for projection in (part.query, part.key, part.value, part.attended):
                shapes |= _linear(name + projection, width, width)
            shapes |= _norm(name + part.attention_norm, width)
            shapes |= _linear(name + part.inner, width, inner)
            shapes |= _linear(name + part.outer, inner, width)
            shapes |= _norm(name + part.output_norm, width)
        if self.pooler:
            shapes |= _linear(self.prefix + self.pooler, width, width)
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


@dataclass(frozen=True, kw_only=True)
class ImageFamily(ModelFamily):
    """Models of pixels: a token for each patch of the image, behind one for the class."""

    kind: InputKind = "image"
    # -- what only models of token ids have
    word_table: str = ""
    embeddings_norm: str = ""
    tokenizer: TokenizerKind = TokenizerKind(algorithm="", files=(), vocabularies=(), pad_token="")
    tokenizer_class: str = ""
    inputs: tuple[str, ...] = ()

    # -- what only models of pixels have
    image_size: str
    """The key of an image's height and width in pixels."""
    patch_size: str
    """The key of a patch's."""
    channels: str
    class_token: str
    """Below `embeddings`, as the next one."""
    projection: str
    """The convolution that projects a patch's pixels."""
    final_norm: str
    """Below `prefix`: behind the last layer."""
    added: tuple[str, ...] = ("image_mean", "image_std")
    """Keys of preprocessor_config.json that the forward pass reads from its config."""

    @property
    def size_keys(self) -> tuple[str, ...]:
        """The keys of config.json whose values are integers above 0."""
        return (*self.keys.all(), self.image_size, self.patch_size, self.channels)

    @property
    def word_embeddings(self) -> str:
        """No tensor has this name: there are no word embeddings."""
        return ""

    def longest(self, config: Mapping) -> int:
        """Tokens of every row."""
        return (config[self.image_size] // config[self.patch_size]) ** 2 + 1

    @property
    def position_embeddings(self) -> str:
        """Name of the table of position embeddings."""
        return f"{self.prefix}{self.embeddings}{self.position_table}"

    def encoder_shapes(self, config: Mapping) -> Shapes:
        """Name -> shape of every tensor of the encoder, in the order of the model."""
        keys, part, patch = self.keys, self.layer, config[self.patch_size]
        width, inner = config[keys.width], config[keys.inner]
        embeddings = self.prefix + self.embeddings
        shapes: Shapes = {
            embeddings + self.class_token: (1, 1, width),
            self.position_embeddings: (1, self.longest(config), width),
            f"{embeddings}{self.projection}.weight": (width, config[self.channels], patch, patch),
            f"{embeddings}{self.projection}.bias": (width,),
        }
        for number in range(config[keys.layers]):
            name = self.layer_name(number)
            for projection in (part.query, part.key, part.value, part.attended):
                shapes |= _linear(name + projection, width, width)
            shapes |= _linear(name + part.inner, width, inner)
            shapes |= _linear(name + part.outer, inner, width)
            shapes |= _norm(name + part.attention_norm, width)
            shapes |= _norm(name + part.output_norm, width)
        return shapes | _norm(self.prefix + self.final_norm, width)


def _linear(name: str, inputs: int, outputs: int) -> Shapes:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def _norm(name: str, width: int) -> Shapes:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}
