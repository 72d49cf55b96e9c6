"""GELU and LayerNorm in TensorFlow with custom gradients: fewer passes over activations.

On a CPU each operation of a graph reads and writes all its elements. TensorFlow's built-in
gradients of these two take a third to a half longer (docs/decisions/training-speed.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import tensorflow as tf

_ROOT_HALF = math.sqrt(0.5)
_PEAK = 1 / math.sqrt(2 * math.pi)


@tf.custom_gradient
def gelu(x: tf.Tensor) -> tuple[tf.Tensor, Callable]:
    """x times the standard normal distribution function at x; exact, like torch's GELU.

    Source: Hendrycks and Gimpel, arXiv:1606.08415.
    """
    below = 0.5 + 0.5 * tf.math.erf(x * _ROOT_HALF)

    def gradient(upstream: tf.Tensor) -> tf.Tensor:
        density = tf.exp(tf.square(x) * -0.5) * _PEAK
        return upstream * (below + x * density)

    return x * below, gradient


@tf.custom_gradient
def layer_norm(
    x_ND: tf.Tensor, weight_D: tf.Tensor, bias_D: tf.Tensor, epsilon: float
) -> tuple[tf.Tensor, Callable]:
    """Each row minus its mean, divided by its standard deviation, times weight, plus bias. float32.

    Args:
        epsilon: added to the variance; a plain number.
    Source: Ba, Kiros and Hinton, arXiv:1607.06450.
    """
    centered_ND = x_ND - _mean(x_ND)
    scale_N1 = tf.math.rsqrt(_mean(tf.square(centered_ND)) + epsilon)
    normal_ND = centered_ND * scale_N1

    def gradient(upstream_ND: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, None]:
        by_normal_ND = upstream_ND * normal_ND
        inner_ND = upstream_ND * weight_D
        # Mean and deviation depend on the row: subtract the parts along 1 and along the row.
        along_row_N1 = _mean(by_normal_ND * weight_D)
        x_gradient_ND = (inner_ND - _mean(inner_ND) - normal_ND * along_row_N1) * scale_N1
        return x_gradient_ND, tf.reduce_sum(by_normal_ND, 0), tf.reduce_sum(upstream_ND, 0), None

    return normal_ND * weight_D + bias_D, gradient


def _mean(x_ND: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(x_ND, -1, keepdims=True)
