"""The loss of each row in torch by task; training/optim/losses_tf.py has the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

import numpy as np
import torch
import torch.nn.functional as F

from howdah.config.tasks import Task
from howdah.models.forward.kernels_torch import on_device


def row_losses(
    task: Task, *, label_smoothing: float = 0.0, positive_weights: np.ndarray | None = None
) -> Callable[[torch.Tensor, np.ndarray], torch.Tensor]:
    """(logits_BC, labels) -> loss_B, with a Batch's labels.

    Args:
        label_smoothing: training.label_smoothing_factor.
        positive_weights: float32[C] for task multi_label; None: all 1.
    """

    def cross_entropy(logits_BC: torch.Tensor, labels_B: np.ndarray) -> torch.Tensor:
        labels = on_device(labels_B, logits_BC.device)
        return F.cross_entropy(logits_BC, labels, label_smoothing=label_smoothing, reduction="none")

    def binary(logits_BC: torch.Tensor, labels_BC: np.ndarray) -> torch.Tensor:
        """The mean over the labels, like transformers' BCEWithLogitsLoss."""
        device = logits_BC.device
        weights = None
        if positive_weights is not None:
            weights = on_device(positive_weights, device)
        labels = on_device(labels_BC, device)
        return F.binary_cross_entropy_with_logits(
            logits_BC, labels, pos_weight=weights, reduction="none"
        ).mean(dim=1)

    def squared(logits_B1: torch.Tensor, targets_B: np.ndarray) -> torch.Tensor:
        targets = on_device(targets_B, logits_B1.device)
        return (logits_B1[:, 0] - targets) ** 2

    if task == "single_label":
        return cross_entropy
    if task == "multi_label":
        return binary
    if task == "regression":
        return squared
    assert_never(task)
