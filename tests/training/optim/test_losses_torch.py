"""Losses in torch: those of numpy, and of torch's own modules."""

import pytest
import torch

from howdah.training.optim.losses_torch import row_losses
from tests.support.training.task_losses import POSITIVE, SMOOTHING, batch, by_hand, options


@pytest.mark.parametrize("task", ["single_label", "multi_label", "regression"])
def test_losses(task):
    logits, labels = batch(task)
    losses = row_losses(task, **options(task))(torch.from_numpy(logits), labels)
    assert losses.numpy() == pytest.approx(by_hand(task), rel=1e-5)
    scores, targets = torch.from_numpy(logits), torch.from_numpy(labels)
    plain = {
        "single_label": lambda: torch.nn.CrossEntropyLoss(label_smoothing=SMOOTHING)(
            scores, targets.long()
        ),
        "multi_label": lambda: torch.nn.BCEWithLogitsLoss(pos_weight=torch.from_numpy(POSITIVE))(
            scores, targets
        ),
        "regression": lambda: torch.nn.MSELoss()(scores.squeeze(), targets.squeeze()),
    }[task]()
    assert float(losses.mean()) == pytest.approx(float(plain), rel=1e-6)
