"""Forget rows: versions without them, the old ones removed, and a scan of what Howdah writes.

Rewritten: versions of datasets (records, ledger, rejected rows, manifest), predictions and other
Parquet with a column of ids, reports of runs, markers of scored partitions. Every other file below
the places that may name a row is listed for a person to look at, and neither read nor changed
(etl/history/artefacts.py). Models are not changed: those trained on one of the rows are listed, to
be trained again without them.

A survey comes first and changes nothing; `howdah model forget` goes on only with --apply, for what
it removes cannot be brought back.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from howdah import redact, storage
from howdah.core.activity import Progress
from howdah.core.user import user_and_host
from howdah.data.lineage import forgotten as marks
from howdah.data.lineage.shards import versions as versions_below
from howdah.data.manifest import MANIFEST, Dataset, newest, version_hash, version_name
from howdah.errors import DataError, NotFound
from howdah.etl.history import artefacts, in_dataset, rewrite, trained
from howdah.etl.history.mentions import NOTHING, Targets
from howdah.etl.workspace import staging
from howdah.run_files import RUN_JSON

_NO_ROWS = ("attempts", "checkpoints", "export", "tensorboard", "wandb")
"""Directories of a run with weights, tokenizers and plots: nothing in them comes from a row."""
_MOST_LISTED = 20


@dataclass(kw_only=True)
class Survey:
    """The places of the rows that are to be forgotten."""

    files: dict[str, int] = field(default_factory=dict)
    """{path: rows}"""
    versions: list[str] = field(default_factory=list)
    """Dataset versions with one of them in a shard."""
    hashes: dict[str, list[str]] = field(default_factory=dict)
    """{root of a dataset: hashes of its versions that have one of them in a shard}."""
    models: list[dict] = field(default_factory=list)
    """Runs and published models trained on such a version: {path, dataset, run_id, status: of a run
    that has no export of it, current: whether it is the one that is served, scored: tables that it
    has scored}."""
    tables: list[str] = field(default_factory=list)
    """Partitions of data.rejects_table with the rejected rows of such versions."""
    nowhere: list[str] = field(default_factory=list, repr=False)
    """Ids that are in no file that was read, and that no earlier call has forgotten."""
    leftovers: dict[str, int] = field(default_factory=dict)
    """{path: rows, as far as they can be read} of files of ETL runs that have not ended well."""
    listed: list[dict[str, str]] = field(default_factory=list)
    """Files that a person must look at, since they were not read: {path, why: it may name the rows,
    look: how to look}."""
    blocked: list[dict[str, str]] = field(default_factory=list)
    """Directories on account of which nothing is changed: {path, why, remedy}."""
    missing: list[str] = field(default_factory=list)
    """Places that do not exist."""
    targets: Targets = field(default=NOTHING, repr=False)
    """The ids, and those of copies."""
    affected: frozenset[str] = field(default=frozenset(), repr=False)
    """Paths of versions that name one of the rows."""
    columns: tuple[str, ...] = ("id",)
    """Columns that hold ids."""

    def as_dict(self) -> dict:
        """The JSON of the command, without ids; `all_read` is false if a person must look."""
        kept = (
            "files", "versions", "hashes", "models", "tables", "leftovers", "listed", "blocked",
            "missing",
        )  # fmt: skip
        more = {"all_read": self.all_read, "ids_nowhere": len(self.nowhere)}
        return {name: getattr(self, name) for name in kept} | more

    @property
    def all_read(self) -> bool:
        """Whether no place is missing and no file is left for a person to look at."""
        return not (self.listed or self.missing)


def read_ids(path: str) -> frozenset[str]:
    """The ids in a UTF-8 file, one per line. Only LF and CR LF end a line, since any other
    character could be part of an id. A byte order mark is ignored.

    Raises:
        DataError: the file is in another encoding, or has no ids.
    """
    try:
        text = storage.read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            "the file of ids is not UTF-8",
            where=f"{path}, byte {error.start}",
            expected="UTF-8 text with one row id per line",
            remedy="save it as UTF-8, or convert it: iconv -f UTF-16 -t UTF-8",
        ) from None
    ids = frozenset(line.strip(" \t\r") for line in text.split("\n")) - {""}
    if not ids:
        raise DataError(
            "the file names no row",
            where=path,
            expected="one row id per line",
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
    id_columns: Sequence[str] = (),
) -> Survey:
    """Look for the rows everywhere; nothing is changed.

    Args:
        datasets: roots of datasets (data.dataset).
        runs: directories with run directories below, or run directories.
        models: published models, or directories (publish.directory) of them.
        files: files or directories of predictions and the like.
        id_columns: columns of Parquet that hold ids, besides `id` and what the datasets'
            manifests name.
    """
    result, hashes = Survey(), {}
    by_root = {root: _versions(root) for root in datasets}
    marked = {root: marks.load(root) for root in datasets}
    rows: dict[str, int] = {}
    copies: frozenset[str] = frozenset()
    met: set[str] = set()
    for versions in by_root.values():
        shard_rows, more = in_dataset.in_shards(versions, ids, met)
        rows, copies = rows | shard_rows, copies | more
    all_marks = tuple(marked.values())
    result.targets = Targets(ids=frozenset(ids), copies=copies, marks=all_marks, met=met)
    mapped = [v.manifest.source.get("columns") for dataset in by_root.values() for v in dataset]
    named = [one.get("id") for one in mapped if one is not None]
    result.columns = tuple(dict.fromkeys(["id", *id_columns, *filter(None, named)]))
    for root, versions in by_root.items():
        for version in versions:
            _of_version(version, rows, result, hashes)
        result.hashes[root] = sorted(
            hash_ for hash_, path in hashes.items() if storage.parent(path) == root.rstrip("/")
        )
        _beside(root, result)
        # Versions with these rows that an earlier call has removed: their models are still there.
        for hash_ in marked[root].versions_with(ids):
            hashes.setdefault(hash_, storage.join(root, version_name(hash_)))
    for path in _below([*runs, *files, *trained.markers(models)], datasets, result):
        _look(path, result)
    forgotten = {one for one in ids if any(mark.when(one) for mark in marked.values())}
    result.nowhere = sorted(frozenset(ids) - met - forgotten)
    result.models = [
        {**one, "dataset": hashes[one["dataset"]]}
        for one in (*trained.of_runs(runs), *trained.published(models))
        if one["dataset"] in hashes
    ]
    return result


def apply(
    ids: Collection[str], result: Survey, *, datasets: Sequence[str] = (), progress: Progress
) -> list[str]:
    """Make versions without the rows, take the rows out of Howdah's other files, remove the
    versions with them; the paths that were made, changed or removed.

    A kill at any step loses nothing that stays: an old version goes when all new ones are committed
    and were looked through. The ids are marked (data/lineage/forgotten.py), so that the ETL
    leaves them out where they come again and no run of a version that had them is published.

    Args:
        result: of `survey`, with the same datasets.
    Raises:
        DataError: a dataset may not be changed now, or a new version is not clean; nothing was
            removed.
    """
    refuse_blocked(result)
    changed, affected = [], {}
    for root in datasets:
        # Before anything goes: where this is interrupted, the rows do not come back, nor is a model
        # of theirs published.
        all_ids = [*ids, *result.targets.copies]
        user = redact.text(user_and_host())
        marked = marks.add(root, all_ids, result.hashes.get(root, []), user)
        if marked is not None:
            progress(f"marked in {marked}")
            changed.append(marked)
    for root in datasets:
        made, affected[root] = _made(root, result, progress)
        changed += made
    for path in result.files:
        inside = any(path.startswith(f"{one}/") for paths in affected.values() for one in paths)
        if not inside and storage.exists(path):
            _take_out(path, result)
            progress(f"removed rows from {path}")
            changed.append(path)
    for root in datasets:
        changed += _remove(root, affected[root], progress)
        if any(path.startswith(f"{root.rstrip('/')}/") for path in result.leftovers):
            for path in staging.sweep(root, whole_stays=False):
                progress(f"removed leftovers of a dead run: {path}")
    return changed


def refuse_blocked(result: Survey) -> None:
    """Fail if a dataset below the places may not be changed.

    Raises:
        DataError: there is one.
    """
    if result.blocked:
        first = result.blocked[:_MOST_LISTED]
        raise DataError(
            "nothing was changed: some datasets must not be changed now",
            where=", ".join(one["path"] for one in first),
            got="; ".join(f"{one['path']}: {one['why']}" for one in first),
            remedy="; ".join(dict.fromkeys(one["remedy"] for one in result.blocked)),
        )


def found_lines(result: Survey) -> list[str]:
    """The whole survey, for the user."""
    lines = [f"{path}: {count:,}" for path, count in result.files.items()]
    lines += [f"{path}: left by a dead run" for path in result.leftovers]
    lines += [f"not found: {path}: check the path" for path in result.missing]
    lines += [
        f"look at {one['path']}: {one['why']}: {one['look']}"
        for one in result.listed[:_MOST_LISTED]
    ]
    if (more := len(result.listed) - _MOST_LISTED) > 0:
        lines.append(f"look at {more:,} more files: --json lists all")
    if result.listed:
        lines.append("(IDS is the file of ids; grep needs it without blank lines and Windows' CR)")
    lines += [
        f"--apply is refused: {one['path']}: {one['why']}: {one['remedy']}"
        for one in result.blocked
    ]
    for one in result.models:
        lines += trained.model_lines(one)
    lines += [
        f"rejected rows of such a version are in {table}: drop the partition there"
        for table in result.tables
    ]
    return lines + nowhere_lines(result)


def nowhere_lines(result: Survey) -> list[str]:
    """A line about ids that are nowhere: mistyped, in places that were not given, or in files that
    are listed."""
    if not result.nowhere:
        return []
    few = ", ".join(repr(one)[:80] for one in result.nowhere[:_MOST_LISTED])
    more = ", ..." if len(result.nowhere) > _MOST_LISTED else ""
    count = f"{len(result.nowhere):,} of {len(result.targets.ids):,} ids"
    return [f"{count} are in none of the files that were read: {few}{more}"]


def refuse_left(left: Survey) -> None:
    """Fail if the scan afterwards finds one of the rows.

    Raises:
        DataError: it does.
    """
    remaining = {**left.files, **left.leftovers}
    if remaining:
        few = list(remaining.items())[:5]
        raise DataError(
            "some of the rows to forget are still there",
            where=", ".join(path for path, _ in few),
            got=f"{len(remaining):,} files: " + ", ".join(f"{n:,} in {path}" for path, n in few),
            remedy="remove these files, or run `howdah model forget` again when nothing writes to"
            " them",
        )


# ------------------------------------------------------------------------------------ datasets
def _versions(root: str) -> list[Dataset]:
    if storage.exists(storage.join(root, MANIFEST)):
        raise DataError(
            "rows cannot be removed from a single version: later ones hold them too",
            where=root,
            expected="the dataset's directory, with its versions v=<hash>",
            remedy=f"give {storage.parent(root)}",
        )
    return versions_below(root)


def _of_version(
    version: Dataset, rows: dict[str, int], result: Survey, hashes: dict[str, str]
) -> None:
    """Add what a version has: in shards, those in directories of older versions too, and in other
    files."""
    shards = [
        version.shard_path(e) for entries in version.manifest.splits.values() for e in entries
    ]
    in_shards = {path: rows[path] for path in shards if path in rows}
    if in_shards:
        result.versions.append(version.path)
        hashes[version.manifest.dataset_hash] = version.path
    more = in_dataset.in_files(version, result.targets)
    result.files |= in_shards | more
    if in_shards or more:
        result.affected |= {version.path}
        if table := version.manifest.quality.get("rejects_table"):
            result.tables.append(f"{table}, partition dataset={version.manifest.dataset_hash}")


def _beside(root: str, result: Survey) -> None:
    """Add what lies in the dataset's directory besides what manifests name."""
    for entry in storage.list_dir(root):
        if entry.is_dir and version_hash(entry.name) is not None:
            inside = in_dataset.directory(entry.path, result.targets)
            result.leftovers |= inside.leftovers
            for path in inside.others:
                _look(path, result)
            if inside.live:
                why = "an ETL run writes to this version, and may have read the rows already"
                remedy = "wait until it is over, or stop it"
                result.blocked.append({"path": entry.path, "why": why, "remedy": remedy})
        elif entry.name != marks.DIRECTORY and not entry.name.startswith("_turn-"):
            for path in _below([entry.path], (), result):
                _look(path, result)


