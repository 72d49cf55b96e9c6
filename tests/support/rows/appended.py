"""An appended dataset without Spark: two days, with ledger, rejects and report."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq

from howdah import storage
from howdah.data.id_index import name_of
from howdah.data.manifest import (
    MANIFEST,
    Dataset,
    LedgerEntry,
    LedgerFile,
    PartEntry,
    commit,
    load_dataset,
)
from howdah.data.record import ShardWriter
from howdah.data.splits.shards import ShardSet
from howdah.etl.history import rewrite
from tests.fixtures.dataset import build_dataset


def build_appended(root: str, *, model_dir: str, days: int = 2, numbered: bool = False) -> Dataset:
    """The newest version: day n has 6 training rows, 3 of validation and 2 of test, and one that
    was rejected.

    Args:
        numbered: ids are numbers: of day n 12 n + 1 to 12 n + 12, in the order above.
    """
    before = None
    for day in range(days):
        before = _appended(root, before, day, model_dir, numbered)
    return before


def ids_of(dataset: Dataset) -> dict[str, list[str]]:
    """{split: ids of its rows, sorted}, as the loops' reader finds the shards."""
    ids = {}
    for split, entries in dataset.manifest.splits.items():
        assert ShardSet(dataset, split).rows == sum(entry.rows for entry in entries)
        rows = [row for entry in entries for row in rewrite.rows_of(dataset, entry)]
        ids[split] = sorted(row_id.decode() for _, _, row_id in rows)
    return ids


def _parquet(path: str, table: dict) -> int:
    buffer = io.BytesIO()
    pq.write_table(pa.table(table), buffer)
    storage.write_whole(path, buffer.getvalue())
    return len(buffer.getvalue())


def _appended(
    root: str, parent: Dataset | None, day: int, model_dir: str, numbered: bool
) -> Dataset:
    path = storage.join(root, f"v={day:016x}")
    made = build_dataset(
        path, model_dir=model_dir, rows={"train": 6, "validation": 3, "test": 2}, shards=1,
        seed=day,
    )  # fmt: skip
    storage.remove(storage.join(path, MANIFEST))
    part, manifest = f"day-{day}", made.manifest
    layout, splits, ids = rewrite.layout_of(manifest), {}, []
    for split, (old,) in manifest.splits.items():
        rows = list(rewrite.rows_of(made, old))
        name = f"{split}-00000-of-00001.{day:08x}-1.tfrecord"
        with storage.open_write(storage.join(path, name)) as file:
            writer = ShardWriter(file, layout)
            keys = [f"d{day}-{split}-{n}" for n in range(len(rows))]
            if numbered:
                keys = [str(12 * day + len(ids) + n + 1) for n in range(len(rows))]
            ids += [(split, row_id) for row_id in keys]
            writer.write([r[0] for r in rows], [r[1] for r in rows], [i.encode() for i in keys])
            stats = writer.close()
        storage.write_whole(storage.join(path, f"{name}.index"), stats.index)
        storage.write_whole(storage.join(path, name_of(name)), stats.ids)
        splits[split] = [stats.entry(name).model_copy(update={"part": part})]
        for name in (old.name, old.index_name, name_of(old.name)):
            storage.remove(storage.join(path, name))
    nodes = [1000 * day + n for n in range(len(ids))]
    tables = {
        "rows": {
            "node": nodes, "id": [i for _, i in ids], "key": [i for _, i in ids],
            "label": ["animals"] * len(ids), "split": [s for s, _ in ids],
            "cluster": [ids[0][1]] * len(ids), "signature": [b"0"] * len(ids),
        },
        "bands": {"band": nodes, "node": nodes, "split": [s for s, _ in ids]},
    }  # fmt: skip
    files = []
    for kind, table in tables.items():
        name = f"ledger/{kind}-0000.{day:08x}-1.parquet"
        size = _parquet(storage.join(path, name), table)
        files.append(LedgerFile(kind=kind, bucket=0, name=name, bytes=size, rows=len(ids),
                                part=part))  # fmt: skip
    reject = f"rejects/part-00000.{day:08x}-1.parquet"
    _parquet(storage.join(path, reject), {
        "id": [str(12 * day + 12) if numbered else f"gone-{day}"],
        "text": ["a text"], "label": ["animals"],
        "reason": ["near_duplicate"], "detail": [f"like {ids[0][1]}"],
    })  # fmt: skip
    storage.write_whole(storage.join(path, "report.html"), b"<p>the text of a sample</p>")
    parts = [PartEntry(name=part, identity=f"{part}, 12 rows", version=f"v={day:016x}", read=12,
                       rows={split: e.rows for split, (e,) in splits.items()},
                       drops={"near_duplicate": 1})]  # fmt: skip
    if parent is not None:
        old, parent_name = parent.manifest, storage.name(parent.path)
        seen = {"version": parent_name}
        splits = {
            split: [
                *(e if e.version else e.model_copy(update=seen) for e in old.splits[split]),
                *splits[split],
            ]
            for split in splits
        }
        stay = old.ledger.files
        files = [*(f if f.version else f.model_copy(update=seen) for f in stay), *files]
        parts = [*old.parts, *parts]
    quality = {"read": 12, "kept": 11, "drops": {"near_duplicate": 1}, "seconds": 1.0,
               "at_max_length": 0, "reject_files": [reject]}  # fmt: skip
    update = {
        "schema_version": 2,
        "source": {"kind": "csv", "name": "a.csv"},
        "splits": splits,
        "parts": parts,
        "created": f"2026-01-0{day + 1}",
        "parent": None if parent is None else parent.manifest.dataset_hash,
        "ledger": LedgerEntry(buckets=1, config={}, files=files),
        "quality": quality,
    }
    commit(path, manifest.model_copy(update=update))
    return load_dataset(path)
