"""Milliseconds of one layer, forward and backward: its attention with padding and without, and the
whole of it as it is and compiled.

    python -m bench.benches.gpu.kernels BASE ROWS LENGTHS.json     prints JSON

LENGTHS.json: {name: the rows' lengths of a batch}.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

from howdah.config.model import ModelSection
from howdah.config.training import TrainingSection
from howdah.models.forward import forward_torch
from howdah.models.weights.pretrained import load_base

GPU = torch.cuda.is_available()
DEVICE, DTYPE = ("cuda", torch.bfloat16) if GPU else ("cpu", torch.float32)
ROUNDS = 20 if GPU else 3


def milliseconds(run: Callable[[], torch.Tensor]) -> float | str:
    """The median of a forward and backward pass; where it fails on a GPU, why."""
    seconds = []
    try:
        for _ in range(3 + ROUNDS):
            if GPU:
                torch.cuda.synchronize()
            begun = time.perf_counter()
            run().float().sum().backward()
            if GPU:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - begun)
    except Exception as error:
        if not GPU:  # here all of it is known to run: the bench itself is wrong
            raise
        return f"fails: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:80]}"
    return 1000 * statistics.median(seconds[3:])


def attention(lengths_B: np.ndarray, heads: int, size: int) -> dict[str, float | str]:
    """Milliseconds of attention over padded rows (as they are, in multiples of 8) and tokens."""
    rows, results = len(lengths_B), {}

    def inputs(*shape: int) -> list[torch.Tensor]:
        tensors = (torch.randn(*shape, device=DEVICE, dtype=DTYPE) for _ in range(3))
        return [tensor.requires_grad_() for tensor in tensors]

    for name, width in (("", int(lengths_B.max())), (" (8)", -(-int(lengths_B.max()) // 8) * 8)):
        padded = inputs(rows, heads, width, size)
        mask_BT = torch.arange(width)[None] < torch.from_numpy(lengths_B)[:, None]
        mask = torch.where(mask_BT, 0.0, -1e9).to(DEVICE, DTYPE)[:, None, None]
        for kind, used in (("padded, mask", mask), ("padded, no mask", None)):
            results[kind + name] = milliseconds(
                lambda padded=padded, used=used: F.scaled_dot_product_attention(
                    *padded, attn_mask=used
                )
            )
    flat = inputs(int(lengths_B.sum()), heads * size)
    offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths_B)])).to(DEVICE)

    def packed() -> torch.Tensor:
        rows = (torch.nested.nested_tensor_from_jagged(one, offsets) for one in flat)
        by_head = [one.unflatten(-1, [heads, size]).transpose(1, 2) for one in rows]
        return F.scaled_dot_product_attention(*by_head).transpose(1, 2).values()

    results["packed (nested)"] = milliseconds(packed)
    return results


def layer(base: str, rows: int, widths: Sequence[int]) -> dict[str, float | str]:
    """One layer of ours, as it is and compiled, at some widths: fixed buckets."""
    model, section = load_base(base), TrainingSection(framework="torch")
    net = forward_torch.build(
        model.config,
        model.weights,
        num_labels=2,
        training=section,
        model=ModelSection(dropout=0.0),
        precision="bf16" if GPU else "fp32",
        device=DEVICE,
    )
    name = net.family.layer_name(0)
    run = partial(net._layer, name, blocked_BT=None, first_only=False, packing=None)
    compiled = torch.compile(run, dynamic=False)
    results = {}
    for width in widths:
        x = torch.randn(rows, width, model.config["dim"], device=DEVICE, dtype=DTYPE)
        for name, one in (("as it is", run), ("compiled", compiled)):
            results[f"{name}, {width} tokens"] = milliseconds(lambda x=x, one=one: one(x))
    return results


def main() -> None:
    """All, as JSON."""
    base, rows = sys.argv[1], int(sys.argv[2])
    with open(sys.argv[3], encoding="utf-8") as file:
        batches = json.load(file)
    with open(f"{base}/config.json", encoding="utf-8") as file:
        config = json.load(file)
    heads = config["n_heads"]
    results = {
        f"attention, {name}": attention(np.array(lengths), heads, config["dim"] // heads)
        for name, lengths in batches.items()
    }
    print(json.dumps(results | {"one layer": layer(base, rows, (64, 128))}))


if __name__ == "__main__":
    main()