def _made(root: str, result: Survey, progress: Progress) -> tuple[list[str], set[str]]:
    """(a new newest version if need be, versions that have the rows and those that need files of
    them)."""
    latest, versions = newest(root), _versions(root)
    affected = {version.path for version in versions} & result.affected
    while True:
        more = {
            version.path
            for version in versions
            if version.path not in affected and _directories(version) & affected
        }
        if not more:
            break
        affected |= more
    if latest is None or latest.path not in affected:
        return [], affected
    made = rewrite.without(latest, result.targets, progress)
    if (mode := storage.entry(latest.path).mode) is not None:
        storage.set_mode(made.path, mode)
    in_dataset.refuse_unclean(made, result.targets)
    return [made.path], affected - {made.path}


def _remove(root: str, affected: Collection[str], progress: Progress) -> list[str]:
    """Remove versions. Children first: a version whose files are gone must not be there to be
    read."""
    if not affected:
        return []
    for version in sorted(_versions(root), key=lambda v: v.manifest.created, reverse=True):
        if version.path in affected:
            storage.remove(storage.join(version.path, MANIFEST))
    for path in sorted(affected):
        storage.remove(path, recursive=True)
        progress(f"removed {path}")
    return sorted(affected)


def _directories(version: Dataset) -> set[str]:
    entries = [entry for shards in version.manifest.splits.values() for entry in shards]
    ledger = version.manifest.ledger
    return {version.directory(entry) for entry in (*entries, *(ledger.files if ledger else ()))}


