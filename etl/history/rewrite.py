"""A version made from another one's files, without Spark: fewer shards, or without some rows.

The new version lies in its own directory as a whole: it names no file of the versions before, so
that those may be removed. It is committed as every other one, by its manifest.
"""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from howdah import storage
from howdah.core.activity import Progress
from howdah.data.id_index import name_of
from howdah.data.lineage.rows import layout_of, rows_of
from howdah.data.manifest import (
    APPENDED_SCHEMA_VERSION,
    MANIFEST,
    Dataset,
    DatasetManifest,
    LedgerFile,
    PartEntry,
    ShardEntry,
    commit,
    content_hash,
    created_now,
    load_dataset,
    version_name,
)
from howdah.data.record import ShardWriter
from howdah.data.targets import Label
from howdah.errors import StorageError
from howdah.etl import report
from howdah.etl.history.artefacts import read_table, without_rejected
from howdah.etl.history.mentions import NOTHING, Targets, text_id
from howdah.etl.history.turn import turn
from howdah.etl.workspace.staging import (
    LEDGER,
    REJECTS,
    RunLease,
    attempt_name,
    discard,
    refuse_missing,
    sweep,
)

_ROWS = 2_000
_DISCARD_SECONDS = 60.0
_GROUP_ROWS = {"rows": 2_048, "bands": 65_536}
TARGET_BYTES = 96 * 2**20
"""Default size of a merged shard, the same as that of data.shard_bytes."""


def compact(dataset: Dataset, progress: Progress, *, target: int = TARGET_BYTES) -> Dataset:
    """A version of the same rows with the shards and ledger files of all parts but the newest
    merged; the dataset itself where there is nothing to merge.

    Raises:
        DataError: a file is not what the manifest says.
    """
    newest = _newest_parts(dataset.manifest)
    merged = {entry.part for entry in _all_shards(dataset.manifest)} - newest
    if len(merged) < 2:
        progress(f"nothing to merge in {dataset.path}: {len(merged)} older parts")
        return dataset
    return _Rewrite(dataset=dataset, progress=progress, target=target, keep=newest).run()


def without(dataset: Dataset, targets: Targets, progress: Progress) -> Dataset:
    """A version without these rows, in its own directory, even where it has none of them."""
    return _Rewrite(dataset=dataset, progress=progress, targets=targets).run()


def manifest_without(manifest: DatasetManifest, targets: Targets) -> tuple[DatasetManifest, int]:
    """The manifest without the rows that it names, and how many times it does: the pairs that are
    most alike across splits, the text with most line breaks, and the files of images."""
    quality, source, count = dict(manifest.quality), dict(manifest.source), 0
    if leakage := quality.get("leakage"):
        pairs = leakage.get("examples", [])
        stay = [one for one in pairs if not any(map(targets.has_value, (one["id"], one["near"])))]
        quality["leakage"] = {**leakage, "examples": stay}
        count += len(pairs) - len(stay)
    if (lines := quality.get("csv")) and targets.has_value(lines.get("most_line_breaks_in")):
        quality["csv"] = {**lines, "most_line_breaks_in": None}
        count += 1
    if source.get("kind") == "image" and isinstance(files := source.get("files"), list):
        # ids are paths below the source, which need not be the root of all files
        ends = tuple(f"/{one}" for one in targets.exact)
        source["files"] = [one for one in files if not str(one[0]).endswith(ends)]
        count += len(files) - len(source["files"])
    return manifest.model_copy(update={"quality": quality, "source": source}), count


def _sweep(root: str) -> None:
    with contextlib.suppress(StorageError):  # the next run sweeps as well
        sweep(root)


def _all_shards(manifest: DatasetManifest) -> list[ShardEntry]:
    return [entry for shards in manifest.splits.values() for entry in shards]


def _newest_parts(manifest: DatasetManifest) -> set[str | None]:
    latest = version_name(manifest.dataset_hash)
    return {part.name for part in manifest.parts if part.version == latest}


