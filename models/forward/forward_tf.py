"""Classifiers in TensorFlow operations.

Used instead of transformers' TF class because its dropout is stateless (each call gets a seed, so
that a resumed run draws the same numbers as an uninterrupted one), and because its variables have
Hugging Face's torch names AND layouts, so that checkpoints and exports hold them unchanged.

A family (data/family.py) names its tensors and its forward pass, one of FORWARD_PASSES.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import numpy as np
import tensorflow as tf

from howdah.config.model import ModelSection
from howdah.config.training import TrainingSection
from howdah.data.family import family_of
from howdah.models.forward.kernels_tf import gelu, layer_norm
from howdah.models.weights import lora
from howdah.models.weights.parameters import (
    BLOCKED,
    dropout_draw,
    dropout_rates,
    start_weights,
    trainable_names,
)

_ACTIVATIONS = {
    "gelu": gelu,
    "gelu_new": partial(tf.nn.gelu, approximate=True),
    "relu": tf.nn.relu,
    "silu": tf.nn.silu,
    "tanh": tf.tanh,
}


class EncoderClassifier:
    """The forward pass "post-norm": a norm behind each sublayer; the head takes the first token.

    Variables are float32 under Hugging Face's names; it computes in `compute_dtype`.
    Source: transformers' `modeling_distilbert.py`, `modeling_bert.py`, `modeling_roberta.py`.

    Args:
        config: the base's config.json, defaults filled in.
        weights: float32 by name, all of them.
        trainable: names that training changes.
        rates: dropout of the transformer, the attention weights, and before the classifier.
        compute_dtype: dtype of matrix products and activations; norms and softmax are float32.
    """

    def __init__(
        self,
        config: Mapping,
        weights: Mapping[str, np.ndarray],
        *,
        trainable: list[str],
        rates: tuple[float, float, float],
        compute_dtype: tf.DType,
        first_type_ends: int | None = None,
    ) -> None:
        self.first_type_ends = first_type_ends
        self.config = dict(config)
        self.family = family_of(config)
        self.compute_dtype = compute_dtype
        self.rates = rates
        self.trainable_names = trainable
        self.variables: dict[str, tf.Variable] = {
            name: tf.Variable(array, dtype=tf.float32, trainable=name in trainable)
            for name, array in weights.items()
        }

    def __call__(
        self,
        ids_BT: tf.Tensor,
        mask_BT: tf.Tensor,
        seed_2: tf.Tensor | None = None,
        types_BT: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Logits [B, C] float32.

        Args:
            ids_BT, mask_BT: int32.
            seed_2: int64 [2], dropout's seed for this call; None: no dropout.
            types_BT: int32, the token types; None: they follow from `first_type_ends`. Not read if
                the model has fewer than two.
        """
        dropout, attention_dropout, classifier_dropout = self.rates
        dropouts = Dropouts(seed_2)
        blocked_B11T = (1.0 - tf.cast(mask_BT, tf.float32))[:, None, None, :] * BLOCKED
        hidden_BTD = self._embed(ids_BT, types_BT)
        hidden_BTD = dropouts(hidden_BTD, dropout)
        family, part = self.family, self.family.layer
        layers = self.config[family.keys.layers]
        for number in range(layers):
            layer = family.layer_name(number)
            # Q: the tokens that the layer computes: T, or 1 in the last layer (the head's input).
            query_BQD = hidden_BTD[:, :1] if number == layers - 1 else hidden_BTD
            attended = self._attend(
                query_BQD, hidden_BTD, blocked_B11T, layer, dropouts, attention_dropout
            )
            if family.attended_dropout:
                attended = dropouts(attended, dropout)
            hidden_BTD = self._norm(attended + query_BQD, layer + part.attention_norm)
            inner_BTH = self._linear(hidden_BTD, layer + part.inner)
            inner_BTH = _ACTIVATIONS[self.config[family.activation]](inner_BTH)
            outer_BTD = dropouts(self._linear(inner_BTH, layer + part.outer), dropout)
            hidden_BTD = self._norm(outer_BTD + hidden_BTD, layer + part.output_norm)
        inner, outer = family.classifier_layers
        first_BD = hidden_BTD[:, 0]
        if family.head_dropout_first:
            first_BD = dropouts(first_BD, classifier_dropout)
        first_BD = _ACTIVATIONS[family.head_activation](self._linear(first_BD, inner))
        logits_BC = self._linear(dropouts(first_BD, classifier_dropout), outer)
        return tf.cast(logits_BC, tf.float32)

    def _embed(self, ids_BT: tf.Tensor, types_BT: tf.Tensor | None) -> tf.Tensor:
        family = self.family
        words_BTD = tf.gather(self.variables[family.word_embeddings], ids_BT)
        first = family.first_position(self.config)
        positions_TD = self.variables[family.position_embeddings][
            first : first + tf.shape(ids_BT)[1]
        ]
        embedded_BTD = words_BTD + positions_TD
        if family.token_type_table:
            types = self.variables[family.token_type_embeddings]
            count = types.shape[0]
            if types_BT is None and self.first_type_ends is not None:
                ends_BT = tf.cast(ids_BT == self.first_type_ends, tf.int32)
                # 1 for the tokens after the first end token
                types_BT = tf.cast(tf.cumsum(ends_BT, axis=1) > ends_BT, tf.int32)
            if types_BT is None or count == 1:
                embedded_BTD += types[0]
            else:  # a product, since a gather's sparse gradient would be larger than the table
                embedded_BTD += tf.tensordot(tf.one_hot(types_BT, count), types, 1)
        return self._norm(embedded_BTD, family.prefix + family.embeddings + family.embeddings_norm)

    def _attend(
        self,
        query_BQD: tf.Tensor,
        hidden_BTD: tf.Tensor,
        blocked_B11T: tf.Tensor,
        layer: str,
        dropouts: Dropouts,
        rate: float,
    ) -> tf.Tensor:
        keys, part = self.family.keys, self.family.layer
        heads = self.config[keys.heads]
        size = self.config[keys.width] // heads

        def split(x: tf.Tensor, name: str) -> tf.Tensor:  # [B, T, D] -> [B, heads, T, D / heads]
            projected = self._linear(x, layer + name)
            shape = tf.shape(x)
            by_head = tf.reshape(projected, [shape[0], shape[1], heads, size])  # [B, T, H, D/H]
            return tf.transpose(by_head, [0, 2, 1, 3])

        query = split(query_BQD, part.query)
        key, value = split(hidden_BTD, part.key), split(hidden_BTD, part.value)
        scores_BHQT = tf.matmul(query * size**-0.5, key, transpose_b=True)
        weights_BHQT = tf.nn.softmax(tf.cast(scores_BHQT, tf.float32) + blocked_B11T)
        weights_BHQT = dropouts(tf.cast(weights_BHQT, self.compute_dtype), rate)
        context = tf.transpose(tf.matmul(weights_BHQT, value), [0, 2, 1, 3])  # [B, Q, H, D/H]
        joined_BQD = tf.reshape(context, tf.shape(query_BQD))
        return self._linear(joined_BQD, layer + part.attended)

    def _linear(self, x: tf.Tensor, name: str) -> tf.Tensor:
        weight_OI = tf.cast(self.variables[name + ".weight"], self.compute_dtype)
        bias_O = tf.cast(self.variables[name + ".bias"], self.compute_dtype)
        shape = tf.shape(x)
        # One matrix product over all tokens, rather than a batch of small ones.
        flat = tf.reshape(x, [-1, weight_OI.shape[1]])  # [B * T, I]
        product = tf.nn.bias_add(tf.matmul(flat, weight_OI, transpose_b=True), bias_O)
        if (a_RI := self.variables.get(name + lora.A)) is not None:
            b_OR = tf.cast(self.variables[name + lora.B], self.compute_dtype)
            low = tf.matmul(flat, tf.cast(a_RI, self.compute_dtype), transpose_b=True)
            low *= lora.scale(a_RI.shape[0])
            product += tf.matmul(low, b_OR, transpose_b=True)
        return tf.reshape(product, tf.concat([shape[:-1], [weight_OI.shape[0]]], 0))

    def _norm(self, x: tf.Tensor, name: str) -> tf.Tensor:
        weight_D, bias_D = self.variables[name + ".weight"], self.variables[name + ".bias"]
        flat_ND = tf.reshape(tf.cast(x, tf.float32), [-1, weight_D.shape[0]])
        epsilon = self.family.epsilon(self.config)
        result_ND = layer_norm(flat_ND, tf.identity(weight_D), tf.identity(bias_D), epsilon)
        return tf.cast(tf.reshape(result_ND, tf.shape(x)), self.compute_dtype)


