"""Messages that begin during the backward pass, and compressed ones, against plain sums."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from howdah.core.processes import LIMITS
from howdah.training.optim import messages_torch
from howdah.training.optim.gradients_torch import FlatGradients
from tests.support.training.threads_torch import in_threads

RANKS, WIDTH, WORDS = 3, 40, "words.weight"


class Net(torch.nn.Module):
    """Words and three layers."""

    def __init__(self, *, unused: bool = False) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(60, WIDTH)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(3))
        if unused:
            self.unused = torch.nn.Linear(WIDTH, 2)
        generator = torch.Generator().manual_seed(5)  # the global one belongs to all threads
        for parameter in self.parameters():
            torch.nn.init.normal_(parameter, std=0.1, generator=generator)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def ids_of(rank: int, micro: int) -> torch.Tensor:
    return torch.randint(0, 60, (7,), generator=torch.Generator().manual_seed(10 * rank + micro))


def summed(
    comm,
    *,
    micros: int,
    overlap: bool,
    sparse: bool,
    compression: str = "none",
    unused: bool = False,
) -> dict:
    """The gradients after a step, and what was complete in the net when each message began."""
    net = Net(unused=unused)
    named = dict(net.named_parameters())
    gradients = FlatGradients(named, words=WORDS)
    gradients.arrange(4, sparse_embeddings=sparse, compression=compression)
    gradients.zero_()
    first = net.layers[0].weight
    begun = []
    begin_sum, begin_exchange = comm.begin_sum, comm.begin_exchange
    comm.begin_sum = lambda n, x: begun.append((n, bool(first.grad.any()))) or begin_sum(n, x)
    comm.begin_exchange = lambda n, x: (
        begun.append((n, bool(first.grad.any()))) or begin_exchange(n, x)
    )
    every = [ids_of(comm.rank, micro) for micro in range(micros)]
    for number, ids in enumerate(every):
        if overlap and number == micros - 1:
            gradients.overlap(comm)
        net(ids).square().sum().backward()
    gradients.reduce_(comm, every)
    return {"sums": {name: p.grad.clone() for name, p in named.items()}, "begun": begun,
            "norm": gradients.norm(comm)}  # fmt: skip


def rounded(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16().float()


def local(rank: int, micros: int) -> dict[str, torch.Tensor]:
    net = Net()
    for micro in range(micros):
        net(ids_of(rank, micro)).square().sum().backward()
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad
        for name, p in net.named_parameters()
    }


@pytest.mark.parametrize("sparse", [False, True])
def test_messages_begin_in_one_order_while_the_backward_pass_computes(monkeypatch, sparse):
    """Whatever the order of its micro-batches; and the bits are those of sums after it."""
    monkeypatch.setenv(LIMITS, json.dumps({"overlap": True}))
    after, during = (
        in_threads(RANKS, lambda comm, o=o: summed(comm, micros=1, overlap=o, sparse=sparse))
        for o in (False, True)
    )
    for one, other in zip(after, during, strict=True):
        assert [number for number, _ in other["begun"]] == [0, 1, 2, 3][: len(other["begun"])]
        assert not other["begun"][0][1]  # the first layer's gradient comes later
        assert all(complete for _, complete in one["begun"])
        assert one["norm"] == other["norm"]
        for name in one["sums"]:
            assert torch.equal(one["sums"][name], other["sums"][name]), name


def test_only_the_last_micro_batch_sends(monkeypatch):
    monkeypatch.setenv(LIMITS, json.dumps({"overlap": True}))
    ranks = in_threads(
        2, lambda comm: summed(comm, micros=3 - comm.rank, overlap=True, sparse=True)
    )
    sums = [local(0, 3), local(1, 2)]
    for one in ranks:
        assert len({number for number, _ in one["begun"]}) == len(one["begun"])
        for name, total in one["sums"].items():
            np.testing.assert_allclose(total, sums[0][name] + sums[1][name], rtol=1e-5, atol=1e-6)


def test_a_parameter_that_no_row_uses_is_summed_too(monkeypatch):
    monkeypatch.setenv(LIMITS, json.dumps({"overlap": True}))
    ranks = in_threads(
        2, lambda comm: summed(comm, micros=1, overlap=True, sparse=False, unused=True)
    )
    for name, total in local(0, 1).items():
        np.testing.assert_allclose(ranks[0]["sums"][name], total + local(1, 1)[name], rtol=1e-5)
    assert not ranks[0]["sums"]["unused.weight"].any()


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_bf16_is_added_in_float32_and_equal_on_all_ranks(monkeypatch, overlap, sparse):
    monkeypatch.setattr(messages_torch, "COMPRESSED_FROM", 100)
    monkeypatch.setenv(LIMITS, json.dumps({"overlap": overlap}))
    ranks = in_threads(
        RANKS,
        lambda comm: summed(comm, micros=1, overlap=overlap, sparse=sparse, compression="bf16"),
    )
    gradients = [local(rank, 1) for rank in range(RANKS)]
    for name in ("layers.1.weight", "layers.2.bias", WORDS):
        parts = [one[name] for one in gradients]
        exact = sum(parts)
        total = ranks[0]["sums"][name]
        assert all(torch.equal(one["sums"][name], total) for one in ranks)
        # Two roundings to 8 bits of mantissa, of addends and of the sum.
        bound = 2**-8 * (sum(part.abs() for part in parts) + exact.abs()) + 1e-6
        assert bool(((total - exact).abs() <= bound).all())
        assert not torch.equal(total, exact)
    if sparse:  # rows are rounded once, and added in float32
        table = sum(rounded(one[WORDS]) for one in gradients)
        assert torch.equal(ranks[0]["sums"][WORDS], table)


def test_bf16_of_a_number_that_is_none_stays_none(monkeypatch):
    """So that a step with it changes no weight."""
    monkeypatch.setattr(messages_torch, "COMPRESSED_FROM", 1)

    def rank(comm):
        flat = torch.ones(11)
        flat[4] = float("nan") if comm.rank == 1 else 1.0
        flat[5] = float("inf") if comm.rank == 0 else 1.0
        spans = {0: (0, 6), 1: (6, 11)}
        messages_torch.Messages(flat, [(0, 6), (6, 11)], spans, "bf16").reduce_(comm)
        return flat

    for flat in in_threads(RANKS, rank):
        assert torch.isnan(flat[4]) and torch.isinf(flat[5])
        assert flat[[0, 3, 6, 10]].tolist() == [3.0] * 4
