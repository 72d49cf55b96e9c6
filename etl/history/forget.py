"""Forget rows: versions without them, the old ones removed, and a scan that finds none.

Looked at: versions of datasets (records, ledger, rejected rows, manifest, reports), run directories
(predictions and every other text file), and further files such as predictions elsewhere. Models are
not changed: those trained on one of the rows are listed, to be trained again without them.

A survey comes first and changes nothing; `howdah forget` goes on only with --apply, for what it
removes cannot be brought back.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from etl.history import rewrite
from etl.history.rewrite import is_one_of, mentions, without_mentions
from howdah import redact, storage
from howdah.core.user import user_and_host
from howdah.data.manifest import MANIFEST, Dataset, load_dataset, newest
from howdah.errors import DataError, HowdahError, NotFound
from howdah.lineage import forgotten as marks
from howdah.models import scored
from howdah.models.registry import EXPORT_INFO, Published

Progress = Callable[[str], None]
_BINARY = (".safetensors", ".index", ".tfrecord", ".png", ".svg")
"""No row's id stands in them as it is; records are read as records."""


@dataclass(kw_only=True)
class Found:
    """Where rows of the list stand."""

    files: dict[str, int] = field(default_factory=dict)
    """{path: rows, or mentions in a text}"""
    versions: list[str] = field(default_factory=list)
    """Dataset versions with one of them in a shard."""
    hashes: dict[str, list[str]] = field(default_factory=dict)
    """{root of a dataset: hashes of its versions that have one of them in a shard}."""
    models: list[dict] = field(default_factory=list)
    """Runs and published models trained on such a version: {path, dataset, run_id, current: whether
    it is the one that is served, scored: tables that it has scored}."""

    def as_dict(self) -> dict:
        """For --json."""
        return asdict(self)


def read_ids(path: str) -> frozenset[str]:
    """The ids in a file, one a line.

    Raises:
        DataError: it has none.
    """
    ids = frozenset(line.strip() for line in storage.read_text(path).splitlines() if line.strip())
    if not ids:
        raise DataError(
            "the file names no row",
            where=path,
            expected="an id of a row a line",
            remedy="ids are those of data.columns.id, or as predictions and rejects show them",
        )
    return ids


def survey(
    ids: Collection[str],
    *,
    datasets: Sequence[str] = (),
    runs: Sequence[str] = (),
    models: Sequence[str] = (),
    files: Sequence[str] = (),
) -> Found:
    """Look for the rows everywhere; nothing is changed.

    Args:
        datasets: roots of datasets (data.dataset).
        runs: directories with run directories below, or run directories.
        models: published models, or directories (publish.directory) of them.
        files: files or directories of predictions and the like.
    """
    found = Found()
    hashes: dict[str, str] = {}
    for root in datasets:
        for version in _versions(root):
            rows = _in_shards(version, ids)
            found.files |= rows
            if rows:
                found.versions.append(version.path)
                hashes[version.manifest.dataset_hash] = version.path
            found.files |= _in_files([version.path], ids)
        own = [hash_ for hash_, path in hashes.items() if storage.parent(path) == root.rstrip("/")]
        found.hashes[root] = sorted(own)
        # Versions with these rows that an earlier call has removed: their models are still there.
        for hash_ in marks.load(root).versions_with(ids):
            hashes.setdefault(hash_, storage.join(root, f"v={hash_}"))
    found.files |= _in_files([*runs, *files], ids)
    found.models = [
        {**one, "dataset": hashes[one["dataset"]]}
        for one in (*_trained(runs), *_published(models))
        if one["dataset"] in hashes
    ]
    return found


def apply(
    ids: Collection[str],
    found: Found,
    *,
    datasets: Sequence[str] = (),
    runs: Sequence[str] = (),
    files: Sequence[str] = (),
    progress: Progress,
) -> list[str]:
    """Make versions without the rows, remove those with them, take the rows out of other files;
    the paths that were made or changed.

    A kill at any step loses nothing that stays: a new version is committed before an old one goes.
    The ids are marked (howdah/lineage/forgotten.py), so that the ETL leaves them out where they
    come again and no run of a version that had them is published.
    """
    changed = []
    for root in datasets:
        # Before anything goes: where this is interrupted, the rows do not come back, nor is a model
        # of theirs published.
        marked = marks.add(root, ids, found.hashes.get(root, []), _user())
        if marked is not None:
            progress(f"marked in {marked}")
            changed.append(marked)
        changed += _dataset(root, ids, found, progress)
    for path in found.files:
        inside = any(path.startswith(f"{base.rstrip('/')}/") for base in (*runs, *files))
        if (inside or path in files) and storage.exists(path):
            _take_out(path, ids)
            progress(f"taken out of {path}")
            changed.append(path)
    return changed


