"""A rank of a peer on a network: `python -m bench.benches.network.peers KIND JOB.json OUT.json`.

KIND: ddp, ddp-bf16, ddp-powersgd (torch's own communication hooks), horovod, horovod-fp16 (its
DistributedOptimizer). RANK and WORLD_SIZE, or Horovod's variables, are the caller's.
"""

from __future__ import annotations

import json
import os
import sys

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bench.peers import plain_torch


def hooked(net: DistributedDataParallel, kind: str) -> DistributedDataParallel:
    """The model with DDP's hook of this kind."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    if kind == "ddp-bf16":
        net.register_comm_hook(None, default_hooks.bf16_compress_hook)
    if kind == "ddp-powersgd":
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=1, start_powerSGD_iter=2
        )
        net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return net


def ddp(kind: str, job: plain_torch.Job) -> list[float]:
    """Seconds of each step with DDP over gloo."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # PowerSGD sums a bucket in three steps. Over gloo those of several buckets mix, in another
    # order on each rank, and the world breaks.
    buckets = {"bucket_cap_mb": 4_000} if kind == "ddp-powersgd" else {}
    dist.init_process_group("gloo", rank=rank, world_size=world)
    seconds = plain_torch.train(
        job, rank, world,
        wrap=lambda net, optimizer: (
            hooked(DistributedDataParallel(net, **buckets), kind), optimizer
        ),
    )  # fmt: skip
    dist.destroy_process_group()
    return seconds


def horovod(kind: str, job: plain_torch.Job) -> list[float]:
    """Seconds of each step with Horovod's optimizer."""
    import horovod.torch as hvd

    from bench.peers import horovod_optimizer

    hvd.init()
    compression = hvd.Compression.fp16 if kind.endswith("fp16") else hvd.Compression.none

    def wrap(net, optimizer):
        hvd.broadcast_parameters(net.state_dict(), root_rank=0)
        named = net.named_parameters()
        return net, hvd.DistributedOptimizer(
            optimizer, named_parameters=named, compression=compression
        )

    return plain_torch.train(
        job, hvd.rank(), hvd.size(), wrap=wrap, update=horovod_optimizer.update
    )


def main() -> None:
    """Train as one rank; rank 0 writes the seconds of each step."""
    kind, job_path, out = sys.argv[1:]
    with open(job_path, encoding="utf-8") as file:
        job = plain_torch.Job(**json.load(file))
    seconds = (ddp if kind.startswith("ddp") else horovod)(kind, job)
    if os.environ.get("RANK", os.environ.get("HOROVOD_RANK")) == "0":
        with open(out, "w", encoding="utf-8") as file:
            json.dump(seconds, file)


if __name__ == "__main__":
    main()
