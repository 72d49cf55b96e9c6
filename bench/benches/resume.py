"""Resume in the middle of an epoch of ten million rows: time to the first batch.

Peer: a torch DataLoader over the same number of rows that skips the batches already seen
(`accelerate.skip_first_batches`, what HF Trainer does). Bar: <= 1 s, state <= 1 kB.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time

import numpy as np

from bench import harness
from bench.data import commit_dataset
from howdah.data.manifest import load_dataset
from howdah.data.record import RecordLayout, ShardWriter
from howdah.data.splits.planner import Planner, PlanSpec, PlanState
from howdah.data.splits.shards import ShardSet
from howdah.training.data.readers import BatchSource

ROWS, SHARDS, BATCH = 10_000_000, 16, 32


def _write(folder: str) -> None:
    """One shard's file under sixteen names: ten million rows without a gigabyte of disk."""
    count = ROWS // SHARDS
    rng = np.random.default_rng(0)
    lengths = rng.integers(4, 9, count)
    with open(f"{folder}/shard", "wb") as file:
        writer = ShardWriter(file, RecordLayout())
        for at in range(0, count, 10_000):
            part = range(at, min(at + 10_000, count))
            writer.write(
                [np.arange(lengths[i], dtype=np.uint16) for i in part],
                [i % 8 for i in part],
                [b"%d" % i for i in part],
            )
        stats = writer.close()
    with open(f"{folder}/shard.index", "wb") as file:
        file.write(stats.index)
    entries = []
    for n in range(SHARDS):
        name = f"train-{n:05d}-of-{SHARDS:05d}.tfrecord"
        os.link(f"{folder}/shard", f"{folder}/{name}")
        os.link(f"{folder}/shard.index", f"{folder}/{name}.index")
        entries.append(stats.entry(name))
    commit_dataset(folder, {"train": entries})


def _ours(folder: str, state: dict) -> None:
    dataset = load_dataset(folder)
    shards = ShardSet(dataset, "train")
    spec = PlanSpec(
        dataset_hash=dataset.manifest_hash, split="train", seed=1, global_batch_size=BATCH
    )
    source = BatchSource(
        shards, Planner(shards.lengths, spec), rank=0, world=1, max_tokens=8192,
        start=PlanState.from_json(state), prefetch=0,
    )  # fmt: skip
    batch = next(iter(source))
    if batch.ids_BT.shape[0] != BATCH:
        raise SystemExit("the first batch is not whole")


def _child(folder: str) -> None:
    import torch
    from accelerate import skip_first_batches

    dataset = load_dataset(folder)
    shards = ShardSet(dataset, "train")
    spec = PlanSpec(
        dataset_hash=dataset.manifest_hash, split="train", seed=1, global_batch_size=BATCH
    )
    state = Planner(shards.lengths, spec).state(1, ROWS // BATCH // 2).to_json()
    rows = torch.arange(ROWS)

    def peer() -> None:
        generator = torch.Generator().manual_seed(1)
        loader = torch.utils.data.DataLoader(
            rows, batch_size=BATCH, shuffle=True, generator=generator
        )
        next(iter(skip_first_batches(loader, ROWS // BATCH // 2)))

    peer_values, our_values = [], []
    for _ in range(5):
        for call, values in ((peer, peer_values), (lambda: _ours(folder, state), our_values)):
            start = time.perf_counter()
            call()
            values.append(time.perf_counter() - start)
    harness.print_rows(
        [
            harness.Row(
                what="resume to first batch, 10 M rows",
                unit="s",
                peer="DataLoader + skip_first_batches",
                peer_values=peer_values,
                our_values=our_values,
                bar="<= 1 s",
                lower_is_better=True,
                notes={"state_bytes": len(json.dumps(state))},
            )
        ]
    )


def main() -> None:
    """Run in a child: the peer imports torch."""
    with tempfile.TemporaryDirectory() as folder:
        _write(folder)
        rows = harness.rows_from_child("bench.benches.resume", folder)
    harness.report("resume", rows)
    print(f"state: {rows[0].notes['state_bytes']} bytes (bar: <= 1 kB)")


if __name__ == "__main__":
    _child(sys.argv[1]) if len(sys.argv) > 1 else main()