def model_lines(one: dict) -> list[str]:
    """A run or published model of `Found.models`, for the user."""
    state = ", which is current" if one.get("current") else ""
    lines = [f"trained on such rows: {one['path']}{state} ({one['dataset']})"]
    if one.get("scored"):
        tables = ", ".join(one["scored"])
        lines.append(f"    scored {tables}: give their directories as --files")
    return lines


def refuse_left(left: Found) -> None:
    """Fail if the scan afterwards finds one of the rows.

    Raises:
        DataError: it does.
    """
    if left.files:
        few = list(left.files.items())[:5]
        raise DataError(
            "rows that were to be forgotten are still there",
            where=", ".join(path for path, _ in few),
            expected="no file with one of the ids",
            got=f"{len(left.files):,} files: " + ", ".join(f"{n:,} in {path}" for path, n in few),
            remedy="remove these files, or run `howdah forget` again when nothing writes to them",
        )


def _user() -> str:
    return redact.text(user_and_host())


# ------------------------------------------------------------------------------------ datasets
def _versions(root: str) -> list[Dataset]:
    if storage.exists(storage.join(root, MANIFEST)):
        raise DataError(
            "a version cannot forget by itself: later ones hold its rows too",
            where=root,
            expected="the dataset's directory, with its versions v=<hash>",
            remedy=f"give {storage.parent(root)}",
        )
    entries = [e for e in storage.list_dir(root) if e.is_dir and e.name.startswith("v=")]
    whole = [e.path for e in entries if storage.exists(storage.join(e.path, MANIFEST))]
    return [load_dataset(path) for path in whole]


def _in_shards(version: Dataset, ids: Collection[str]) -> dict[str, int]:
    """{path: rows} of the version's shards, those in directories of older versions too."""
    found = {}
    for shards in version.manifest.splits.values():
        for entry in shards:
            rows = rewrite.rows_of(version, entry)
            count = sum(is_one_of(row_id.decode("utf-8"), ids) for _, _, row_id in rows)
            if count:
                found[version.shard_path(entry)] = count
    return found


def _dataset(root: str, ids: Collection[str], found: Found, progress: Progress) -> list[str]:
    """A new newest version if need be; versions that have the rows go, and those that need files
    of them."""
    latest = newest(root)
    versions = _versions(root)
    stained = {v.path for v in versions if any(f.startswith(f"{v.path}/") for f in found.files)}
    stained |= {v.path for v in versions if v.path in found.versions}
    while True:
        more = {
            version.path
            for version in versions
            if version.path not in stained and _directories(version) & stained
        }
        if not more:
            break
        stained |= more
    if not stained:
        return []
    changed = []
    if latest.path in stained:
        made = rewrite.without(latest, ids, progress)
        changed.append(made.path)
        stained.discard(made.path)
    # Children first: a version whose files are gone must not be there to be read.
    for version in sorted(versions, key=lambda v: v.manifest.created, reverse=True):
        if version.path in stained:
            storage.remove(storage.join(version.path, MANIFEST))
    for path in sorted(stained):
        storage.remove(path, recursive=True)
        progress(f"removed {path}")
    return [*changed, *sorted(stained)]


def _directories(version: Dataset) -> set[str]:
    entries = [entry for shards in version.manifest.splits.values() for entry in shards]
    ledger = version.manifest.ledger
    return {version.directory(entry) for entry in (*entries, *(ledger.files if ledger else ()))}


# --------------------------------------------------------------------------------------- models
def _trained(places: Sequence[str]) -> Iterator[dict]:
    """{path, dataset: its hash, run_id} of the exports below run directories."""
    for path in _below(places):
        if storage.name(path) == EXPORT_INFO:
            info = _json(path)
            dataset = info.get("dataset") or {}
            yield {
                "path": storage.parent(path), "dataset": dataset.get("hash"),
                "run_id": info.get("run_id"),
            }  # fmt: skip


