"""The stages of a model on ranks, which are threads here, against the whole model."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from howdah.config.model import TrainingSection
from howdah.models.forward import forward_torch
from howdah.training.comm.base import Comm
from howdah.training.model.pipeline_torch import Pipeline
from howdah.training.model.stages import Stage, order
from howdah.training.optim.staged_adamw_torch import StagedGradients
from tests.models.forward.test_split_torch import LABELS, NONE, SHAPE, weights
from tests.support.training.threads_torch import LIMIT, in_threads

DEEP = SHAPE | {"n_layers": 4}
WIDTHS = (7, 5, 5, 3, 2)
"""Tokens of each micro-batch: they differ."""


def batches() -> list[SimpleNamespace]:
    generator = np.random.default_rng(2)
    found = []
    for width in WIDTHS:
        ids_BT = generator.integers(0, 40, (2, width))
        found.append(SimpleNamespace(ids_BT=ids_BT, mask_BT=np.ones_like(ids_BT)))
    return found


def loss_of(logits_BC: torch.Tensor, batch: object) -> torch.Tensor:
    return logits_BC.square().sum()


def passes(comm: Comm | None) -> tuple[float, dict[str, np.ndarray], float, np.ndarray]:
    """(sum of the losses, gradients by name, their norm, logits) of a rank; None: of the whole."""
    count = 1 if comm is None else comm.size
    stage = Stage.of(0 if comm is None else comm.rank, count, DEEP["n_layers"])
    net = forward_torch.build(
        DEEP, weights(DEEP), num_labels=LABELS, training=TrainingSection(), model=NONE, stage=stage
    )
    named = dict(net.named_parameters())
    if comm is None:
        losses = [
            loss_of(net(torch.from_numpy(one.ids_BT), torch.from_numpy(one.mask_BT)), one)
            for one in batches()
        ]
        total = torch.stack(losses).sum()
        total.backward()
        grads = {n: p.grad.to_dense() if p.grad.is_sparse else p.grad for n, p in named.items()}
        norm = torch.stack([grad.norm() for grad in grads.values()]).norm()
        forward = forward_torch.forward_fn(net)
    else:
        words = net.family.word_embeddings
        gradients = StagedGradients(named, words=words, stages=comm)
        pipeline = Pipeline(net, comm, width=DEEP["dim"], classes=LABELS, device="cpu")
        total = pipeline.step(batches(), loss_of, lambda batch: None)
        grads = {name: parameter.grad for name, parameter in named.items()}
        norm = gradients.norm(comm)
        forward = forward_torch.forward_fn(net, pipeline=pipeline)
    logits_BC = forward(batches()[0].ids_BT, batches()[0].mask_BT)
    return total.item(), {n: g.numpy() for n, g in grads.items()}, float(norm), logits_BC


@pytest.mark.parametrize("size", [2, 3, 4])
def test_stages_compute_what_the_whole_model_does(size):
    loss, whole, norm, logits_BC = passes(None)
    ranks = in_threads(size, passes)
    assert [rank[0] for rank in ranks[:-1]] == [0.0] * (size - 1)
    assert ranks[-1][0] == pytest.approx(size * loss, rel=1e-5)
    held = [name for rank in ranks for name in rank[1]]
    assert sorted(held) == sorted(whole)  # each on one of them
    for _, grads, own_norm, own_logits_BC in ranks:
        assert own_norm == pytest.approx(norm, rel=1e-5)
        np.testing.assert_allclose(own_logits_BC, logits_BC, rtol=1e-4, atol=1e-5)
        for name, grad in grads.items():
            np.testing.assert_allclose(grad, whole[name], rtol=1e-3, atol=1e-3, err_msg=name)


class Unfinished:
    """How many messages of each rank are unfinished at a time, where finishing one waits until the
    other rank has it."""

    def __init__(self, size: int) -> None:
        self.most = [0] * size
        self._open = [0] * size
        self._received = collections.Counter()
        self._changed = threading.Condition()

    def watch(self, comm: Comm) -> None:
        sent, send, receive = collections.Counter(), comm.send, comm.receive

        def sending(message: torch.Tensor, to: int) -> Callable[[], None]:
            send(message, to)
            sent[to] += 1
            number, way = sent[to], (comm.rank, to)
            self._open[comm.rank] += 1
            self.most[comm.rank] = max(self.most[comm.rank], self._open[comm.rank])

            def finish() -> None:
                with self._changed:
                    there = self._changed.wait_for(lambda: self._received[way] >= number, LIMIT)
                assert there, f"rank {comm.rank} waits for ever"
                self._open[comm.rank] -= 1

            return finish

        def receiving(message: torch.Tensor, sender: int) -> None:
            receive(message, sender)
            with self._changed:
                self._received[sender, comm.rank] += 1
                self._changed.notify_all()

        comm.send, comm.receive = sending, receiving


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("micros", [1, 2, 3, 24])
def test_what_is_sent_is_not_kept_until_the_step_ends(size, micros):
    """Activations would need more memory for each micro-batch."""
    unfinished = Unfinished(size)

    def rank(comm: Comm) -> None:
        unfinished.watch(comm)
        stage = Stage.of(comm.rank, size, DEEP["n_layers"])
        net = forward_torch.build(
            DEEP, weights(DEEP), num_labels=LABELS, training=TrainingSection(), model=NONE,
            stage=stage,
        )  # fmt: skip
        pipeline = Pipeline(net, comm, width=DEEP["dim"], classes=LABELS, device="cpu")
        many = [batches()[number % len(WIDTHS)] for number in range(micros)]
        pipeline.step(many, loss_of, lambda batch: None)

    in_threads(size, rank)
    for number, most in enumerate(unfinished.most):
        assert most <= size - number + 2
    assert unfinished._open == [0] * size


@pytest.mark.parametrize("stages", range(1, 6))
@pytest.mark.parametrize("micros", range(1, 8))
def test_one_forward_one_backward(stages, micros):
    for number in range(stages):
        passes = order(Stage.of(number, stages, stages), micros)
        for kind in ("forward", "backward"):
            assert [n for k, n in passes if k == kind] == list(range(micros))
        kept = most = 0
        for kind, _ in passes:
            kept += 1 if kind == "forward" else -1
            most = max(most, kept)
            assert kept >= 0
        assert most == min(stages - number, micros)  # activations that are held at a time
