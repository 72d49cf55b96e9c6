"""Forget rows: versions without them, the old ones removed, and a scan that finds none.

Looked at: versions of datasets (records, ledger, rejected rows, manifest), run directories
(predictions, reports, logs), markers of scored partitions, and further files such as predictions
elsewhere. Where ids stand in each is known by its structure (etl/history/artefacts.py); a file of
which it is not known is listed with what to do. Models are not changed: those trained on one of the
rows are listed, to be trained again without them.

A survey comes first and changes nothing; `howdah forget` goes on only with --apply, for what it
removes cannot be brought back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from howdah import redact, storage
from howdah.core.activity import Progress
from howdah.core.user import user_and_host
from howdah.data.lineage import forgotten as marks
from howdah.data.manifest import MANIFEST, Dataset, load_dataset, newest
from howdah.errors import DataError, NotFound
from howdah.etl.history import artefacts, in_dataset, rewrite, trained
from howdah.etl.history.mentions import NOTHING, Wanted
from howdah.etl.workspace import staging
from howdah.run_files import RUN_JSON

_NO_ROWS = ("attempts", "checkpoints", "export", "tensorboard")
"""Directories of a run: weights, tokenizers, plots. A number or word in them is none of a row."""
_MOST_LISTED = 20


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
    """Runs and published models trained on such a version: {path, dataset, run_id, status: of a run
    that has no export of it, current: whether it is the one that is served, scored: tables that it
    has scored}."""
    tables: list[str] = field(default_factory=list)
    """Partitions of data.rejects_table with the rejected rows of such versions."""
    nowhere: list[str] = field(default_factory=list, repr=False)
    """Ids that were not found anywhere, and that no earlier call has forgotten."""
    leftovers: dict[str, int] = field(default_factory=dict)
    """{path: rows, as far as they can be read} of files of ETL runs that have not ended well."""
    unread: list[dict] = field(default_factory=list)
    """Files in which ids could not be looked for, or not all of them: {path, why, remedy, stops:
    whether nothing is changed while it is there}."""
    wanted: Wanted = field(default=NOTHING, repr=False)
    """The ids, and those of copies."""
    stained: frozenset[str] = field(default=frozenset(), repr=False)
    """Paths of versions that name one of the rows."""
    columns: tuple[str, ...] = ("id",)
    """Columns and keys that hold ids."""

    def as_dict(self) -> dict:
        """For --json: without ids."""
        kept = ("files", "versions", "hashes", "models", "tables", "leftovers", "unread")
        return {name: getattr(self, name) for name in kept} | {"ids_nowhere": len(self.nowhere)}


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
) -> Found:
    """Look for the rows everywhere; nothing is changed.

    Args:
        datasets: roots of datasets (data.dataset).
        runs: directories with run directories below, or run directories.
        models: published models, or directories (publish.directory) of them.
        files: files or directories of predictions and the like.
        id_columns: columns and keys of tables that hold ids, besides `id` and what the datasets'
            manifests name.
    """
    found, hashes = Found(), {}
    known = {root: _versions(root) for root in datasets}
    marked = {root: marks.load(root) for root in datasets}
    rows: dict[str, int] = {}
    copies: frozenset[str] = frozenset()
    met: set[str] = set()
    for versions in known.values():
        shard_rows, more = in_dataset.in_shards(versions, ids, met)
        rows, copies = rows | shard_rows, copies | more
    found.wanted = Wanted(ids=frozenset(ids), copies=copies, marks=tuple(marked.values()), met=met)
    mapped = [v.manifest.source.get("columns") for dataset in known.values() for v in dataset]
    named = [one.get("id") for one in mapped if isinstance(one, dict)]
    found.columns = tuple(dict.fromkeys(["id", *id_columns, *filter(None, named)]))
    for root, versions in known.items():
        for version in versions:
            _of_version(version, rows, found, hashes)
        found.hashes[root] = sorted(
            hash_ for hash_, path in hashes.items() if storage.parent(path) == root.rstrip("/")
        )
        _beside(root, versions, found)
        # Versions with these rows that an earlier call has removed: their models are still there.
        for hash_ in marked[root].versions_with(ids):
            hashes.setdefault(hash_, storage.join(root, f"v={hash_}"))
    for places, present in ((runs, False), (files, True), (trained.markers(models), False)):
        for path in _below(places, datasets, found):
            _look(path, found, given=present)
    forgotten = {one for one in ids if any(mark.when(one) for mark in marked.values())}
    found.nowhere = sorted(frozenset(ids) - met - forgotten)
    found.models = [
        {**one, "dataset": hashes[one["dataset"]]}
        for one in (*trained.of_runs(runs), *trained.published(models))
        if one["dataset"] in hashes
    ]
    return found


def apply(
    ids: Collection[str],
    found: Found,
    *,
    datasets: Sequence[str] = (),
    runs: Sequence[str] = (),
    models: Sequence[str] = (),
    files: Sequence[str] = (),
    progress: Progress,
) -> list[str]:
    """Make versions without the rows, take the rows out of other files, remove the versions with
    them; the paths that were made, changed or removed.

    A kill at any step loses nothing that stays: an old version goes when all new ones are committed
    and were looked through. The ids are marked (data/lineage/forgotten.py), so that the ETL
    leaves them out where they come again and no run of a version that had them is published.

    Args:
        found: of `survey`, with the same places.
    Raises:
        DataError: a file with rows cannot be rewritten, or a new version is not clean; nothing was
            removed.
    """
    refuse_unread(found)
    for line in unread_lines(found):
        progress(line)
    changed, stained = [], {}
    for root in datasets:
        # Before anything goes: where this is interrupted, the rows do not come back, nor is a model
        # of theirs published.
        known = [*ids, *found.wanted.copies]
        marked = marks.add(root, known, found.hashes.get(root, []), _user())
        if marked is not None:
            progress(f"marked in {marked}")
            changed.append(marked)
    for root in datasets:
        made, stained[root] = _made(root, found, progress)
        changed += made
    for path in found.files:
        inside = any(path.startswith(f"{one}/") for own in stained.values() for one in own)
        if not inside and storage.exists(path):
            _take_out(path, found, given=_is_below(path, files))
            progress(f"taken out of {path}")
            changed.append(path)
    for root in datasets:
        changed += _remove(root, stained[root], progress)
        if any(path.startswith(f"{root.rstrip('/')}/") for path in found.leftovers):
            for path in staging.sweep(root):
                progress(f"removed what a dead run had left: {path}")
    return changed


def unread_lines(found: Found) -> list[str]:
    """`Found.unread`, for the user: what stops everything first."""
    ordered = sorted(found.unread, key=lambda one: not one["stops"])
    lines = [
        f"{'cannot be rewritten' if one['stops'] else 'not looked through'}: {one['path']}:"
        f" {one['why']}; {one['remedy']}"
        for one in ordered[:_MOST_LISTED]
    ]
    if more := len(ordered) - len(lines):
        lines.append(f"and {more:,} files more: --json lists all")
    return lines


def refuse_unread(found: Found) -> None:
    """Fail if rows are to be expected in a file that cannot be rewritten by its structure.

    Raises:
        DataError: there is one.
    """
    stops = [one for one in found.unread if one["stops"]]
    if stops:
        raise DataError(
            "files cannot be rewritten without the rows: nothing is changed",
            where=", ".join(one["path"] for one in stops[:_MOST_LISTED]),
            expected="Parquet, CSV or JSON with a column of ids; datasets that no run writes to",
            got="; ".join(f"{one['path']}: {one['why']}" for one in stops[:_MOST_LISTED]),
            remedy="; ".join(dict.fromkeys(one["remedy"] for one in stops)),
        )


def found_lines(found: Found, *, unread: bool) -> list[str]:
    """All that was found, for the user.

    Args:
        unread: with the files that were not looked through.
    """
    return [
        *(f"{path}: {count:,}" for path, count in found.files.items()),
        *(f"{path}: left by a dead run" for path in found.leftovers),
        *(unread_lines(found) if unread else []),
        *(line for one in found.models for line in trained.model_lines(one)),
        *table_lines(found),
        *nowhere_lines(found),
    ]


def table_lines(found: Found) -> list[str]:
    """What this command does not change, for the user: rejected rows in Hive tables."""
    return [
        f"rejected rows of such a version are in {table}: drop the partition there"
        for table in found.tables
    ]


def nowhere_lines(found: Found) -> list[str]:
    """Lines about ids that were not found: mistyped, or in places that were not given."""
    if not found.nowhere:
        return []
    few = ", ".join(repr(one)[:80] for one in found.nowhere[:_MOST_LISTED])
    more = ", ..." if len(found.nowhere) > _MOST_LISTED else ""
    count = f"{len(found.nowhere):,} of {len(found.wanted.ids):,} ids"
    return [f"{count} were not found anywhere: {few}{more}"]


def refuse_left(left: Found) -> None:
    """Fail if the scan afterwards finds one of the rows.

    Raises:
        DataError: it does.
    """
    there = {**left.files, **left.leftovers}
    if there:
        few = list(there.items())[:5]
        raise DataError(
            "rows that were to be forgotten are still there",
            where=", ".join(path for path, _ in few),
            expected="no file with one of the ids",
            got=f"{len(there):,} files: " + ", ".join(f"{n:,} in {path}" for path, n in few),
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


def _of_version(
    version: Dataset, rows: dict[str, int], found: Found, hashes: dict[str, str]
) -> None:
    """Add what a version has: in shards, those in directories of older versions too, and in other
    files."""
    shards = [version.shard_path(e) for own in version.manifest.splits.values() for e in own]
    own = {path: rows[path] for path in shards if path in rows}
    if own:
        found.versions.append(version.path)
        hashes[version.manifest.dataset_hash] = version.path
    more = in_dataset.in_files(version, found.wanted)
    found.files |= own | more
    if own or more:
        found.stained |= {version.path}
        if table := version.manifest.quality.get("rejects_table"):
            found.tables.append(f"{table}, partition dataset={version.manifest.dataset_hash}")


def _beside(root: str, versions: Sequence[Dataset], found: Found) -> None:
    """Add what lies in the dataset's directory besides what manifests name."""
    manifests = {version.path: version.manifest for version in versions}
    for entry in storage.list_dir(root):
        if entry.is_dir and entry.name.startswith("v="):
            inside = in_dataset.directory(entry.path, manifests.get(entry.path), found.wanted)
            found.leftovers |= inside.leftovers
            for path in inside.others:
                _look(path, found, given=False)
            if inside.live:
                why = "an ETL run writes to this version, and may have read the rows already"
                remedy = "wait until it is over, or stop it"
                _unread(entry.path, artefacts.Unread(why=why, remedy=remedy, stops=True), found)
        elif entry.name != marks.DIRECTORY and not entry.name.startswith("_turn-"):
            for path in _below([entry.path], (), found):
                _look(path, found, given=False)


