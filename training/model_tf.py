"""DistilBERT for sequence classification in TensorFlow operations.

Our own forward pass rather than transformers' TF class: dropout is stateless (a seed goes in with
each call, nothing is counted, so that a resumed run draws what an uninterrupted one would), and the
variables have Hugging Face's torch names AND layouts, so that checkpoints and exports are these
arrays as they are.

Source: transformers' `modeling_distilbert.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np
import tensorflow as tf

from howdah.config_model import ModelSection, TrainingSection
from training.distilbert import BLOCKED, EPSILON, PREFIX, check_activation
from training.kernels_tf import gelu, layer_norm
from training.parameters import dropout_draw, dropout_rates, start_weights, trainable_names

__all__ = [
    "DistilBertClassifier",
    "Dropouts",
    "build",
    "forward_fn",
    "import_weights",
    "weights",
]

_ACTIVATIONS = {
    "gelu": gelu,
    "gelu_new": partial(tf.nn.gelu, approximate=True),
    "relu": tf.nn.relu,
    "silu": tf.nn.silu,
}


class DistilBertClassifier:
    """The model: float32 variables by name, computing in `compute_dtype`.

    Args:
        config: the base's config.json, defaults filled in.
        weights: float32 by name, all of them.
        trainable: names that training changes.
        rates: dropout of the transformer, the attention weights, and before the classifier.
        compute_dtype: of matrix products and activations; norms and softmax are float32.
    """

    def __init__(
        self,
        config: Mapping,
        weights: Mapping[str, np.ndarray],
        *,
        trainable: list[str],
        rates: tuple[float, float, float],
        compute_dtype: tf.DType,
    ) -> None:
        self.config = dict(config)
        self.compute_dtype = compute_dtype
        self.rates = rates
        self.trainable_names = trainable
        self.variables: dict[str, tf.Variable] = {
            name: tf.Variable(array, dtype=tf.float32, trainable=name in trainable)
            for name, array in weights.items()
        }

    def __call__(
        self, ids_BT: tf.Tensor, mask_BT: tf.Tensor, seed_2: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Logits [B, C] float32.

        Args:
            ids_BT, mask_BT: int32.
            seed_2: int64 [2], dropout's seed of this call; None: no dropout.
        """
        dropout, attention_dropout, classifier_dropout = self.rates
        dropouts = Dropouts(seed_2)
        blocked_B11T = (1.0 - tf.cast(mask_BT, tf.float32))[:, None, None, :] * BLOCKED
        hidden_BTD = self._embed(ids_BT)
        hidden_BTD = dropouts(hidden_BTD, dropout)
        for number in range(self.config["n_layers"]):
            layer = f"{PREFIX}transformer.layer.{number}."
            # Q: the tokens that the layer computes, of the last one those that are read.
            own_BQD = hidden_BTD[:, :1] if number == self.config["n_layers"] - 1 else hidden_BTD
            attended = self._attend(
                own_BQD, hidden_BTD, blocked_B11T, layer, dropouts, attention_dropout
            )
            hidden_BTD = self._norm(attended + own_BQD, layer + "sa_layer_norm")
            inner_BTH = self._linear(hidden_BTD, layer + "ffn.lin1")
            inner_BTH = _ACTIVATIONS[self.config["activation"]](inner_BTH)
            outer_BTD = dropouts(self._linear(inner_BTH, layer + "ffn.lin2"), dropout)
            hidden_BTD = self._norm(outer_BTD + hidden_BTD, layer + "output_layer_norm")
        first_BD = tf.nn.relu(self._linear(hidden_BTD[:, 0], "pre_classifier"))
        logits_BC = self._linear(dropouts(first_BD, classifier_dropout), "classifier")
        return tf.cast(logits_BC, tf.float32)

    def _embed(self, ids_BT: tf.Tensor) -> tf.Tensor:
        embeddings = PREFIX + "embeddings."
        words_BTD = tf.gather(self.variables[embeddings + "word_embeddings.weight"], ids_BT)
        places_TD = self.variables[embeddings + "position_embeddings.weight"][: tf.shape(ids_BT)[1]]
        return self._norm(words_BTD + places_TD, embeddings + "LayerNorm")

    def _attend(
        self,
        own_BQD: tf.Tensor,
        hidden_BTD: tf.Tensor,
        blocked_B11T: tf.Tensor,
        layer: str,
        dropouts: Dropouts,
        rate: float,
    ) -> tf.Tensor:
        heads = self.config["n_heads"]
        size = self.config["dim"] // heads

        def split(x: tf.Tensor, name: str) -> tf.Tensor:  # [B, T, D] -> [B, heads, T, D / heads]
            projected = self._linear(x, f"{layer}attention.{name}")
            shape = tf.shape(x)
            by_head = tf.reshape(projected, [shape[0], shape[1], heads, size])
            return tf.transpose(by_head, [0, 2, 1, 3])

        query = split(own_BQD, "q_lin")
        key, value = split(hidden_BTD, "k_lin"), split(hidden_BTD, "v_lin")
        scores_BHQT = tf.matmul(query * size**-0.5, key, transpose_b=True)
        weights_BHQT = tf.nn.softmax(tf.cast(scores_BHQT, tf.float32) + blocked_B11T)
        weights_BHQT = dropouts(tf.cast(weights_BHQT, self.compute_dtype), rate)
        context = tf.transpose(tf.matmul(weights_BHQT, value), [0, 2, 1, 3])
        joined_BQD = tf.reshape(context, tf.shape(own_BQD))
        return self._linear(joined_BQD, layer + "attention.out_lin")

    def _linear(self, x: tf.Tensor, name: str) -> tf.Tensor:
        weight_OI = tf.cast(self.variables[name + ".weight"], self.compute_dtype)
        bias_O = tf.cast(self.variables[name + ".bias"], self.compute_dtype)
        shape = tf.shape(x)
        # One matrix product over all tokens, rather than a batch of small ones.
        flat = tf.reshape(x, [-1, weight_OI.shape[1]])
        product = tf.nn.bias_add(tf.matmul(flat, weight_OI, transpose_b=True), bias_O)
        return tf.reshape(product, tf.concat([shape[:-1], [weight_OI.shape[0]]], 0))

    def _norm(self, x: tf.Tensor, name: str) -> tf.Tensor:
        weight_D, bias_D = self.variables[name + ".weight"], self.variables[name + ".bias"]
        flat_ND = tf.reshape(tf.cast(x, tf.float32), [-1, weight_D.shape[0]])
        result_ND = layer_norm(flat_ND, tf.identity(weight_D), tf.identity(bias_D), EPSILON)
        return tf.cast(tf.reshape(result_ND, tf.shape(x)), self.compute_dtype)


