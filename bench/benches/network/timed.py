"""A simulation: sums of DistilBERT-base's gradients beside a compute that sleeps.

Six layers whose forward and backward passes sleep for a GPU's time, a third and two thirds of it,
so that a layer's gradients are ready when its sleep ends; then they are reduced by this machine's
processors and the cut link. What is shown is what a reduction hides and what it adds.

    python -m bench.benches.network.timed KIND SECONDS OUT.json      (one rank)
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time

import torch

from bench import harness
from howdah.core.processes import LIMITS
from tests.runs.network.shaped_hosts import ShapedHosts

LAYERS, WIDTH, VOCABULARY, TOUCHED = 6, 768, 30_522, 2_000
SHAPES = ((WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH), *((WIDTH, WIDTH),) * 4)
LINKS = os.environ.get("BENCH_TIMED_LINKS", "1gbit 10gbit").split()
WORLDS = os.environ.get("BENCH_TIMED_RANKS", "2 4").split()
"""Ranks, each on its own host; "2x4": two hosts with four each."""
SECONDS = float(os.environ.get("BENCH_TIMED_SECONDS", "0.1"))
STEPS, WARM = 8, 3
KINDS = os.environ.get("BENCH_TIMED_KINDS", "ddp ddp-bf16 after none bf16 int8").split()
"""DDP and its hook; ours: float32 after the backward pass, during it, in bf16 and in int8; with
several ranks a host also bf16-flat and int8-flat: all of them exchange, in one level."""


class Timed(torch.autograd.Function):
    """A layer that sleeps; its gradients are there before."""

    @staticmethod
    def forward(ctx, x, seconds, *weights):
        """Sleep for the forward pass."""
        ctx.seconds, ctx.weights = seconds, weights
        time.sleep(seconds / 3)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        """Sleep for the backward pass."""
        time.sleep(2 * ctx.seconds / 3)
        return gradient, None, *ctx.weights


class Net(torch.nn.Module):
    """The word embeddings and the layers."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.words = torch.nn.Parameter(1e-3 * torch.randn(VOCABULARY, WIDTH))
        self.layers = torch.nn.ModuleList(
            torch.nn.ParameterList(torch.randn(shape) for shape in SHAPES) for _ in range(LAYERS)
        )
        self._each = seconds / LAYERS

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Sleep through all layers."""
        x = Timed.apply(x, 0.0, self.words)
        for layer in self.layers:
            x = Timed.apply(x, self._each, *layer)
        return x


def ours(net: Net) -> list[float]:
    """Seconds of each step with Howdah's gradients over torch.distributed."""
    from howdah.training.comm import backends
    from howdah.training.optim.gradients_torch import FlatGradients

    comm = backends.init("torch", choice="torch")
    gradients = FlatGradients(dict(net.named_parameters()), words="words")
    numbers = sys.argv[1].partition("-")[0]
    compression = numbers if numbers in ("bf16", "int8") else "none"
    gradients.arrange(None, sparse_embeddings=True, compression=compression)
    ids = [torch.randperm(VOCABULARY)[:TOUCHED]]

    def step() -> None:
        gradients.overlap(comm, whole=False)
        net(torch.ones(1, requires_grad=True)).sum().backward()
        gradients.reduce_(comm, ids, whole=False)

    seconds = [_timed(step) for _ in range(WARM + STEPS)]
    comm.shutdown()
    return seconds


def ddp(net: Net) -> list[float]:
    """Seconds of each step with DDP over gloo."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from bench.benches.network.peers import hooked

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", rank=rank, world_size=world)
    wrapped = hooked(DistributedDataParallel(net), sys.argv[1])
    seconds = [
        _timed(lambda: wrapped(torch.ones(1, requires_grad=True)).sum().backward())
        for _ in range(WARM + STEPS)
    ]
    dist.destroy_process_group()
    return seconds


def _timed(step) -> float:
    begun = time.perf_counter()
    step()
    return time.perf_counter() - begun


def rows() -> list[harness.Row]:
    """Added ms of a step of each kind, beside DDP's; the efficiency is a note."""
    from bench.benches.network import Network

    comparisons = []
    for world in WORLDS:
        for link in LINKS:
            count, _, each = world.partition("x")
            with tempfile.TemporaryDirectory() as folder, ShapedHosts(int(count), link) as hosts:
                network, added = Network(None, hosts, int(each or 1)), {}
                for kind in KINDS:
                    out = f"{folder}/{kind}.json"
                    network.run(["bench.benches.network.timed", kind, str(SECONDS), out],
                                of_torch=True)  # fmt: skip
                    with open(out, encoding="utf-8") as file:
                        step = statistics.median(json.load(file)[WARM:])
                    added[kind] = 1000 * (step - SECONDS)
                    print(
                        f"simulated compute of {1000 * SECONDS:.0f} ms, {world} ranks, {link},"
                        f" {kind}: {SECONDS / step:.0%} of the step, which adds"
                        f" {added[kind]:,.0f} ms",
                        file=sys.stderr,
                    )
            for kind in KINDS:
                peer = "ddp-bf16" if kind[:4] in ("bf16", "int8") else "ddp"
                if kind.startswith("ddp") or peer not in KINDS:
                    continue
                comparisons.append(harness.Row(
                    what=f"simulated compute, {world} ranks, {link}: a step adds, {kind}",
                    unit="ms", peer=peer, peer_values=[added[peer]], our_values=[added[kind]],
                    lower_is_better=True,
                    notes={"efficiency": SECONDS / (SECONDS + added[kind] / 1000)},
                ))  # fmt: skip
    return comparisons


def main() -> None:
    """One rank; rank 0 writes the seconds of each step."""
    torch.set_num_threads(1)
    torch.manual_seed(int(os.environ["RANK"]))
    if sys.argv[1] == "after":
        os.environ[LIMITS] = json.dumps({"overlap": False})
    if sys.argv[1].endswith("-flat"):
        os.environ[LIMITS] = json.dumps({"levels": False})
    net = Net(float(sys.argv[2]))
    seconds = (ddp if sys.argv[1].startswith("ddp") else ours)(net)
    if os.environ["RANK"] == "0":
        with open(sys.argv[3], "w", encoding="utf-8") as file:
            json.dump(seconds, file)


if __name__ == "__main__":
    main()