def _made(root: str, found: Found, progress: Progress) -> tuple[list[str], set[str]]:
    """(a new newest version if need be, versions that have the rows and those that need files of
    them)."""
    latest, versions = newest(root), _versions(root)
    stained = {version.path for version in versions} & found.stained
    while True:
        more = {
            version.path
            for version in versions
            if version.path not in stained and _directories(version) & stained
        }
        if not more:
            break
        stained |= more
    if latest is None or latest.path not in stained:
        return [], stained
    made = rewrite.without(latest, found.wanted, progress)
    in_dataset.refuse_unclean(made, found.wanted)
    return [made.path], stained - {made.path}


def _remove(root: str, stained: Collection[str], progress: Progress) -> list[str]:
    """Remove versions. Children first: a version whose files are gone must not be there to be
    read."""
    if not stained:
        return []
    for version in sorted(_versions(root), key=lambda v: v.manifest.created, reverse=True):
        if version.path in stained:
            storage.remove(storage.join(version.path, MANIFEST))
    for path in sorted(stained):
        storage.remove(path, recursive=True)
        progress(f"removed {path}")
    return sorted(stained)


def _directories(version: Dataset) -> set[str]:
    entries = [entry for shards in version.manifest.splits.values() for entry in shards]
    ledger = version.manifest.ledger
    return {version.directory(entry) for entry in (*entries, *(ledger.files if ledger else ()))}


