"""The device part of a TensorFlow step, traced once for batches of all shapes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import tensorflow as tf

from howdah.config.tasks import Task
from howdah.models.forward.forward_tf import EncoderClassifier
from howdah.training.comm.base import Comm
from howdah.training.data.readers import Batch
from howdah.training.optim.gradients_tf import Gradients
from howdah.training.optim.losses_tf import LABELS, row_losses


class Steps:
    """The backward pass of a micro-batch, and the reduction at the end of a step."""

    def __init__(
        self,
        net: EncoderClassifier,
        gradients: Gradients,
        *,
        label_smoothing: float,
        task: Task = "single_label",
        positive_weights: np.ndarray | None = None,
    ) -> None:
        self._net, self._gradients = net, gradients
        self._losses = row_losses(
            task, label_smoothing=label_smoothing, positive_weights=positive_weights
        )
        self._variables = [net.variables[name] for name in net.trainable_names]
        self._batch = (  # types of the arguments of a traced step
            tf.TensorSpec([None, None], tf.int32),
            tf.TensorSpec([None, None], tf.int32),
            LABELS[task],
            tf.TensorSpec([None], tf.float32),
            tf.TensorSpec([], tf.float32),
            tf.TensorSpec([], tf.float32),
            tf.TensorSpec([2], tf.int64),
        )
        self._first, self._further = (
            tf.function(self._backward_of(first), input_signature=self._batch, autograph=False)
            for first in (True, False)
        )

    def join(self, comm: Comm) -> None:
        """Reduce in this world from now on; call `gradients.arrange` first.

        Where the world overlaps both, the last micro-batch's graph also has the reduction: a
        message begins when its gradients are computed.
        """
        self._comm = comm
        self._overlaps = comm.overlaps(on_gpu=bool(tf.config.get_visible_devices("GPU")))
        self._norm: tf.Tensor | None = None

        def reduce_and_measure(whole: bool) -> tf.Tensor:
            self._gradients.reduce(comm, whole=whole)
            return self._gradients.norm(comm)

        def to_the_end(whole: bool, first: bool) -> Callable:
            backward = self._backward_of(first)
            return lambda *batch: (backward(*batch), reduce_and_measure(whole))

        both = (True, False)  # a function that is not called is not traced
        self._reduce = {
            whole: tf.function(partial(reduce_and_measure, whole), autograph=False)
            for whole in both
        }
        self._last = {
            (whole, first): tf.function(
                to_the_end(whole, first), input_signature=self._batch, autograph=False
            )
            for whole in both
            for first in both
        }

    @property
    def traces(self) -> tuple[int, int]:
        """Numbers of traces for a step's first micro-batch and for further ones, at most 1 each."""
        return tuple(f.experimental_get_tracing_count() for f in (self._first, self._further))

    def backward(
        self, batch: Batch, *, seed: int, scale: float, whole: bool = True, overlap: bool = True
    ) -> tf.Tensor:
        """Forward and backward pass. Returns this micro-batch's part of the step's loss, unscaled.

        Args:
            seed: dropout's seed, 63 bits.
            scale: factor of the loss before the backward pass.
            whole: the step sends what int8 has held back too (`Gradients.reduce`).
            overlap: also send the step's messages in its last micro-batch, where the world overlaps
                both.
        """
        arguments = (
            batch.ids_BT,
            batch.mask_BT,
            batch.labels_B,
            batch.weights_B,
            np.float32(batch.global_weight),
            np.float32(scale),
            np.array([seed, 0], np.int64),
        )
        first = batch.micro == 0
        if not (overlap and self._overlaps and batch.last_of_step):
            return (self._first if first else self._further)(*arguments)
        with self._comm.guarded(), self._comm.limited():
            loss, self._norm = self._last[whole, first](*arguments)
            return loss

    def _backward_of(self, first: bool):
        def backward(ids_BT, mask_BT, labels_B, weights_B, global_weight, scale, seed_2):
            with tf.GradientTape() as tape:
                logits_BC = self._net(ids_BT, mask_BT, seed_2)
                loss_B = self._losses(logits_BC, labels_B)
                loss = tf.reduce_sum(loss_B * weights_B) / global_weight
                scaled = loss * scale
            self._gradients.add(tape.gradient(scaled, self._variables), first=first)
            return loss

        return backward

    def reduce(self, *, whole: bool = True) -> float:
        """Sum the gradients over all ranks. Returns their global norm. Every rank enters; for
        `whole` see `backward`."""
        norm, self._norm = self._norm, None
        if norm is None:
            with self._comm.watch():
                norm = self._reduce[whole]()
        norm = float(norm)
        if not math.isfinite(norm):
            self._gradients.forget()
        return norm
