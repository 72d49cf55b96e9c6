"""The numbers that gradients are sent in: bf16, or 8 bits with a scale for each block. In torch.

A block has BLOCK neighbouring numbers, each a whole multiple, -127 to 127, of the block's scale,
which is the block's largest number / 127 in bf16: 1 + 2 / BLOCK bytes a number. Numbers of a larger
block share a scale with more outliers, and are rounded more
(docs/decisions/gradients-on-the-network.md).
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

from howdah.training.comm.base import BLOCK, LEAST_SCALE, SCALE_OF_ONE, wire_bytes

_AT_ONCE = 2**18
"""Numbers that a processor works on at a time: they stay in its cache, and the calls count little.
2**16 take half as long again."""


def to_bf16(values: torch.Tensor) -> torch.Tensor:
    """float32 [..., n] in bf16, as uint8 [..., 2 n]."""
    return values.to(torch.bfloat16).view(torch.uint8)


def from_bf16(sent: torch.Tensor) -> torch.Tensor:
    """What `to_bf16` has made, as float32 again."""
    return sent.view(torch.bfloat16).float()


def to_int8_(values_L: torch.Tensor, wire_B: torch.Tensor) -> None:
    """Write numbers to the wire, and leave in `values_L` what was rounded off.

    A block with a number that is infinite or NaN arrives as NaN.

    Args:
        values_L: float32 [length], a multiple of BLOCK.
        wire_B: uint8 [wire_bytes(length)].
    """
    for values, (whole, scales) in zip(_pieces(values_L), _wire(wire_B), strict=True):
        scales.copy_(values.abs().amax(1).mul_(SCALE_OF_ONE))
        scale = scales.float()
        inverse = torch.where(scale > LEAST_SCALE, 1 / scale, 0)
        rounded = (values * inverse[:, None]).round_()
        whole.copy_(rounded)
        values.addcmul_(rounded, scale[:, None], value=-1)


def from_int8(wire_B: torch.Tensor, values_L: torch.Tensor) -> None:
    """Read the numbers that `to_int8_` has written."""
    for values, (whole, scales) in zip(_pieces(values_L), _wire(wire_B), strict=True):
        values.copy_(whole).mul_(scales.float()[:, None])


def add_int8_(mine_L: torch.Tensor, wires_NB: torch.Tensor, rank: int) -> None:
    """Add all ranks' numbers, in the order of the ranks, in float32.

    Args:
        mine_L: those of this rank, which become the sum.
        wires_NB: uint8 [ranks, bytes]; this rank's row is not read.
    """
    ranks = len(wires_NB)
    for mine, *parts in zip(_pieces(mine_L), *map(_wire, wires_NB), strict=True):
        total = torch.zeros_like(mine)
        for other in range(ranks):
            if other == rank:
                total += mine
            else:
                whole, scales = parts[other]
                total.addcmul_(whole.float(), scales.float()[:, None])
        mine.copy_(total)


def seconds(numbers: str) -> float:
    """Seconds that this processor takes to code a number in "bf16" or "int8" once and to read it
    twice, as a step does; 0 for "none", and about 0 on a GPU."""
    if numbers == "none" or torch.cuda.is_available():
        return 0.0
    values, count = torch.linspace(-1, 1, 2**20), 2**20
    wire, durations = torch.empty(wire_bytes(count), dtype=torch.uint8), []
    for _ in range(4):
        begun = time.perf_counter()
        if numbers == "bf16":
            sent = to_bf16(values)
            values = (from_bf16(sent) + from_bf16(sent)) / 2
        else:
            to_int8_(values.clone(), wire)
            from_int8(wire, values)
            from_int8(wire, values)
        durations.append(time.perf_counter() - begun)
    return min(durations) / count


def _pieces(values_L: torch.Tensor) -> Iterator[torch.Tensor]:
    """Views [blocks, BLOCK]; on a GPU there is one."""
    blocks = values_L.view(-1, BLOCK)
    yield from blocks.split(len(blocks) if values_L.is_cuda else _AT_ONCE // BLOCK)


def _wire(wire_B: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """(int8 [blocks, BLOCK], bf16 [blocks]) of each of the pieces."""
    blocks = len(wire_B) // wire_bytes(BLOCK)
    at_once = blocks if wire_B.is_cuda else _AT_ONCE // BLOCK
    whole = wire_B[: blocks * BLOCK].view(torch.int8).view(blocks, BLOCK)
    scales = wire_B[blocks * BLOCK :].view(torch.bfloat16)
    yield from zip(whole.split(at_once), scales.split(at_once), strict=True)