# ---------------------------------------------------------------------------------------- files
def _below(places: Sequence[str], datasets: Sequence[str], found: Found) -> Iterator[str]:
    """Files that may have rows: of directories, and of those below; files that are named.

    A dataset among them is not looked through as files: it is noted as unread, unless its root is
    one of `datasets`.
    """
    for place in places:
        try:
            if not storage.is_dir(place):
                yield storage.entry(place).path
                continue
            entries = storage.list_dir(place, unfinished=True)
        except NotFound:
            missing = artefacts.Unread(why="there is nothing", remedy="check the path", stops=False)
            _unread(place, missing, found)
            continue
        if storage.name(place.rstrip("/")).startswith("v=") and _is_version(entries):
            root = storage.parent(place.rstrip("/"))
            if root not in [one.rstrip("/") for one in datasets]:
                why, remedy = "it is a version of a dataset", f"give its root too: --dataset {root}"
                _unread(place, artefacts.Unread(why=why, remedy=remedy, stops=True), found)
            continue
        run = any(entry.name == RUN_JSON for entry in entries)
        for entry in entries:
            if not entry.is_dir:
                yield entry.path
            elif not (run and entry.name in _NO_ROWS):
                yield from _below([entry.path], datasets, found)


def _is_version(entries: Sequence[storage.Entry]) -> bool:
    return any(".tfrecord" in entry.name for entry in entries)


def _is_below(path: str, places: Sequence[str]) -> bool:
    return any(path == one or path.startswith(f"{one.rstrip('/')}/") for one in places)


def _look(path: str, found: Found, *, given: bool) -> None:
    """Add what a file has."""
    judged = artefacts.judge(path, found.wanted, found.columns, given=given)
    if judged.count:
        found.files[path] = judged.count
    if judged.unread is not None:
        _unread(path, judged.unread, found)


def _unread(path: str, why: artefacts.Unread, found: Found) -> None:
    found.unread.append({"path": path, **vars(why)})


def _take_out(path: str, found: Found, *, given: bool) -> None:
    """Rewrite a file without the rows and mentions; a page that shows one is removed."""
    judged = artefacts.judge(path, found.wanted, found.columns, given=given, rewrite=True)
    if not judged.count:
        return
    if judged.data is None:
        storage.remove(path)
    else:
        storage.write_whole(path, judged.data)
    checksum = storage.join(storage.parent(path), f".{storage.name(path)}.crc")
    if storage.is_local(path) and storage.exists(checksum):  # Hadoop's, of the old file
        storage.remove(checksum)
