"""AdamW on TensorFlow variables: the same update as `torch.optim.AdamW`.

    p *= 1 - lr * weight_decay                  (not on biases and LayerNorm)
    m  = beta1 * m + (1 - beta1) * g
    v  = beta2 * v + (1 - beta2) * g^2
    p -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)

Source: Loshchilov and Hutter, arXiv:1711.05101, in the form of torch.optim.AdamW.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from howdah.config.training import TrainingSection
from howdah.models.weights.parameters import decays
from howdah.training.checkpoint.read import ADAM_M, ADAM_V
from howdah.training.optim.schedule import BETAS, EPSILON


class AdamW:
    """The optimizer with its moments."""

    def __init__(self, variables: Mapping[str, tf.Variable], training: TrainingSection) -> None:
        self._variables = dict(variables)
        self._weight_decay = training.weight_decay
        self._m = {name: _zeros(variable) for name, variable in self._variables.items()}
        self._v = {name: _zeros(variable) for name, variable in self._variables.items()}
        self.updates = 0
        """Number of updates done: t."""
        # On a CPU memory bandwidth limits an update, which takes two passes operation by operation
        # and one if compiled. A GPU has the bandwidth, and its host may lack the compiler.
        on_gpu = any("GPU" in variable.device for variable in self._variables.values())
        self._apply = tf.function(self._update, autograph=False, jit_compile=not on_gpu)

    def step(self, gradients: Sequence[tf.Variable], *, lr: float, factor: float) -> None:
        """Update every variable.

        Args:
            gradients: one per variable, in their order.
            factor: gradients are first multiplied by it.
        """
        self.updates += 1
        # In double precision, on the host: in float32 1 - 0.999^t loses four digits at t = 1.
        correction_1 = 1.0 - BETAS[0] ** self.updates
        root_2 = math.sqrt(1.0 - BETAS[1] ** self.updates)
        self._apply(
            [gradient.handle for gradient in gradients],
            tf.constant(factor, tf.float32),
            tf.constant(lr * root_2 / correction_1, tf.float32),
            tf.constant(EPSILON * root_2, tf.float32),
            tf.constant(1.0 - lr * self._weight_decay, tf.float32),
        )

    def _update(
        self,
        handles: list[tf.Tensor],
        factor: tf.Tensor,
        size: tf.Tensor,
        epsilon: tf.Tensor,
        keep: tf.Tensor,
    ) -> None:
        zero = tf.zeros([])
        beta1, beta2 = (tf.constant(beta, tf.float32) for beta in BETAS)
        for (name, variable), handle in zip(self._variables.items(), handles, strict=True):
            if self._weight_decay and decays(name):
                variable.assign(variable * keep)
            gradient = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)
            # In place. The powers of beta are passed as 0, because `size` and `epsilon` contain the
            # corrections: sqrt(1 - beta2^t) is moved out of the denominator.
            tf.raw_ops.ResourceApplyAdam(
                var=variable.handle,
                m=self._m[name].handle,
                v=self._v[name].handle,
                beta1_power=zero,
                beta2_power=zero,
                lr=size,
                beta1=beta1,
                beta2=beta2,
                epsilon=epsilon,
                grad=gradient * factor,
            )

    def moments(self) -> Iterator[tuple[str, np.ndarray]]:
        """The moments `adam_m/<name>` and `adam_v/<name>`; copy an array to keep it."""
        for prefix, named in ((ADAM_M, self._m), (ADAM_V, self._v)):
            for name, variable in named.items():
                yield prefix + name, np.asarray(variable.read_value())

    def restore(self, tensors: Iterable[tuple[str, np.ndarray]], updates: int) -> None:
        """Continue after `updates` updates with the moments in `tensors`.

        Moments of a variable that was frozen so far are missing there, and become zero.

        Args:
            tensors: (name, tensor) pairs, which are read one at a time.
        """
        used, self.updates = self.updates > 0, updates
        missing = {
            prefix + name: variable
            for prefix, named in ((ADAM_M, self._m), (ADAM_V, self._v))
            for name, variable in named.items()
        }
        for name, array in tensors:
            if (variable := missing.pop(name, None)) is not None:
                variable.assign(array)
            del array  # before the next one is made
        for variable in missing.values() if used else ():
            variable.assign(tf.zeros(variable.shape, tf.float32))


def _zeros(variable: tf.Variable) -> tf.Variable:
    return tf.Variable(tf.zeros(variable.shape, tf.float32), trainable=False)
