"""Measures the network: `python -m howdah.training.planning.network_probe FRAMEWORK SIZES OUT`.

SIZES is a JSON list of the sizes of a step's gradient messages in bytes. Rank 0 writes the seconds
of one reduction of all of them, of a minimal message, and of coding a number, to OUT. Every rank
enters.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np

from howdah.core.processes import die_with_parent
from howdah.process import env
from howdah.training.planning.scaling import NUMBER_BYTES

_ROUNDS = 5
_SMALL_ROUNDS = 40


def main(framework: str, sizes: Sequence[int], out: str) -> None:
    """Measure on all ranks; rank 0 writes the result."""
    die_with_parent()
    env.prepare(framework, threads=1)
    from howdah.training.comm import backends

    comm = backends.init(framework)
    messages = _messages(framework, sizes)
    comm.reduce_gradients(messages)  # allocates buffers and touches their pages
    whole = [_timed(comm, lambda: comm.reduce_gradients(messages)) for _ in range(_ROUNDS)]
    small = [
        _timed(comm, lambda: comm.sum(np.zeros(8)), together=False) for _ in range(_SMALL_ROUNDS)
    ]
    if comm.rank == 0:
        result = {
            "ranks": comm.size,
            "reduction_seconds": statistics.median(whole),
            "message_seconds": statistics.median(small),
            "coding_seconds": {numbers: _coding(framework)(numbers) for numbers in NUMBER_BYTES},
        }
        with open(out, "w", encoding="utf-8") as file:
            json.dump(result, file)
    comm.barrier()
    comm.shutdown()


def _coding(framework: str) -> Callable[[str], float]:
    if framework == "torch":
        from howdah.training.optim import coding_torch as coding
    else:
        from howdah.training.optim import coding_tf as coding
    return coding.seconds


def _messages(framework: str, sizes: Sequence[int]) -> list:
    arrays = [np.ones(size // 4, np.float32) for size in sizes]
    if framework == "torch":
        import torch

        return [torch.from_numpy(array) for array in arrays]
    if framework == "tensorflow":
        import tensorflow as tf

        return [tf.constant(array) for array in arrays]
    raise ValueError(f"unknown framework: {framework!r}")


def _timed(comm, collective: Callable[[], object], *, together: bool = True) -> float:
    if together:
        comm.barrier()
    started = time.perf_counter()
    collective()
    return time.perf_counter() - started


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3])
