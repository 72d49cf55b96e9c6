"""Padded/real tokens: plain dynamic padding of shuffled rows against the planner's windows.

Bar: <= 1.05 at any world size where an epoch has 200 steps or more. Rows have log-normal lengths,
or lengths like those of SST-2's sentences; global batch 32. Shorter epochs, whose windows are a
quarter of the epoch, have no bar.
"""

from __future__ import annotations

import numpy as np

from bench import harness
from bench.data import rows
from howdah.data.splits.planner import Planner, PlanSpec, micro_batches

BATCH = 32


def _plain(lengths: np.ndarray, world: int, seed: int) -> float:
    order = np.random.default_rng(seed).permutation(len(lengths))
    padded = 0
    for at in range(0, len(order), BATCH // world):
        part = lengths[order[at : at + BATCH // world]]
        padded += int(part.max()) * len(part)
    return padded / int(lengths.sum())


def _sentences(count: int) -> np.ndarray:
    """Tokens of sentences like SST-2's: 25 on the average, from 4 to 66."""
    counts = np.round(np.random.default_rng(0).gamma(4.7, 5.3, count))
    return np.clip(counts, 4, 66).astype(int)


def _planned(lengths: np.ndarray, world: int, seed: int) -> float:
    spec = PlanSpec(dataset_hash="x", split="train", seed=seed, global_batch_size=BATCH)
    shards = [part.astype(np.int32) for part in np.array_split(lengths, 8)]
    planner = Planner(shards, spec)
    real = padded = 0
    for step in range(planner.steps_per_epoch):
        for rank in range(world):
            for part in micro_batches(planner.rank_rows(0, step, rank, world), 8192):
                real += int(part.length[part.real].sum())
                padded += int(part.length.max()) * len(part)
    return padded / real


def _row(lengths: np.ndarray, what: str, world: int, *, short: bool = False) -> harness.Row:
    return harness.Row(
        what=f"{what}, {world} rank{'s' if world > 1 else ''}",
        unit="padded/real",
        peer="dynamic padding",
        peer_values=[_plain(lengths, world, seed) for seed in range(5)],
        our_values=[_planned(lengths, world, seed) for seed in range(5)],
        bar=None if short else "<= 1.05",
        lower_is_better=True,
    )


def main() -> None:
    """Five seeds at three world sizes."""
    lengths = np.array([len(row) for row in rows(20_000)[0]])
    table = [_row(lengths, "625 steps an epoch", world) for world in (1, 2, 8)]
    table += [_row(_sentences(6912), "sentences, 216 steps", world) for world in (1, 2, 8)]
    for steps in (13, 25, 50, 100, 150):
        for what, some in (("", lengths[: 32 * steps]), ("sentences, ", _sentences(32 * steps))):
            table.append(_row(some, f"{what}{steps} steps", 2, short=True))
    harness.report("padding", table)


if __name__ == "__main__":
    main()
