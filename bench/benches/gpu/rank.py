"""A rank of ours that is watched: where the host waits for the GPU, memory, and the weights' bits.

    python -m bench.benches.gpu.rank --config run.yaml ...     (as `python -m howdah.training`)

$WATCHED: a folder, in which rank R writes R.json. $MEMORY_SHARE: all of the GPU's memory that it
may use, as a share; on a CPU most tokens of a forward pass: more raise torch's error (simulated).
"""

from __future__ import annotations

import json
import os
import resource
import sys
import warnings
from collections import Counter

from howdah.process.env import rank_env
from howdah.training import __main__ as training


def main() -> int:
    """Train, and write what was seen."""
    train, waits, nets = training._train, Counter(), []

    def note(message, category, filename, lineno, file=None, line=None) -> None:
        if "synchronizing CUDA operation" in str(message):
            waits[f"{os.path.relpath(filename)}:{lineno}"] += 1

    def watched(config, run, worlds) -> None:
        import torch

        from howdah.models.forward import forward_torch
        from howdah.training.hooks.evaluator import checksum

        gpu = torch.cuda.is_available()
        build, share = forward_torch.build, os.environ.get("MEMORY_SHARE")

        def kept(*args, **kwargs):
            nets.append(build(*args, **kwargs))
            return nets[0]

        forward_torch.build = kept
        if share is not None:
            _limit(torch, forward_torch, float(share), gpu)
        if gpu:
            warnings.simplefilter("always")
            warnings.showwarning = note
            torch.cuda.set_sync_debug_mode("warn")
        train(config, run, worlds)
        steps = config.training.max_steps
        with open(f"{os.environ['WATCHED']}/{rank_env().rank}.json", "w", encoding="utf-8") as file:
            json.dump({
                "waits": {place: count / steps for place, count in waits.items()
                          if count >= steps / 2},
                "allocated": torch.cuda.max_memory_allocated() if gpu else None,
                "reserved": torch.cuda.max_memory_reserved() if gpu else None,
                "resident": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
                "checksum": checksum(forward_torch.weights(nets[0])),
            }, file)  # fmt: skip

    training._train = watched
    return training.main()


def _limit(torch, forward_torch, share: float, gpu: bool) -> None:
    if gpu:
        torch.cuda.set_per_process_memory_fraction(share)
        return
    forward = forward_torch.EncoderClassifier.forward

    def short(self, ids_BT, *args, **more):
        if self.training and ids_BT.numel() > share:
            raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
        return forward(self, ids_BT, *args, **more)

    forward_torch.EncoderClassifier.forward = short


if __name__ == "__main__":
    sys.exit(main())