class Dropouts:
    """The dropouts of one forward pass, each with a seed of its own drawn from the call's."""

    def __init__(self, seed_2: tf.Tensor | None) -> None:
        self._seed_2 = seed_2
        self._count = 0

    def __call__(self, x: tf.Tensor, rate: float) -> tf.Tensor:
        if self._seed_2 is None or rate == 0.0:
            return x
        self._count += 1
        seed_2 = tf.stack([self._seed_2[0], self._seed_2[1] + self._count])
        # Two elements of 16 bits to a draw; one product, whose gradient is one product as well.
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
) -> DistilBertClassifier:
    """The model with these weights; a new classifier where they have none for `num_labels`.

    Raises:
        ModelError: an activation that DistilBERT does not have.
        ConfigError: more layers are to be frozen than there are.
    """
    check_activation(base_config)
    return DistilBertClassifier(
        base_config,
        start_weights(base_config, weights, num_labels=num_labels, seed=training.seed),
        trainable=trainable_names(base_config, model),
        rates=dropout_rates(base_config, model),
        compute_dtype={"fp32": tf.float32, "bf16": tf.bfloat16, "fp16": tf.float16}[precision],
    )


def weights(model: DistilBertClassifier) -> Iterator[tuple[str, np.ndarray]]:
    """All weights, float32 by Hugging Face's torch names, in torch's layouts.

    Copy what is kept: it may be the model's own memory.
    """
    for name, variable in model.variables.items():
        yield name, np.asarray(variable.read_value())


def import_weights(model: DistilBertClassifier, arrays: Mapping[str, np.ndarray]) -> None:
    """Put weights that `weights` gave into the model."""
    for name, variable in model.variables.items():
        variable.assign(arrays[name])


def forward_fn(
    model: DistilBertClassifier, *, as_served: bool = False
) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """(ids_BT, mask_BT) -> logits_BC float32 without dropout; one trace whatever the shapes.

    Args:
        as_served: compute in float32, as training/serve.py does, whatever the model trains in.
    """
    spec = tf.TensorSpec([None, None], tf.int32)

    @tf.function(input_signature=[spec, spec])
    def forward(ids_BT: tf.Tensor, mask_BT: tf.Tensor) -> tf.Tensor:
        dtype = model.compute_dtype
        if as_served:
            model.compute_dtype = tf.float32  # read while this is traced
        try:
            return model(ids_BT, mask_BT)
        finally:
            model.compute_dtype = dtype

    def run(ids_BT: np.ndarray, mask_BT: np.ndarray) -> np.ndarray:
        return forward(tf.constant(ids_BT, tf.int32), tf.constant(mask_BT, tf.int32)).numpy()

    return run
