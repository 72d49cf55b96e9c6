"""Batches of ranks that enter each pass together; the ranks are threads here."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.threads_torch import in_threads
from training.comm.base import Comm
from training.comm.in_step import InStep, steps_in_step
from training.data.planner import Rows
from training.data.readers import Batch


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
    found = in_threads(3, lambda comm: list(steps_in_step(source(per_rank[comm.rank]), comm)))
    for rank, batches in enumerate(found):
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


def test_an_evaluation_goes_on_until_no_rank_has_more():
    counts = (4, 1, 2)

    def rank(comm: Comm) -> tuple[list[bool], bool]:
        batches = InStep(source([1] * counts[comm.rank]), comm, lambda: False)
        return [bool(one.weights_B.any()) for one in batches], batches.stopped

    for rank_number, (real, stopped) in enumerate(in_threads(3, rank)):
        assert real == [number < counts[rank_number] for number in range(4)]
        assert not stopped


@pytest.mark.parametrize("asked", [0, 2])
def test_all_ranks_stop_at_the_same_batch(asked):
    """Whichever was asked, and though one of them has no batch of its own any more."""

    def rank(comm: Comm) -> tuple[int, bool]:
        seen: list[Batch] = []
        stop = lambda: comm.rank == asked and len(seen) == 2  # noqa: E731
        batches = InStep(source([1] * (5 if comm.rank else 1)), comm, stop)
        for one in batches:
            seen.append(one)
        return len(seen), batches.stopped

    assert in_threads(3, rank) == [(2, True)] * 3
