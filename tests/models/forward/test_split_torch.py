"""A model divided among ranks, which are threads here, against the whole one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from howdah.config.model import ModelSection, ParallelSection, TrainingSection
from howdah.data.family import DISTILBERT
from howdah.errors import ConfigError
from howdah.models.forward import forward_torch
from howdah.models.weights import parameters
from howdah.training.comm.base import Comm
from howdah.training.model.split_torch import Split
from howdah.training.optim.split_adamw_torch import SplitGradients
from tests.support.training.threads_torch import in_threads

SHAPE = DISTILBERT.complete({"dim": 16, "hidden_dim": 32, "n_heads": 4, "n_layers": 2,
                             "vocab_size": 40, "max_position_embeddings": 12})  # fmt: skip
LABELS = 3
NONE = ModelSection(dropout=0.0, attention_dropout=0.0, classifier_dropout=0.0)


def weights(config: dict = SHAPE) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(1)
    shapes = DISTILBERT.encoder_shapes(config) | DISTILBERT.head_shapes(config, LABELS)
    return {name: generator.normal(0, 0.3, s).astype(np.float32) for name, s in shapes.items()}


def passes(comm: Comm | None) -> tuple[np.ndarray, dict[str, np.ndarray], float]:
    """(logits, gradients by name, their norm) of a rank; None: of the whole model."""
    split = None if comm is None else Split(DISTILBERT, comm)
    net = forward_torch.build(
        SHAPE, weights(), num_labels=LABELS, training=TrainingSection(), model=NONE, split=split
    )
    named, words = dict(net.named_parameters()), DISTILBERT.word_embeddings
    gradients = None if split is None else SplitGradients(named, words=words, split=split)
    ids_BT = torch.from_numpy(np.random.default_rng(2).integers(0, 40, (5, 7)))
    mask_BT = torch.ones_like(ids_BT)
    mask_BT[1, 4:] = 0
    logits_BC = net(ids_BT, mask_BT)
    logits_BC.square().sum().backward()
    grads = {name: (p.grad.to_dense() if p.grad.is_sparse else p.grad) for name, p in named.items()}
    norm = (
        gradients.norm(comm)
        if gradients
        else torch.stack([g.norm() for g in grads.values()]).norm()
    )
    return logits_BC.detach().numpy(), {n: g.numpy() for n, g in grads.items()}, float(norm)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_parts_compute_what_the_whole_does(size):
    wanted, whole, norm = passes(None)
    ranks = in_threads(size, passes)
    for rank, (logits_BC, grads, own_norm) in enumerate(ranks):
        np.testing.assert_allclose(logits_BC, wanted, rtol=1e-4, atol=1e-4)
        assert own_norm == ranks[0][2] == pytest.approx(norm, rel=1e-5)
        for name, grad in grads.items():
            axis = Split(DISTILBERT, _Place(rank, size)).axis(name)
            part = whole[name] if axis is None else np.split(whole[name], size, axis)[rank]
            np.testing.assert_allclose(grad, part, rtol=2e-3, atol=2e-3, err_msg=name)
    for name in (name for name, grad in ranks[0][1].items() if grad.shape == whole[name].shape):
        # What all ranks have stays the same on all, bit by bit.
        assert all(r[1][name].tobytes() == ranks[0][1][name].tobytes() for r in ranks), name


class _Place:
    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


def test_ranks_that_do_not_divide_the_heads_are_refused():
    parameters.check_divisible(SHAPE, ParallelSection(tensor=4))
    with pytest.raises(ConfigError) as caught:
        parameters.check_divisible(SHAPE, ParallelSection(tensor=3))
    assert caught.value.where == "training.parallel.tensor"
    assert "divisor of 4 (n_heads" in caught.value.expected
