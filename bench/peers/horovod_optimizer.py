"""A plain script of Horovod: `horovodrun -np 2 python -m ...horovod_optimizer JOB.json`."""

from __future__ import annotations

import json
import sys

import horovod.torch as hvd

from bench.peers import plain_torch


def wrap(net, optimizer):
    """Broadcast the start, sum gradients as they come."""
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    return net, hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters())


def update(net, optimizer) -> None:
    """Clipping wants the sums first."""
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        plain_torch.update(net, optimizer)


def main() -> None:
    """Train as one rank."""
    with open(sys.argv[1], encoding="utf-8") as file:
        job = plain_torch.Job(**json.load(file))
    hvd.init()
    plain_torch.train(job, hvd.rank(), hvd.size(), wrap=wrap, update=update)


if __name__ == "__main__":
    main()
