"""Flat gradients in torch, with a table of which few rows are touched, against plain sums."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from howdah.training.comm.base import Ended, SoloComm
from howdah.training.optim.gradients_torch import FlatGradients

WORD_EMBEDDINGS = "embeddings.weight"


class TwoRanks(SoloComm):
    """A world whose second rank has the same dense gradients, and its own rows."""

    size = 2

    def __init__(self, ids: list[int], width: int, *, within_node: bool = False) -> None:
        super().__init__()
        self._ids, self._values = torch.tensor(ids), torch.ones(len(ids), width)
        self.local_size = 2 if within_node else 1
        self.sent: list[int] = []
        """Elements of each message of the last reduction."""

    def begin_sum(self, number, message):
        self.sent.append(message.numel())
        return Ended(2 * message)

    def reduce_rows(self, ids_U, values_UD):
        return torch.cat([ids_U, self._ids]), torch.cat([values_UD, self._values])


@pytest.fixture
def named() -> dict[str, torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    shapes = {WORD_EMBEDDINGS: (50, 4), "classifier.weight": (3, 4), "classifier.bias": (3,)}
    return {
        name: torch.nn.Parameter(torch.randn(shape, generator=generator))
        for name, shape in shapes.items()
    }


def backward(named: dict[str, torch.nn.Parameter], ids: torch.Tensor) -> None:
    words = F.embedding(ids, named[WORD_EMBEDDINGS], sparse=True)
    out = F.linear(words, named["classifier.weight"], named["classifier.bias"])
    out.square().sum().backward()


def expected(named: dict[str, torch.nn.Parameter], batches: list[torch.Tensor]) -> dict:
    """The gradients by plain torch, summed over batches."""
    copies = {name: torch.nn.Parameter(p.detach().clone()) for name, p in named.items()}
    for ids in batches:
        words = copies[WORD_EMBEDDINGS][ids]
        out = F.linear(words, copies["classifier.weight"], copies["classifier.bias"])
        out.square().sum().backward()
    return {name: p.grad.numpy() for name, p in copies.items()}


def check(named: dict, gradients: FlatGradients, sums: dict[str, np.ndarray]) -> None:
    for name, array in sums.items():
        np.testing.assert_allclose(named[name].grad.numpy(), array, rtol=1e-5, atol=1e-6)
    norm = np.sqrt(sum((array.astype(np.float64) ** 2).sum() for array in sums.values()))
    assert gradients.norm(SoloComm()) == pytest.approx(norm, rel=1e-5)


STEPS = [[[1, 7, 7, 49], [2, 7]], [[3, 1]], [[40]]]
"""Ids of the micro-batches of three steps: some rows recur, others do not."""


@pytest.mark.parametrize("sparse", [False, True])
def test_one_rank_accumulates_scales_and_zeroes(named, sparse):
    gradients = FlatGradients(named, words=WORD_EMBEDDINGS)
    gradients.arrange(None, sparse_embeddings=sparse)
    gradients.zero_()
    for step in STEPS:
        batches = [torch.tensor(ids) for ids in step]
        for ids in batches:
            backward(named, ids)
        gradients.reduce_(SoloComm(), batches)
        sums = expected(named, batches)
        check(named, gradients, sums)
        gradients.scale_(0.25)
        check(named, gradients, {name: 0.25 * array for name, array in sums.items()})
        gradients.zero_()
        assert not any(p.grad.any() for p in named.values())


def test_rows_of_two_ranks(named):
    gradients = FlatGradients(named, words=WORD_EMBEDDINGS)
    gradients.arrange(None, sparse_embeddings=True)
    gradients.zero_()
    theirs = [7, 30]
    for step in STEPS:
        batches = [torch.tensor(ids) for ids in step]
        for ids in batches:
            backward(named, ids)
        gradients.reduce_(TwoRanks(theirs, 4), batches)
        sums = expected(named, batches)
        sums = {n: a if n == WORD_EMBEDDINGS else 2 * a for n, a in sums.items()}
        sums[WORD_EMBEDDINGS][theirs] += 1
        check(named, gradients, sums)
        gradients.zero_()
        assert not any(p.grad.any() for p in named.values())


@pytest.mark.parametrize(
    ("groups", "within_node", "sent"),
    [(None, False, [215]), (None, True, [64, 64, 64, 23]), (2, True, [200, 15])],
)
def test_within_a_node_messages_are_small_unless_their_number_is_given(
    named, monkeypatch, groups, within_node, sent
):
    monkeypatch.setattr("howdah.training.optim.gradients_torch.NODE_MESSAGE", 64)
    named = dict(reversed(named.items()))  # the table is the last tensor in any case
    gradients = FlatGradients(named, words=WORD_EMBEDDINGS)
    gradients.arrange(groups, sparse_embeddings=False)
    gradients.zero_()
    batches = [torch.tensor([1, 7, 49])]
    backward(named, batches[0])
    comm = TwoRanks([], 4, within_node=within_node)
    gradients.reduce_(comm, batches)
    assert sorted(comm.sent) == sorted(sent)
    check(named, gradients, {name: 2 * array for name, array in expected(named, batches).items()})


@pytest.mark.parametrize(("ranks", "lengths"), [(2, [2**20] * 4), (4, [2**21] * 2)])
def test_messages_of_a_small_world_are_short(ranks, lengths):
    class World(TwoRanks):
        size, local_size = ranks, 1

    named = {str(n): torch.nn.Parameter(torch.zeros(2**19)) for n in range(8)}
    slices = FlatGradients(named, words=WORD_EMBEDDINGS)._slices(World([], 4))
    assert [end - start for start, end in slices] == lengths


def test_a_step_that_was_not_finished_leaves_no_gradient(named):
    gradients = FlatGradients(named, words=WORD_EMBEDDINGS)
    gradients.arrange(None, sparse_embeddings=True)
    gradients.zero_()
    backward(named, torch.tensor([5, 6]))
    gradients.reduce_(SoloComm(), [torch.tensor([5, 6])])
    backward(named, torch.tensor([8]))  # of a step that was never finished
    gradients.arrange(None, sparse_embeddings=True)
    gradients.zero_()
    assert not any(p.grad.any() for p in named.values())


def test_with_frozen_word_embeddings_the_norm_is_of_the_other_gradients(named):
    del named[WORD_EMBEDDINGS]
    gradients = FlatGradients(named, words=WORD_EMBEDDINGS)
    gradients.zero_()
    for parameter in named.values():
        parameter.grad.fill_(2.0)
    gradients.reduce_(SoloComm(), [torch.tensor([1])])
    assert gradients.norm(SoloComm()) == pytest.approx(2.0 * np.sqrt(15))
    gradients.zero_()
    assert gradients.norm(SoloComm()) == 0.0


@pytest.mark.parametrize("backwards", [False, True])
def test_rows_of_many_ranks_are_added_in_the_order_of_the_ranks(named, monkeypatch, backwards):
    # In float32 (1 + 2**25) - 2**25 is 0, and (-2**25 + 2**25) + 1 is 1: the order shows.
    addends = [1.0, 2.0**25, -(2.0**25)]
    ids = torch.tensor([3, 7, 1, 7, 9, 7])  # of three ranks: 3 7, 1 7 9 and 7
    values = torch.zeros(6, 4)
    values[[1, 3, 5]] = torch.tensor(addends)[:, None]
    comm = TwoRanks([], 4)
    comm.reduce_rows = lambda ids_and_rows, rows: (ids, values)
    plain = torch.Tensor.index_add_
    if backwards:  # simulates a device that adds a call's rows in an arbitrary order
        monkeypatch.setattr(
            torch.Tensor,
            "index_add_",
            lambda table, dim, index, source: plain(table, dim, index.flip(0), source.flip(0)),
        )
    gradients = FlatGradients(named, words=WORD_EMBEDDINGS)
    gradients.arrange(None, sparse_embeddings=True)
    gradients.zero_()
    gradients.reduce_(comm, [torch.tensor([0])])
    table = named[WORD_EMBEDDINGS].grad
    assert table[7].tolist() == [0.0] * 4
    assert torch.equal(gradients._touched, torch.tensor([1, 3, 7, 9]))