FORWARD_PASSES: dict[str, type[EncoderClassifier]] = {"post-norm": EncoderClassifier}
"""Classes by the name in `ModelFamily.forward` (data/family.py)."""


class Dropouts:
    """The dropouts of one forward pass; each gets its own seed, derived from the call's."""

    def __init__(self, seed_2: tf.Tensor | None) -> None:
        self._seed_2 = seed_2
        self._count = 0

    def __call__(self, x: tf.Tensor, rate: float) -> tf.Tensor:
        if self._seed_2 is None or rate == 0.0:
            return x
        self._count += 1
        seed_2 = tf.stack([self._seed_2[0], self._seed_2[1] + self._count])
        # A 32-bit draw serves two elements. The mask is one product, so its gradient is one too.
        count = tf.size(x)
        draws = tf.random.stateless_uniform(
            [(count + 1) // 2], seed_2, minval=None, maxval=None, dtype=tf.int32
        )
        values = tf.reshape(tf.bitcast(draws, tf.int16), [-1])[:count]
        least, factor = dropout_draw(rate)
        kept = tf.cast(values >= least, x.dtype)
        return x * tf.reshape(kept * factor, tf.shape(x))


def build(
    base_config: Mapping,
    weights: Mapping[str, np.ndarray],
    *,
    num_labels: int,
    training: TrainingSection,
    model: ModelSection,
    precision: str = "fp32",
    first_type_ends: int | None = None,
) -> EncoderClassifier:
    """The model with these weights; a new classifier is added if they lack one for `num_labels`.

    Args:
        first_type_ends: for pairs (Encoder.first_type_ends); None: all tokens have type 0.
    Raises:
        ModelError: the family is unknown, or does not have the activation.
        ConfigError: model.freeze_layers exceeds the model's layers.
    """
    family = family_of(base_config)
    family.check_activation(base_config)
    return FORWARD_PASSES[family.forward](
        base_config,
        start_weights(
            base_config,
            weights,
            num_labels=num_labels,
            seed=training.seed,
            adapters=lora.adapter_shapes(base_config, model, training.lora),
        ),
        trainable=trainable_names(base_config, model, training.lora),
        rates=dropout_rates(base_config, model),
        compute_dtype={"fp32": tf.float32, "bf16": tf.bfloat16, "fp16": tf.float16}[precision],
        first_type_ends=first_type_ends,
    )


def weights(model: EncoderClassifier) -> Iterator[tuple[str, np.ndarray]]:
    """All weights, float32 by Hugging Face's torch names, in torch's layouts.

    Copy an array to keep it: it may be the model's own memory.
    """
    for name, variable in model.variables.items():
        yield name, np.asarray(variable.read_value())


def import_weights(model: EncoderClassifier, arrays: Iterable[tuple[str, np.ndarray]]) -> None:
    """Assign the arrays that `weights` returned to the model's variables; none of those that are
    trained may be missing, and the others keep their values."""
    remaining = set(model.trainable_names)
    for name, array in arrays:
        model.variables[name].assign(array)
        remaining.discard(name)
    if remaining:
        raise KeyError(f"the weights lack {sorted(remaining)[:5]}")


def forward_fn(
    model: EncoderClassifier, *, as_served: bool = False
) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """(ids_BT, mask_BT, types_BT or None) -> logits_BC float32 without dropout; one trace for all
    shapes, and one more for calls with token types.

    Args:
        as_served: compute in float32, as models/opened/opened.py does, whatever the training
            precision.
    """
    spec = tf.TensorSpec([None, None], tf.int32)

    def compute(ids_BT: tf.Tensor, mask_BT: tf.Tensor, types_BT: tf.Tensor | None) -> tf.Tensor:
        dtype = model.compute_dtype
        if as_served:
            model.compute_dtype = tf.float32  # read while this is traced
        try:
            return model(ids_BT, mask_BT, types_BT=types_BT)
        finally:
            model.compute_dtype = dtype

    @tf.function(input_signature=[spec, spec], autograph=False)
    def of_one_type(ids_BT: tf.Tensor, mask_BT: tf.Tensor) -> tf.Tensor:
        return compute(ids_BT, mask_BT, None)

    @tf.function(input_signature=[spec, spec, spec], autograph=False)
    def of_types(ids_BT: tf.Tensor, mask_BT: tf.Tensor, types_BT: tf.Tensor) -> tf.Tensor:
        return compute(ids_BT, mask_BT, types_BT)

    def run(
        ids_BT: np.ndarray, mask_BT: np.ndarray, types_BT: np.ndarray | None = None
    ) -> np.ndarray:
        inputs = [ids_BT, mask_BT] if types_BT is None else [ids_BT, mask_BT, types_BT]
        forward = of_one_type if types_BT is None else of_types
        return forward(*(tf.constant(array, tf.int32) for array in inputs)).numpy()

    return run