# ---------------------------------------------------------------------------------------- files
def _below(places: Sequence[str], datasets: Sequence[str], result: Survey) -> Iterator[str]:
    """Files that may have rows: of directories, and of those below; files that are named.

    A dataset among them is not looked through as files: it blocks changes, unless its root is one
    of `datasets`.
    """
    roots = {storage.absolute(root).rstrip("/") for root in datasets}
    for place in places:
        if storage.absolute(place).rstrip("/") in roots:
            continue
        try:
            if not storage.is_dir(place):
                yield storage.entry(place).path
                continue
            entries = storage.list_dir(place, unfinished=True)
        except NotFound:
            result.missing.append(place)
            continue
        if version_hash(place) is not None and any(".tfrecord" in entry.name for entry in entries):
            root = storage.parent(place.rstrip("/"))
            if storage.absolute(root) not in roots:
                why, remedy = "it is a version of a dataset", f"give its root too: --dataset {root}"
                result.blocked.append({"path": place, "why": why, "remedy": remedy})
            continue
        run = any(entry.name == RUN_JSON for entry in entries)
        for entry in entries:
            if not entry.is_dir:
                yield entry.path
            elif not (run and entry.name in _NO_ROWS):
                yield from _below([entry.path], datasets, result)


def _look(path: str, result: Survey) -> None:
    """Add what a file has."""
    judged = artefacts.judge(path, result.targets, result.columns)
    if judged.count:
        result.files[path] = judged.count
    if judged.listed is not None:
        result.listed.append({"path": path, **vars(judged.listed)})


def _take_out(path: str, result: Survey) -> None:
    """Rewrite a file without the rows; a page that shows one is removed."""
    if storage.is_local(path):  # a link's target has the rows
        path = os.path.realpath(storage.local_path(path))
    judged = artefacts.judge(path, result.targets, result.columns, rewrite=True)
    if not judged.count:
        return
    if judged.data is None:
        storage.remove(path)
    else:
        storage.write_whole(path, judged.data, mode=storage.entry(path).mode)
    checksum = storage.join(storage.parent(path), f".{storage.name(path)}.crc")
    if storage.is_local(path) and storage.exists(checksum):  # Hadoop's, of the old file
        storage.remove(checksum)
