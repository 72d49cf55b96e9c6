"""Find the rows of a dataset that are to be forgotten.

Shards are searched by the indexes of ids beside them (data/id_index.py): each once, however
many versions name it, and only those that may have one of the rows are read. Other files are read
by their columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

import numpy as np

from howdah import storage
from howdah.data import id_index
from howdah.data.files.listing import of_each
from howdah.data.lineage.rows import rows_of
from howdah.data.manifest import MANIFEST, Dataset, ShardEntry
from howdah.errors import DataError, NotFound
from howdah.etl.history.artefacts import judge, read_table, without_rejected
from howdah.etl.history.mentions import Targets, original, text_id
from howdah.etl.history.rewrite import manifest_without
from howdah.etl.workspace import staging


# -------------------------------------------------------------------------------------- records
def in_shards(
    versions: Sequence[Dataset], ids: Collection[str], met: set[str]
) -> tuple[dict[str, int], frozenset[str]]:
    """({path of a shard: rows}, ids of copies) of all versions of a dataset.

    Args:
        met: ids that a row has are added.

    A copy (id#2, of class balance) has the id of a row with a number behind it, and the tokens and
    label of that row: by the name alone `page#12` would be taken for a copy of `page`.
    """
    shards = {
        version.shard_path(entry): (version, entry)
        for version in versions
        for entries in version.manifest.splits.values()
        for entry in entries
    }
    id_set = frozenset(ids)
    hashes = np.array([id_index.hash_of(one.encode("utf-8")) for one in id_set], np.uint64)
    escaped = any("\\x" in one for one in id_set)  # text_id escapes bytes that are not UTF-8
    may_have = of_each(list(shards.values()), lambda one: escaped or _may_have(*one, hashes))
    likely = [path for path, may in zip(shards, may_have, strict=True) if may]
    held: dict[str, set[bytes]] = {}
    numbered: list[tuple[str, str, bytes]] = []
    counts: dict[str, int] = {}
    for path in likely:
        for ids_T, label, record_id in rows_of(*shards[path]):
            row_id = text_id(record_id)
            if row_id in id_set:
                counts[path] = counts.get(path, 0) + 1
                held.setdefault(row_id, set()).add(_contents(ids_T, label))
            elif original(row_id) in id_set:
                numbered.append((path, row_id, _contents(ids_T, label)))
    met.update(held)  # |= with a view of keys would bind `met` to a new set
    copies = set()
    for path, row_id, contents in numbered:
        if contents in held.get(original(row_id) or "", ()):
            counts[path] = counts.get(path, 0) + 1
            copies.add(row_id)
    return counts, frozenset(copies)


def _may_have(version: Dataset, entry: ShardEntry, hashes: np.ndarray) -> bool:
    path = id_index.name_of(version.shard_path(entry))
    try:
        data = storage.read_bytes(path)
    except NotFound:
        raise id_index.missing(path) from None
    return bool(np.isin(hashes, id_index.of_file(data, path)).any())


def _contents(ids_T: np.ndarray, label: object) -> bytes:
    return sha256(ids_T.tobytes() + repr(label).encode()).digest()


def in_records(version: Dataset, targets: Targets) -> int:
    """Rows of a version, all of whose records are read."""
    return sum(
        targets.has(text_id(row_id))
        for entries in version.manifest.splits.values()
        for entry in entries
        for _, _, row_id in rows_of(version, entry)
    )


# ---------------------------------------------------------------------------------- other files
def in_files(version: Dataset, targets: Targets) -> dict[str, int]:
    """{path: rows} of the files in a version's directory that its manifest names, and of itself."""
    counts = {}
    manifest = version.manifest
    for name in manifest.quality.get("reject_files", []):
        path = storage.join(version.path, name)
        counts[path] = without_rejected(read_table(path), targets)[1]
    for file in manifest.ledger.files if manifest.ledger is not None else ():
        if file.kind == "rows" and file.version is None:
            columns = read_table(version.ledger_path(file), ["id", "cluster"]).columns
            pairs = zip(*(column.to_pylist() for column in columns), strict=True)
            counts[version.ledger_path(file)] = sum(
                row_id in targets.exact or cluster in targets.exact for row_id, cluster in pairs
            )
    # The reports say what the manifest says, and beginnings of texts of the version's own rows.
    counts[storage.join(version.path, MANIFEST)] = manifest_without(manifest, targets)[1]
    return {path: count for path, count in counts.items() if count}


@dataclass(kw_only=True)
class Directory:
    """The files in a version's directory that its manifest does not name."""

    leftovers: dict[str, int] = field(default_factory=dict)
    """{path: rows, as far as it can be read} of files of runs that have not ended well."""
    others: list[str] = field(default_factory=list)
    """Files that the ETL did not write."""
    live: bool = False
    """A run writes to it."""


def directory(path: str, targets: Targets) -> Directory:
    """Look at a version's directory, which need not have a manifest."""
    contents, names = Directory(), staging.manifest_names(path)
    for entry in below(path):
        relative = entry.path[len(path.rstrip("/")) + 1 :]
        top = relative.partition("/")[0]
        if staging.LEASE.fullmatch(relative):
            contents.live = contents.live or staging.is_live(entry.path)
        elif relative in (names or ()):
            continue
        elif staging.is_ours(relative) or (names is None and relative in staging.REPORTS):
            rows = 0
            if entry.name.endswith(".parquet"):
                rows = judge(entry.path, targets, ("id",)).count
            contents.leftovers[entry.path] = rows
        elif top != "_SUCCESS":
            contents.others.append(entry.path)
    return contents


def below(path: str) -> Iterator[storage.Entry]:
    """The files of a directory and of those in it, hidden ones too; none of one that is gone."""
    try:
        entries = storage.list_dir(path, unfinished=True)
    except NotFound:
        return
    for entry in entries:
        if entry.is_dir:
            yield from below(entry.path)
        else:
            yield entry


def refuse_unclean(version: Dataset, targets: Targets) -> None:
    """Fail if a version that was made without the rows has one: before an old one is removed.

    Raises:
        DataError: it has; nothing was removed.
    """
    rows, files = in_records(version, targets), in_files(version, targets)
    if rows or files:
        raise DataError(
            "the new version still has some of the rows, so the old versions were kept",
            where=version.path,
            got=f"{rows:,} rows in shards; " + ", ".join(f"{n:,} in {p}" for p, n in files.items()),
            remedy="remove this version's directory, and report it as a defect",
        )