@dataclass(kw_only=True)
class _Rewrite:
    """One run.

    Attributes:
        target: bytes of a merged shard; None: every shard stays by itself.
        keep: parts whose shards stay by themselves.
        targets: rows that are left out.
    """

    dataset: Dataset
    progress: Progress
    target: int | None = None
    keep: Collection[str | None] = ()
    targets: Targets = NOTHING
    _gone: Counter[tuple[str | None, str]] = field(default_factory=Counter, init=False)
    """(part, split) -> rows that are left out, without copies."""
    _files: int = field(default=0, init=False)

    def run(self) -> Dataset:
        old = self.dataset.manifest
        hash_ = content_hash(
            {"from": old.dataset_hash, "without": sorted(self.targets.exact), "target": self.target}
        )
        path = storage.join(storage.parent(self.dataset.path), version_name(hash_))
        if storage.exists(storage.join(path, MANIFEST)):
            return load_dataset(path)
        lease = RunLease(path)
        with contextlib.ExitStack() as stack:
            # last of all, when the lease has ended: what this run or a dead one left
            stack.callback(_sweep, storage.parent(path))
            stack.push(lease)
            try:
                lease.__enter__()
                manifest = self._manifest(path, lease.token, hash_)
                lease.renew()
                refuse_missing(path, manifest)
                # The newest version's turn: a part appended meanwhile would be lost.
                with turn(storage.parent(self.dataset.path), self.dataset):
                    commit(path, manifest)
            except BaseException:
                with contextlib.suppress(StorageError), storage.waiting_at_most(_DISCARD_SECONDS):
                    discard(path, lease.token)
                raise
        self.progress(f"committed {path}")
        return load_dataset(path)

    def _manifest(self, path: str, token: str, hash_: str) -> DatasetManifest:
        old = self.dataset.manifest
        splits = {split: self._split(path, token, split) for split in old.splits}
        splits = {split: shards for split, shards in splits.items() if shards}
        cleaned, _ = manifest_without(old, self.targets)
        quality, parts = dict(cleaned.quality), list(old.parts)
        quality["reject_files"] = self._rejects(path, token)
        if self.targets.ids:
            kept = sum(entry.rows for shards in splits.values() for entry in shards)
            before = sum(entry.rows for entry in _all_shards(old))
            quality["forgotten"] = quality.get("forgotten", 0) + before - kept
            quality, parts = self._counts(quality)
        latest, new_name = version_name(old.dataset_hash), version_name(hash_)
        update = {
            "dataset_hash": hash_,
            "created": created_now(storage.parent(path)),
            "splits": splits,
            "quality": quality,
            "source": cleaned.source,
            "parent": old.dataset_hash,
            "schema_version": APPENDED_SCHEMA_VERSION,
            "parts": [
                part.model_copy(update={"version": new_name}) if part.version == latest else part
                for part in parts
            ],
        }
        if old.ledger is not None:
            files = self._ledger(path, token)
            update["ledger"] = old.ledger.model_copy(update={"files": files})
        manifest = old.model_copy(update=update)
        # Beginnings of texts stand in the old report without their ids: none is taken over.
        report.write(path, manifest, SimpleNamespace(samples={}, reject_samples={}))
        return manifest

    def _counts(self, quality: dict) -> tuple[dict, list[PartEntry]]:
        """Quality and parts with the rows that are left out counted as dropped.

        Of shards that compaction has merged the part of a row is not known: those parts keep the
        counts of the day.
        """
        old = self.dataset.manifest
        newest = _newest_parts(old)
        removed = sum(n for (part, _), n in self._gone.items() if not old.parts or part in newest)
        if removed and "kept" in quality:  # of the newest part alone, as the manifest says
            quality["kept"] -= removed
            quality["drops"] = _more(quality.get("drops") or {}, removed)
        parts = []
        for part in old.parts:
            gone = {split: n for (name, split), n in self._gone.items() if name == part.name}
            if gone:
                rows = {split: n - gone.get(split, 0) for split, n in part.rows.items()}
                drops = _more(part.drops, sum(gone.values()))
                part = part.model_copy(update={"rows": rows, "drops": drops})
            parts.append(part)
        return quality, parts

    # -------------------------------------------------------------------------------- shards
    def _split(self, path: str, token: str, split: str) -> list[ShardEntry]:
        groups = list(self._groups(self.dataset.manifest.splits[split]))
        made = []
        for n, group in enumerate(groups):
            stem = f"{split}-{n:05d}-of-{len(groups):05d}"
            name = attempt_name(stem, token, self._next(), "tfrecord")
            entry = self._shard(path, name, group, split)
            if entry is not None:
                part = group[0].part if len({one.part for one in group}) == 1 else None
                made.append(entry.model_copy(update={"part": part}))
        return made

    def _groups(self, entries: Sequence[ShardEntry]) -> Iterator[list[ShardEntry]]:
        if self.target is None:
            yield from ([entry] for entry in entries)
            return
        group: list[ShardEntry] = []
        for entry in entries:
            if entry.part in self.keep:
                continue
            if group and sum(one.bytes for one in group) + entry.bytes > self.target:
                yield group
                group = []
            group.append(entry)
        if group:
            yield group
        yield from ([entry] for entry in entries if entry.part in self.keep)

    def _shard(
        self, path: str, name: str, group: list[ShardEntry], split: str
    ) -> ShardEntry | None:
        record, layout = self.dataset.manifest.record, layout_of(self.dataset.manifest)
        buffer = io.BytesIO()  # a shard is to be held in memory as a whole, as it is read
        writer, count, batch = ShardWriter(buffer, layout, compression=record.compression), 0, []
        for entry in group:
            for row in rows_of(self.dataset, entry):
                row_id = text_id(row[2])
                if self.targets.has(row_id):
                    self._gone[entry.part, split] += row_id not in self.targets.copies
                    continue
                batch.append(row)
                count += 1
                if len(batch) == _ROWS:
                    _write(writer, batch)
                    batch = []
        _write(writer, batch)
        if not count:
            return None
        stats = writer.close()
        entry = stats.entry(name)
        storage.write_whole(storage.join(path, name), buffer.getvalue())
        storage.write_whole(storage.join(path, entry.index_name), stats.index)
        storage.write_whole(storage.join(path, name_of(name)), stats.ids)
        return entry

    # -------------------------------------------------------------------------------- Parquet
    def _rejects(self, path: str, token: str) -> list[str]:
        names = []
        for old in self.dataset.manifest.quality.get("reject_files", []):
            table = read_table(storage.join(self.dataset.path, old))
            if self.targets.ids:
                table, _ = without_rejected(table, self.targets)
            if table.num_rows:
                name = attempt_name(f"part-{len(names):05d}", token, self._next(), "parquet")
                names.append(f"{REJECTS}/{name}")
                _write_table(storage.join(path, names[-1]), table, _ROWS)
        return sorted(names)

    def _ledger(self, path: str, token: str) -> list[LedgerFile]:
        groups: dict[tuple, list[LedgerFile]] = {}
        for file in self.dataset.manifest.ledger.files:
            apart = self.target is None or file.part in self.keep
            key = (file.kind, file.bucket, file.part if apart else None)
            groups.setdefault(key, []).append(file)
        gone = self._nodes_without_rows()
        made = []
        for (kind, bucket, part), files in groups.items():
            paths = [self.dataset.ledger_path(file) for file in files]
            if kind == "rows":
                tables = [_filtered(one, "id", self.targets.exact) for one in paths]
                tables = [_mapped(one, "cluster", self._cluster(token)) for one in tables]
            else:
                tables = [_filtered(one, "node", gone) for one in paths]
            table = pa.concat_tables(tables)
            if not table.num_rows:
                continue
            order = [(name, "ascending") for name in table.schema.names if name != "signature"]
            table = table.sort_by(order)
            name = attempt_name(f"{kind}-{bucket:04d}", token, self._next(), "parquet")
            target = storage.join(path, f"{LEDGER}/{name}")
            _write_table(target, table, _GROUP_ROWS[kind])
            made.append(
                LedgerFile(
                    kind=kind, bucket=bucket, part=part, name=f"{LEDGER}/{name}",
                    bytes=storage.size(target), rows=table.num_rows,
                )
            )  # fmt: skip
        return made

    def _nodes_without_rows(self) -> frozenset[int]:
        """Nodes of the rows that are left out, unless another row has the same text."""
        gone, stay = set(), set()
        if not self.targets.ids:
            return frozenset()
        for file in self.dataset.manifest.ledger.files:
            if file.kind == "rows":
                table = read_table(self.dataset.ledger_path(file), ["id", "node"])
                for row_id, node in zip(*(c.to_pylist() for c in table.columns), strict=True):
                    (gone if row_id in self.targets.exact else stay).add(node)
        return frozenset(gone - stay)

    def _cluster(self, token: str) -> Callable[[str], str]:
        """Names of clusters: one that was named by a row that is left out gets another name."""

        def name(cluster: str) -> str:
            if cluster not in self.targets.exact:
                return cluster
            return "forgotten-" + sha256(f"{token}:{cluster}".encode()).hexdigest()[:16]

        return name

    def _next(self) -> int:
        self._files += 1
        return self._files


def _more(drops: dict[str, int], count: int) -> dict[str, int]:
    return {**drops, "forgotten": drops.get("forgotten", 0) + count}


def _write(writer: ShardWriter, batch: list[tuple[np.ndarray, Label, bytes]]) -> None:
    if batch:
        ids, labels, row_ids = zip(*batch, strict=True)
        writer.write(list(ids), list(labels), list(row_ids))


def _filtered(path: str, column: str, unwanted: Collection) -> pa.Table:
    table = read_table(path)
    if not unwanted:
        return table
    mask = [value not in unwanted for value in table.column(column).to_pylist()]
    return table.filter(pa.array(mask, pa.bool_()))


def _mapped(table: pa.Table, column: str, change: Callable[[str], str]) -> pa.Table:
    values = [value and change(value) for value in table.column(column).to_pylist()]
    at = table.schema.get_field_index(column)
    return table.set_column(at, column, pa.array(values, table.schema.field(at).type))


def _write_table(path: str, table: pa.Table, row_group_rows: int) -> None:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, row_group_size=row_group_rows)
    storage.write_whole(path, buffer.getvalue())
