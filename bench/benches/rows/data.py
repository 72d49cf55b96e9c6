"""The dataset: one shard's records under all names, and an index for each."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np

from bench.data import commit_dataset
from howdah.data.record import RecordLayout, ShardWriter

ROWS = int(os.environ.get("BENCH_ROWS", "100000000"))
SHARDS, BATCH, CLASSES = 250, 256, 4


def write(folder: str, compression: str) -> None:
    """A dataset of ROWS rows: one shard's records under all names, an index for each."""
    os.makedirs(folder)
    count = ROWS // SHARDS
    rng = np.random.default_rng(0)
    lengths = rng.integers(4, 9, count)
    with open(f"{folder}/shard", "wb") as file:
        writer = ShardWriter(file, RecordLayout(), compression=compression)
        for at in range(0, count, 10_000):
            part = range(at, min(at + 10_000, count))
            writer.write(
                [np.arange(lengths[i], dtype=np.uint16) for i in part],
                [i % CLASSES for i in part],
                [b"%d" % i for i in part],
            )
        stats = writer.close()
    entries = []
    for n in range(SHARDS):
        name = f"train-{n:05d}-of-{SHARDS:05d}.tfrecord"
        os.link(f"{folder}/shard", f"{folder}/{name}")
        Path(f"{folder}/{name}.index").write_bytes(stats.index)
        entries.append(stats.entry(name))
    dataset = commit_dataset(folder, {"train": entries})
    if compression != "none":
        path = Path(folder, "manifest.json")
        value = json.loads(path.read_bytes())
        value["record"]["compression"] = compression
        path.write_text(json.dumps(value))
    if dataset.manifest.rows("train") != ROWS:
        raise SystemExit(f"BENCH_ROWS must be a multiple of {SHARDS}")