def _published(places: Sequence[str]) -> Iterator[dict]:
    for place in places:
        roots = [place]
        if not Published(place).numbers():
            roots = [entry.path for entry in storage.list_dir(place) if entry.is_dir]
        for model in map(Published, roots):
            now = (model.current() or {}).get("version")
            for number in model.versions():
                manifest = model.version(number)
                dataset = manifest.get("dataset") or {}
                yield {
                    "path": model.path_of(number), "dataset": dataset.get("hash"),
                    "run_id": manifest.get("run_id"), "current": number == now,
                    "scored": scored.tables(model.root, number),
                }  # fmt: skip


def _json(path: str) -> dict:
    try:
        value = storage.read_json(path)
    except HowdahError:
        return {}
    return value if isinstance(value, dict) else {}


# ---------------------------------------------------------------------------------------- files
def _below(places: Sequence[str]) -> Iterator[str]:
    """Files of directories, and of those below; files that are named."""
    for place in places:
        try:
            if not storage.is_dir(place):
                yield storage.entry(place).path
                continue
            entries = storage.list_dir(place)
        except NotFound:
            continue
        for entry in entries:
            if entry.is_dir:
                yield from _below([entry.path])
            else:
                yield entry.path


def _in_files(places: Sequence[str], ids: Collection[str]) -> dict[str, int]:
    counts = {path: _count(path, ids) for path in _below(places)}
    return {path: count for path, count in counts.items() if count}


def _count(path: str, ids: Collection[str]) -> int:
    """Rows, or mentions, of the ids in a file."""
    if path.endswith(".parquet"):
        return sum(not stays for stays in _kept(_table(path), ids))
    if path.endswith(_BINARY):
        return 0
    text = storage.read_bytes(path).decode("utf-8", "replace")
    return sum(1 for _ in mentions(text, ids))


def _table(path: str) -> pa.Table:
    with storage.open_read(path) as file:
        return pq.read_table(pa.PythonFile(file, "r"))


def _kept(table: pa.Table, ids: Collection[str]) -> list[bool]:
    """Whether each row has none of the ids in any of its columns of text."""
    kept = [True] * table.num_rows
    for name, kind in zip(table.schema.names, table.schema.types, strict=True):
        if name == "id" and pa.types.is_integer(kind):  # of a scored table
            for n, value in enumerate(table.column(name).to_pylist()):
                kept[n] = kept[n] and str(value) not in ids
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            for n, value in enumerate(table.column(name).to_pylist()):
                # a rejected row's detail names the row that it is a copy of
                if value is not None and next(mentions(value, ids), None) is not None:
                    kept[n] = False
    return kept


def _take_out(path: str, ids: Collection[str]) -> None:
    """Rewrite a file without the rows; of texts that are no rows, without the mentions."""
    if path.endswith(".parquet"):
        table = _table(path)
        buffer = io.BytesIO()
        pq.write_table(table.filter(pa.array(_kept(table, ids), pa.bool_())), buffer)
        storage.write_whole(path, buffer.getvalue())
        return
    text = storage.read_bytes(path).decode("utf-8", "replace")
    if path.endswith((".csv", ".tsv")):
        text = _without_records(text, "\t" if path.endswith(".tsv") else ",", ids)
    elif path.endswith((".jsonl", ".ndjson")):
        lines = text.splitlines(keepends=True)
        text = "".join(line for line in lines if next(mentions(line, ids), None) is None)
    elif path.endswith((".html", ".json")) and storage.name(path).startswith("report"):
        # Beside the id there may be the text. Its command makes it again.
        storage.remove(path)
        return
    text = without_mentions(text, ids)
    if path.endswith(".json"):
        json.loads(text)  # still whole
    storage.write_whole(path, text.encode())


def _without_records(text: str, delimiter: str, ids: Collection[str]) -> str:
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=delimiter, lineterminator="\n")
    for row in rows:
        if not any(next(mentions(value, ids), None) for value in row):
            writer.writerow(row)
    return out.getvalue()
