"""`howdah model lineage ID` at 10 million rows, beside a scan of the ids' column in Parquet.

The dataset has indexes of ids and a manifest, and no records: none is read. Bar: below 1 s from a
shell, start of Python included.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from bench.harness import Row, compare, report
from howdah import storage
from howdah.data import id_index
from howdah.data.lineage import shards
from howdah.data.manifest import DatasetManifest, RecordEntry, ShardEntry, TokenizerEntry, commit
from howdah.serving.registry.lineage import Places, of_row

ROWS, SHARDS, ROUNDS, LOOKUPS = 10_000_000, 100, 5, 20


def main() -> None:
    """Make the dataset, look rows up, print and save the figures."""
    with tempfile.TemporaryDirectory(prefix="howdah-bench-lineage-") as directory:
        began = time.perf_counter()
        size = _make(directory)
        print(f"made in {time.perf_counter() - began:.0f} s, {size / ROWS:.1f} bytes a row")
        ids = [f"article-{n:09d}" for n in range(7, ROWS, ROWS // LOOKUPS)]
        root, table = f"{directory}/data", ds.dataset(f"{directory}/ids")
        for row_id in (ids[3], "no-such-article"):
            by_index = bool(shards.find(row_id, shards.versions(root)))
            assert by_index == bool(_scan(table, row_id)) == row_id.startswith("article-")
        rows = [_in_process(root, table, ids), _command(root, ids)]
        report("lineage", rows, rows_in_dataset=ROWS, shards=SHARDS, index_bytes=size)


def _make(directory: str) -> int:
    """data/v=1 with manifest and indexes, ids/ with Parquet; bytes of the indexes."""
    version, each = f"{directory}/data/v={1:016x}", ROWS // SHARDS
    os.makedirs(version)
    os.makedirs(f"{directory}/ids")
    entries, size = [], 0
    for shard in range(SHARDS):
        # Rows are shuffled over the shards: row n is in shard n mod SHARDS.
        ids = [f"article-{n:09d}" for n in range(shard, ROWS, SHARDS)]
        name = f"train-{shard:05d}-of-{SHARDS:05d}.{0:08x}-1.tfrecord"
        data = id_index.to_bytes(id_index.digests(row_id.encode() for row_id in ids))
        storage.write_whole(f"{version}/{id_index.name_of(name)}", data)
        pq.write_table(pa.table({"id": ids}), f"{directory}/ids/{shard:05d}.parquet")
        size += len(data)
        entries.append(
            ShardEntry(name=name, index_name=f"{name}.index", rows=each, bytes=1, crc32c=0,
                       index_crc32c=0, tokens=1, class_counts={}, length_histogram={})
        )  # fmt: skip
    manifest = DatasetManifest(
        dataset_hash=f"{1:016x}", created="2026-11-01T00:00:00+00:00", etl_version="0",
        labels=["a"], max_length=64, record=RecordEntry(ids_dtype="uint16", columns={}),
        tokenizer=TokenizerEntry(hash="t", vocab_size=1, pad_id=0, source="t"),
        splits={"train": entries}, source={"kind": "csv", "name": "a.csv"}, seed=1, split_rule={},
        cleaning={},
    )  # fmt: skip
    commit(version, manifest)
    return size


def _scan(table: ds.Dataset, row_id: str) -> int:
    """Rows of an id, read from the files' column as Arrow does it at its best: in threads."""
    return table.count_rows(filter=pc.field("id") == row_id)


def _in_process(root: str, table: ds.Dataset, ids: list[str]) -> Row:
    places = Places(datasets=[root])
    return compare(
        f"look up a row among {ROWS:,}", peer="pyarrow.dataset filter on the id column",
        run_peer=lambda: [_scan(table, row_id) for row_id in ids[:3]] * 1,
        run_ours=lambda: [of_row(row_id, places) for row_id in ids[:3]],
        work=3, unit="lookups/s", rounds=ROUNDS,
    )  # fmt: skip


def _command(root: str, ids: list[str]) -> Row:
    """Seconds of the whole command, beside those of `howdah --version`."""

    def seconds(*words: str) -> float:
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "howdah.cli", *words], check=True, capture_output=True,
            env={**os.environ, "PYTHONPATH": os.getcwd()},
        )  # fmt: skip
        return time.perf_counter() - began

    seconds("model", "lineage", ids[0], "--dataset", root)
    pairs = [
        (seconds("--version"), seconds("model", "lineage", row_id, "--dataset", root, "--json"))
        for row_id in ids[:ROUNDS]
    ]
    return Row(
        what="the command, from a shell", unit="s", peer="howdah --version",
        peer_values=[one for one, _ in pairs], our_values=[one for _, one in pairs],
        bar="ours < 1 s", lower_is_better=True,
    )  # fmt: skip
