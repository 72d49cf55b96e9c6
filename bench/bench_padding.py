"""Padded/real tokens: plain dynamic padding of shuffled rows against the planner's windows.

Bar: <= 1.05 at any world size. Rows have log-normal lengths, global batch 32.
"""

from __future__ import annotations

import numpy as np

from bench import harness
from bench.data import rows
from training.planner import Planner, PlanSpec, micro_batches

BATCH = 32


def _plain(lengths: np.ndarray, world: int, seed: int) -> float:
    order = np.random.default_rng(seed).permutation(len(lengths))
    padded = 0
    for at in range(0, len(order), BATCH // world):
        part = lengths[order[at : at + BATCH // world]]
        padded += int(part.max()) * len(part)
    return padded / int(lengths.sum())


def _planned(lengths: np.ndarray, world: int, seed: int) -> float:
    spec = PlanSpec(dataset_hash="x", split="train", seed=seed, global_batch_size=BATCH)
    planner = Planner([part.astype(np.int32) for part in np.array_split(lengths, 8)], spec)
    real = padded = 0
    for step in range(planner.steps_per_epoch):
        for rank in range(world):
            for part in micro_batches(planner.rank_rows(0, step, rank, world), 8192):
                real += int(part.length[part.real].sum())
                padded += int(part.length.max()) * len(part)
    return padded / real


def main() -> None:
    """Both for five seeds at three world sizes."""
    lengths = np.array([len(row) for row in rows(20_000)[0]])
    found = [
        harness.Row(
            what=f"padded/real tokens, {world} rank{'s' if world > 1 else ''}",
            unit="padded/real",
            peer="dynamic padding",
            peer_values=[_plain(lengths, world, seed) for seed in range(5)],
            our_values=[_planned(lengths, world, seed) for seed in range(5)],
            bar="<= 1.05",
            lower_is_better=True,
        )
        for world in (1, 2, 8)
    ]
    harness.report("padding", found)


if __name__ == "__main__":
    main()
