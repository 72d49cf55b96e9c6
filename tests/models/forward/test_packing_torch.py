"""A batch computed without its padding: logits and gradients are those with it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from howdah.config.model import ModelSection
from howdah.config.training import TrainingSection
from howdah.data.family import FAMILIES
from howdah.models.forward import forward_torch
from howdah.models.forward.packing_torch import packing_of
from tests.support.models.tiny_families import LABELS, tiny_config, tiny_weights

LENGTHS = (9, 7, 2, 1, 1)


@pytest.fixture(params=["distilbert", "bert", "roberta"])
def net(request) -> forward_torch.EncoderClassifier:
    family = FAMILIES[request.param]
    config = tiny_config(family)
    return forward_torch.build(
        config,
        tiny_weights(family, config, classes=len(LABELS)),
        num_labels=len(LABELS),
        training=TrainingSection(framework="torch"),
        model=ModelSection(dropout=0.0),
    ).train()


def rows() -> tuple[torch.Tensor, np.ndarray]:
    """Ids, and the mask of rows of unequal lengths."""
    ids_BT = torch.from_numpy(np.random.default_rng(0).integers(5, 20, (5, 10)))
    mask_BT = (np.arange(10) < np.array(LENGTHS)[:, None]).astype(np.int32)
    return ids_BT, mask_BT


def passed(net, ids_BT, mask_BT, packing) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Logits, and the gradient of each parameter."""
    net.zero_grad()
    logits_BC = net(ids_BT, torch.from_numpy(mask_BT), packing=packing)
    torch.nn.functional.cross_entropy(logits_BC, torch.tensor([0, 1, 2, 1, 0])).backward()
    named = net.named_parameters()
    gradients = {name: one.grad.to_dense() for name, one in named if one.grad is not None}
    return logits_BC.detach(), gradients


def test_logits_and_gradients_are_those_of_padded_rows(net):
    ids_BT, mask_BT = rows()
    packing = packing_of(mask_BT, "cpu", torch.float32)
    assert len(packing.tokens_N) == sum(LENGTHS)
    packed, their_gradients = passed(net, ids_BT, mask_BT, packing)
    padded, gradients = passed(net, ids_BT, mask_BT, None)
    torch.testing.assert_close(packed, padded, atol=1e-6, rtol=1e-5)
    assert gradients.keys() == their_gradients.keys() and len(gradients) > 10
    for name, gradient in gradients.items():
        torch.testing.assert_close(their_gradients[name], gradient, atol=1e-6, rtol=1e-4)


def test_a_row_does_not_see_another_one(net):
    ids_BT, mask_BT = rows()
    packing = packing_of(mask_BT, "cpu", torch.float32)
    before, _ = passed(net, ids_BT, mask_BT, packing)
    ids_BT[1] = ids_BT[1].flip(0)
    after, _ = passed(net, ids_BT, mask_BT, packing)
    others = [0, 2, 3, 4]
    assert torch.equal(before[others], after[others]) and not torch.equal(before[1], after[1])


def test_batches_with_little_padding_are_padded_and_so_are_those_of_bf16_and_of_gpus():
    _, mask_BT = rows()
    assert packing_of(np.ones_like(mask_BT), "cpu", torch.float32) is None
    assert packing_of(mask_BT, "cpu", torch.bfloat16) is None
    assert packing_of(mask_BT, "cuda", torch.float32) is None
