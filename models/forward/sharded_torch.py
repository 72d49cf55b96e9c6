"""A model whose parameters are divided among the ranks by FSDP2 (training.parallel.shard: full).

Each rank keeps its rows of every parameter. FSDP2 gathers a module's parameters when it computes,
and sums its gradients on the ranks that keep the rows. For the consequences see
docs/decisions/sharding.md.

Source: torch.distributed.fsdp.fully_shard; Zhao et al., "PyTorch FSDP" (2023).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.distributed.device_mesh import DeviceMesh


def shard(net: torch.nn.Module, parts: Iterable[str], mesh: DeviceMesh, device: str) -> None:
    """Divide a model's parameters among the ranks of a mesh; their values are undefined afterwards.

    Args:
        net: a model on torch's device "meta", so that no rank needs memory for all of it.
        parts: names of the modules that are gathered one by one; the rest is gathered as one.
        mesh: a mesh of one dimension; all its ranks enter each forward and backward pass.
        device: torch's name of the device of the parts.
    """
    from torch.distributed.fsdp import fully_shard

    for name in parts:
        fully_shard(net.get_submodule(name.rstrip(".")), mesh=mesh)
    fully_shard(net, mesh=mesh)
    for module in net.modules():
        if hasattr(module, "set_gradient_divide_factor"):
            # The loss is already divided by the weight of all ranks' rows, so gradients are summed,
            # not averaged.
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)
    net.to_empty(device=device)
    net.divided = True


def part_of(parameter: torch.Tensor) -> tuple[torch.Tensor, slice]:
    """(this rank's memory of a parameter or its gradient, the rows of the whole that it holds)."""
    if not hasattr(parameter, "to_local"):
        return parameter.detach(), slice(None)
    mesh = parameter.device_mesh
    first, end = rows_of(parameter.shape[0], mesh.get_local_rank(), mesh.size())
    return parameter.detach().to_local(), slice(first, end)


def rows_of(rows: int, rank: int, world: int) -> tuple[int, int]:
    """(first, end) of the rows that a rank has, as FSDP2 divides them; it may have none.

    >>> [rows_of(5, rank, 4) for rank in range(4)]
    [(0, 2), (2, 4), (4, 5), (5, 5)]
    """
    each = -(-rows // world)
    return min(rank * each, rows), min((rank + 1) * each, rows)
