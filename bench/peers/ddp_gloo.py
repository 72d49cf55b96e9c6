"""Plain torch DDP over gloo on the rows of a dataset of ours: the peer of the np=2 benches.

    torchrun is not needed: `python -m bench.peers.ddp_gloo --world 2 ...` starts its ranks itself.
Prints one JSON line: seconds of each timed step on rank 0.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from bench.peers import plain_torch


def _rank(rank: int, world: int, meet: str, job: plain_torch.Job) -> None:
    if world > 1:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=world)

    def wrap(net, optimizer):
        return (DistributedDataParallel(net) if world > 1 else net), optimizer

    seconds = plain_torch.train(job, rank, world, wrap=wrap)
    if rank == 0:
        print(json.dumps(seconds))
        sys.stdout.flush()


def main() -> None:
    """Start the ranks."""
    parser = argparse.ArgumentParser()
    for name, kind in (("dataset", str), ("base", str), ("meet", str), ("world", int),
                       ("steps", int), ("batch", int), ("threads", int)):  # fmt: skip
        parser.add_argument(f"--{name}", type=kind, required=True)
    parser.add_argument("--out", default=None, help="folder for the steps' times")
    options = vars(parser.parse_args())
    world, meet = options.pop("world"), options.pop("meet")
    job = plain_torch.Job(**options)
    if world == 1:
        _rank(0, 1, meet, job)
    else:
        mp.spawn(_rank, args=(world, meet, job), nprocs=world)


if __name__ == "__main__":
    main()
