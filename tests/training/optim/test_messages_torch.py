"""Messages that begin during the backward pass, and compressed ones, against plain sums."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
import torch

from howdah.core.processes import LIMITS
from howdah.training.comm.base import Ended
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
    whole: bool = True,
) -> dict:
    """The gradients after a step, and what was complete in the net when each message began."""
    net = Net(unused=unused)
    named = dict(net.named_parameters())
    gradients = FlatGradients(named, words=WORDS)
    gradients.arrange(4, sparse_embeddings=sparse, compression=compression)
    gradients.zero_()
    first = net.layers[0].weight
    begun, gathered = [], []
    begin_sum, begin_exchange = comm.begin_sum, comm.begin_exchange
    begin_gather = comm.begin_gather
    comm.begin_gather = lambda n, x: (
        gathered.append((n, bool(first.grad.any()))) or begin_gather(n, x)
    )
    comm.begin_sum = lambda n, x: begun.append((n, bool(first.grad.any()))) or begin_sum(n, x)
    comm.begin_exchange = lambda n, x: (
        begun.append((n, bool(first.grad.any()))) or begin_exchange(n, x)
    )
    every = [ids_of(comm.rank, micro) for micro in range(micros)]
    for number, ids in enumerate(every):
        if overlap and number == micros - 1:
            gradients.overlap(comm, whole=whole)
        net(ids).square().sum().backward()
    gradients.reduce_(comm, every, whole=whole)
    return {"sums": {name: p.grad.clone() for name, p in named.items()}, "begun": begun,
            "gathered": gathered, "norm": gradients.norm(comm)}  # fmt: skip


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


@pytest.mark.parametrize("compression", ["bf16", "int8"])
def test_a_second_leg_begins_when_the_first_has_ended(monkeypatch, compression):
    """Also during the backward pass, and in one order; what ends late is waited for."""
    monkeypatch.setattr(messages_torch, "COMPRESSED_FROM", 100)
    monkeypatch.setenv(LIMITS, json.dumps({"overlap": True}))
    run = partial(summed, micros=1, overlap=True, sparse=True, compression=compression, whole=False)
    early = in_threads(RANKS, run)
    monkeypatch.setattr(Ended, "ended", lambda _: False)
    late = in_threads(RANKS, run)
    for one, other in zip(early, late, strict=True):
        assert [number for number, _ in one["gathered"]] == [0, 2, 3]  # 1 is sent as it is
        assert not one["gathered"][0][1]  # the first layer's gradient comes later
        assert all(complete for _, complete in other["gathered"])
        for name in one["sums"]:
            assert torch.equal(one["sums"][name], other["sums"][name]), name


@pytest.mark.parametrize("each", [1, 2])
def test_bf16_in_two_levels_rounds_the_sum_of_a_node(monkeypatch, each):
    monkeypatch.setattr(messages_torch, "COMPRESSED_FROM", 100)
    ranks = in_threads(
        4, lambda comm: summed(comm, micros=1, overlap=False, sparse=False, compression="bf16"),
        each=each,
    )  # fmt: skip
    exact = {name: sum(local(rank, 1)[name] for rank in range(4)) for name in local(0, 1)}
    for name, total in ranks[0]["sums"].items():
        assert all(torch.equal(one["sums"][name], total) for one in ranks)
        np.testing.assert_allclose(total, exact[name], atol=2**-6 * float(exact[name].abs().max()))
        assert not torch.equal(total, exact[name])


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
    """A step with it changes no weight."""
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


# --------------------------------------------------------------------------------------- int8
def int8_steps(comm, values, *, whole_at: int, size: int = 1000) -> list[torch.Tensor]:
    """The sums of some steps, each of `values(rank, step)`; one of them sends the whole."""
    flat, sums = torch.zeros(size), []
    cut = 5 * size // 8  # parts of ranks end within a block, and the last is filled up
    messages = messages_torch.Messages(flat, [(0, cut), (cut, size)], {0: (0, size)}, "int8")
    for step in range(whole_at + 1):
        flat.copy_(values(comm.rank, step))
        messages.reduce_(comm, whole=step == whole_at)
        sums.append(flat.clone())
    assert all(message.held_NL is None for message in messages._messages)
    return sums


def noise(rank: int, step: int) -> torch.Tensor:
    return torch.randn(1000, generator=torch.Generator().manual_seed(100 * step + rank))


@pytest.mark.parametrize(("count", "each"), [(3, 3), (3, 1), (4, 2), (6, 2), (6, 3)])
def test_int8_holds_back_what_it_rounds_off_until_a_step_sends_the_whole(monkeypatch, count, each):
    """The world has one level, or several nodes with several ranks each."""
    monkeypatch.setattr(messages_torch, "COMPRESSED_FROM", 100)
    steps = 6
    ranks = in_threads(count, lambda comm: int8_steps(comm, noise, whole_at=steps), each=each)
    exact = [sum(noise(rank, step) for rank in range(count)) for step in range(steps + 1)]
    for step in range(steps):
        total = ranks[0][step]
        assert all(torch.equal(one[step], total) for one in ranks)
        # Each rank's rounding of this step and of the one before, and the sum's.
        assert 0 < (total - exact[step]).abs().max() < 4 * (count + 1) * 4 / 127
    # Nothing is lost: all that was sent is all that there was.
    np.testing.assert_allclose(sum(ranks[0]), sum(exact), atol=2e-5)


def test_int8_loses_no_number_below_its_smallest_step(monkeypatch):
    """A thousandth of the block's largest number: without feedback it would be 0 in each step."""
    monkeypatch.setattr(messages_torch, "COMPRESSED_FROM", 100)

    def values(rank: int, step: int) -> torch.Tensor:
        flat = torch.full((1000,), 1e-3)
        flat[::100] = 1.0
        return flat

    sums = in_threads(2, lambda comm: int8_steps(comm, values, whole_at=40))[0][:40]
    assert sums[0][1] == 0.0
    np.testing.assert_allclose(sum(sums)[1], 40 * 2e-3, atol=2 / 127)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_int8_is_equal_on_all_ranks_and_rows_stay_bf16(monkeypatch, overlap, sparse):
    monkeypatch.setattr(messages_torch, "COMPRESSED_FROM", 100)
    monkeypatch.setenv(LIMITS, json.dumps({"overlap": overlap}))
    ranks = in_threads(
        RANKS,
        lambda comm: summed(
            comm, micros=1, overlap=overlap, sparse=sparse, compression="int8", whole=False
        ),
    )
    gradients = [local(rank, 1) for rank in range(RANKS)]
    for name in ("layers.1.weight", "layers.2.bias", WORDS):
        total = ranks[0]["sums"][name]
        assert all(torch.equal(one["sums"][name], total) for one in ranks)
        exact = sum(one[name] for one in gradients)
        assert not torch.equal(total, exact)
        largest = max(float(one.abs().max()) for each in gradients for one in each.values())
        assert (total - exact).abs().max() < 4 * RANKS * largest / 127
    if sparse:
        assert torch.equal(ranks[0]["sums"][WORDS], sum(rounded(one[WORDS]) for one in gradients))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_int8_of_a_number_that_is_none_stays_none_and_is_not_held_back(monkeypatch, bad):
    monkeypatch.setattr(messages_torch, "COMPRESSED_FROM", 100)
    monkeypatch.setenv(LIMITS, json.dumps({"overlap": True}))

    def rank(comm):
        net = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        gradients = FlatGradients({"weight": net.weight}, words=WORDS)
        gradients.arrange(None, sparse_embeddings=False, compression="int8")
        norms = []
        for step in range(3):
            gradients.flat.fill_(1.0)
            if step == 1 and comm.rank == 1:
                gradients.flat[5] = bad
            gradients.reduce_(comm, [], whole=False)
            norms.append(gradients.norm(comm))
        return norms

    for first, second, third in in_threads(RANKS, rank):
        assert not np.isfinite(second)
        assert first == pytest.approx(RANKS * WIDTH, rel=0.02)
        assert third == pytest.approx(RANKS * WIDTH, rel=0.02)
