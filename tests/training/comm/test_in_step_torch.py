"""Batches of ranks that enter each pass together; the ranks are threads here."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from howdah.config.model import ModelSection
from howdah.config.training import TrainingSection
from howdah.data.splits.planner import Rows
from howdah.models.forward import forward_torch
from howdah.models.weights.pretrained import load_base
from howdah.training.comm.base import Comm
from howdah.training.comm.in_step import InStep, steps_in_step
from howdah.training.data.readers import Batch
from tests.support.training.threads_torch import in_threads
from tools.demo.images import write_vit


def batch(step: int, micro: int, micros: int) -> Batch:
    ids_BT = np.full((3, 5), step + 1, np.int32)
    return Batch(
        ids_BT=ids_BT, mask_BT=np.zeros_like(ids_BT), labels_B=np.ones(3, np.int32),
        weights_B=np.ones(3, np.float32), global_weight=6.0, epoch=0, step=step, micro=micro,
        micros=micros, real_tokens=15, padded_tokens=15, shards=None,
        rows=Rows(
            shard=np.ones(3, np.int32), row=np.ones(3, np.int64),
            length=np.ones(3, np.int32), real=np.ones(3, bool),
        ),
    )  # fmt: skip


def source(micros: list[int]) -> list[Batch]:
    """The micro-batches of one rank, so many in each step."""
    return [batch(step, n, count) for step, count in enumerate(micros) for n in range(count)]


def test_each_step_has_the_micro_batches_of_the_rank_that_has_most():
    per_rank = ([1, 3, 2], [2, 1, 2], [1, 1, 1])
    batches_of_ranks = in_threads(
        3, lambda comm: list(steps_in_step(source(per_rank[comm.rank]), comm))
    )
    for rank, batches in enumerate(batches_of_ranks):
        assert [(b.step, b.micro, b.last_of_step) for b in batches] == [
            (0, 0, False), (0, 1, True), (1, 0, False), (1, 1, False), (1, 2, True),
            (2, 0, False), (2, 1, True),
        ]  # fmt: skip
        real = [b for b in batches if b.weights_B.any()]
        assert [sum(b.step == step for b in real) for step in range(3)] == per_rank[rank]
        for filler in (b for b in batches if not b.weights_B.any()):
            assert filler.ids_BT.shape == filler.mask_BT.shape == (1, 1)
            assert filler.mask_BT.all()  # a row without any token has no softmax
            assert (filler.real_tokens, filler.rows.real.sum()) == (0, 0)


def images(micro: int, micros: int) -> Batch:
    """Three images of 16 x 16 in patches of 8: 4 tokens and the class's."""
    one = batch(0, micro, micros)
    pixels_BN = np.full((3, 16 * 16 * 3), 200, np.uint8)
    return replace(one, ids_BT=pixels_BN, mask_BT=np.ones((3, 5), np.int32))


def test_a_filler_of_images_is_one_that_the_model_computes(tmp_path):
    write_vit(str(tmp_path), side=16, patch=8, width=32, layers=1)
    base = load_base(str(tmp_path), label_names=["a", "b"])
    net = forward_torch.build(
        base.config, base.weights, num_labels=2, training=TrainingSection(framework="torch"),
        model=ModelSection(),
    )  # fmt: skip

    def training_and_evaluation(comm: Comm) -> list[Batch]:
        micros = 1 + comm.rank
        mine = [images(number, micros) for number in range(micros)]
        return [*steps_in_step(mine, comm), *InStep(mine, comm, lambda: False)]

    short, long = in_threads(2, training_and_evaluation)
    assert all(one.weights_B.any() for one in long)
    fillers = [one for one in short if not one.weights_B.any()]
    assert len(fillers) == 2
    for one in fillers:
        pixels, mask = forward_torch.on_device(one.ids_BT, "cpu"), torch.from_numpy(one.mask_BT)
        logits = net(pixels, mask)
        assert logits.shape == (1, 2) and bool(logits.isfinite().all())
        assert (one.mask_BT.shape, one.real_tokens, one.padded_tokens) == ((1, 5), 0, 5)


def test_an_evaluation_goes_on_until_no_rank_has_more():
    counts = (4, 1, 2)

    def rank(comm: Comm) -> tuple[list[bool], bool]:
        batches = InStep(source([1] * counts[comm.rank]), comm, lambda: False)
        return [bool(one.weights_B.any()) for one in batches], batches.stopped

    for rank_number, (real, stopped) in enumerate(in_threads(3, rank)):
        assert real == [number < counts[rank_number] for number in range(4)]
        assert not stopped


@pytest.mark.parametrize("stopping", [0, 2])
def test_all_ranks_stop_at_the_same_batch(stopping):
    """Whichever was asked, and though one of them has no batch of its own any more."""

    def rank(comm: Comm) -> tuple[int, bool]:
        seen: list[Batch] = []
        stop = lambda: comm.rank == stopping and len(seen) == 2  # noqa: E731
        batches = InStep(source([1] * (5 if comm.rank else 1)), comm, stop)
        for one in batches:
            seen.append(one)
        return len(seen), batches.stopped

    assert in_threads(3, rank) == [(2, True)] * 3
