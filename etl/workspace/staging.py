"""Files of unfinished ETL runs: their owners, and when they may be removed.

A run writes every file into the version directory under a unique name, which contains its token;
only the manifest makes them part of a dataset. While it works it holds a lease
(howdah/storage/lease.py). The next run sweeps files that belong neither to a manifest nor to a run
with a live lease. If a live run's files were swept nevertheless, the run notices it right before it
commits (`refuse_missing`).

Intermediate data that is whole says so (`scratch.py`). What a dead run left of it stays for the run
that makes the same version (`adopt`), until the dataset has a version made after it.
"""

from __future__ import annotations

import contextlib
import functools
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from howdah import storage
from howdah.data.id_index import name_of
from howdah.data.manifest import MANIFEST, DatasetManifest, version_hash
from howdah.errors import DataError, HowdahError, NotFound, StorageError
from howdah.storage import Entry, commit, lease
from howdah.storage.lease import Lease

REPORTS = ("report.json", "report.html")
"""The data report in a version directory."""
REJECTS = "rejects"
LEDGER = "ledger"
"""Directories of files in a version directory, beside its shards."""
_SWEEPS, _SWEEP_SECONDS = 5, 2.0
_THREADS = 8
"""Number of threads that sweep versions."""
LEASE = re.compile(r"_run-([0-9a-f]{8})\.json$")
"""A lease's name; group 1 is the run's token."""
_OURS = re.compile(r"\.([0-9a-f]{8})-\d+\.(tfrecord|tfrecord\.index|tfrecord\.ids|parquet)$")
_SCRATCH = re.compile(r"scratch-([0-9a-f]{8})$")
WHOLE = "rows.json"
"""File in a directory of intermediate data that says which of it is whole (scratch.py)."""


def attempt_name(stem: str, token: str, attempt: int, suffix: str) -> str:
    """`attempt_name("train-00000-of-00016", "0badcafe", 7, "tfrecord")` ->
    `"train-00000-of-00016.0badcafe-7.tfrecord"`, a name that no other attempt writes to."""
    return f"{stem}.{token}-{attempt}.{suffix}"


def scratch_name(token: str) -> str:
    """Name of the directory of a run's intermediate data in the version directory."""
    return f"scratch-{token}"


class RunLease(Lease):
    """The lease of a run on the files that it writes, which no sweep removes meanwhile.

    Args:
        directory: the version directory that the run writes to.
        application: the YARN application that works for it; the run ends with it.
    """

    def __init__(self, directory: str, application: str | None = None) -> None:
        self.token, self.directory = secrets.token_hex(4), directory
        path = storage.join(directory, f"_run-{self.token}.json")
        super().__init__(path, token=self.token, application=application)

    def __enter__(self) -> RunLease:
        storage.make_dirs(self.directory)
        super().__enter__()
        return self


def _live(paths: Iterable[str], over: Collection[str] = ()) -> set[str]:
    """The leases among `paths` that are alive, and whose applications are not in `over`."""
    contents = {}
    for path in paths:
        with contextlib.suppress(NotFound):
            contents[path] = lease.read(path)
    return lease.living(
        {path: one for path, one in contents.items() if one.more.get("application") not in over}
    )


def _walk(directory: str) -> Iterator[Entry]:
    for below in (directory, *(storage.join(directory, name) for name in (REJECTS, LEDGER))):
        try:
            entries = storage.list_dir(below, unfinished=True)
        except NotFound:
            continue
        yield from (entry for entry in entries if not entry.is_dir)


def _scratch(version: str) -> list[Entry]:
    try:
        entries = storage.list_dir(version)
    except NotFound:
        return []
    return [entry for entry in entries if entry.is_dir and _SCRATCH.fullmatch(entry.name)]


def _owner(entry: Entry) -> str | None:
    """The token of the run that made a file or directory, from its name."""
    if entry.is_dir:
        match = _SCRATCH.fullmatch(entry.name)
    else:
        match = _OURS.search(entry.name) or LEASE.search(entry.name)
    return match.group(1) if match else None


def manifest_names(version: str) -> set[str] | None:
    """Names that a version's manifest lists, relative to it; None without a manifest."""
    path = storage.join(version, MANIFEST)
    if not storage.exists(path):
        return None
    value = storage.read_json(path)
    names = {MANIFEST, *REPORTS}
    for shards in value.get("splits", {}).values():
        for shard in shards:
            names |= {shard["name"], shard["index_name"], name_of(shard["name"])}
    names |= {file["name"] for file in (value.get("ledger") or {}).get("files", [])}
    return names | set(value.get("quality", {}).get("reject_files", []))


def is_ours(relative: str) -> bool:
    """True if ETL runs make files with this name, relative to a version's directory. `sweep`
    removes them if no manifest names them and the run that made them is dead."""
    name = storage.name(relative)
    scratch = _SCRATCH.fullmatch(relative.partition("/")[0])
    return bool(scratch or _OURS.search(name) or name.startswith(storage.TEMP_PREFIX))


def refuse_missing(directory: str, manifest: DatasetManifest) -> None:
    """Check that all files of a manifest exist, right before it is written.

    Raises:
        DataError: a file is missing or has another size, because it was swept.
    """
    sizes: dict[str, int | None] = dict.fromkeys(manifest.quality.get("reject_files", []))
    for shards in manifest.splits.values():
        for shard in (one for one in shards if one.version is None):
            sizes |= {shard.name: shard.bytes, shard.index_name: None}
    if manifest.ledger is not None:
        files = [file for file in manifest.ledger.files if file.version is None]
        sizes |= {file.name: file.bytes for file in files}
    wrong = commit.size_defect(directory, sizes)
    if wrong is not None:
        raise DataError(
            "the dataset is not committed, because a file of this run is missing or changed",
            where=storage.join(directory, wrong.name),
            expected=None if wrong.expected is None else f"{wrong.expected} bytes",
            got="no file" if wrong.got is None else f"{wrong.got} bytes",
            remedy="run `howdah etl` again; another run may have considered this one dead, if"
            " storage was away for longer than ten minutes",
        )


def discard(directory: str, token: str, *, whole_stays: bool = False) -> bool:
    """Remove all files that the run `token` made in a version directory, but those that a manifest
    names: the run may have failed, or been interrupted, right after its commit.

    Args:
        whole_stays: intermediate data that is whole stays for `adopt`.
    Returns:
        Whether any stays.
    """
    entries = [*_scratch(directory), *_walk(directory)]
    of_run = [e for e in entries if _owner(e) == token and not LEASE.search(e.name)]
    stays = {entry.path for entry in of_run if whole_stays and _is_whole(entry)}
    # Read last: a commit whose answer was lost may have taken effect since the failure.
    committed = manifest_names(directory) or set()
    commit.sweep(
        of_run,
        lambda one: one.path not in stays and _relative(directory, one.path) not in committed,
    )
    _remove_if_empty(directory)
    return bool(stays)


def adopt(version: str, token: str) -> None:
    """Give the run `token` the intermediate data that a dead run of the same version left whole.

    Of two runs that try, one gets it: a rename decides.
    """
    for entry in _scratch(version):
        owner = _owner(entry)
        lease_path = storage.join(version, f"_run-{owner}.json")
        if owner != token and _is_whole(entry) and not is_live(lease_path):
            with contextlib.suppress(StorageError):
                storage.rename_dir(entry.path, storage.join(version, scratch_name(token)))
                return


def _is_whole(entry: Entry) -> bool:
    """Return True if an entry is a directory of intermediate data that another run can resume."""
    scratch = entry.is_dir and _SCRATCH.fullmatch(entry.name)
    return bool(scratch and storage.exists(storage.join(entry.path, WHOLE)))


def sweep(
    dataset: str,
    *,
    over: Collection[str] = (),
    whole_stays: bool = True,
) -> list[str]:
    """Remove the files that crashed runs left in a dataset's version directories. Returns the
    paths.

    Only files that an ETL makes are removed. Those of runs with a live lease stay; in a version
    without a manifest and without a live run all of them go, but for whole intermediate data as
    long as no version is newer.

    Args:
        over: YARN applications that have ended, so that their runs are dead.
        whole_stays: False: intermediate data goes also where a run could go on from it.
    """
    removed: list[str] = []
    try:
        versions = [
            e for e in storage.list_dir(dataset) if e.is_dir and version_hash(e.name) is not None
        ]
    except NotFound:
        return removed
    if not versions:
        return removed
    # A year of days is 365 versions, each of which takes round trips to storage.
    with ThreadPoolExecutor(min(_THREADS, len(versions)), "howdah-sweep") as pool:
        paths = [version.path for version in versions]
        newest = functools.cache(lambda: _newest(paths)) if whole_stays else None
        for gone in pool.map(lambda path: _sweep_version(path, over, newest), paths):
            removed += gone
    return removed


def sweep_until_quiet(dataset: str, *, over: Collection[str] = ()) -> None:
    """Sweep the files of an application that has just ended until no new ones appear.

    Its executors live for some more heartbeats of their nodes, and still write files.
    """
    with contextlib.suppress(HowdahError):  # the next run sweeps as well
        for _ in range(_SWEEPS):
            if not sweep(dataset, over=over):
                return
            time.sleep(_SWEEP_SECONDS)


def _newest(versions: Iterable[str]) -> float:
    """When the newest of the versions was committed, by the storage's clock; 0: none is."""
    times = [0.0]
    for version in versions:
        with contextlib.suppress(NotFound):
            times.append(storage.modified(storage.join(version, MANIFEST)))
    return max(times)


def _sweep_version(
    version: str, over: Collection[str], newest: Callable[[], float] | None
) -> list[str]:
    """Sweep one version.

    Args:
        newest: when the dataset's newest version was committed; None: nothing whole stays.
    """
    # The list has a run's lease whenever it has one of its files, since a run takes its lease
    # before it writes: so no file of a live run is mistaken for a dead one's.
    scratch = _scratch(version)
    entries = list(_walk(version))
    leases = {m.group(1): e for e in entries if (m := LEASE.search(e.name))}
    alive = _live([entry.path for entry in leases.values()], over)
    live = {token for token, entry in leases.items() if entry.path in alive}
    committed = manifest_names(version)

    def dead(entry: Entry) -> bool:
        if committed is not None and _relative(version, entry.path) in committed:
            return False
        owner = _owner(entry)
        if owner is not None:
            return owner not in live
        unfinished = entry.name.startswith(storage.TEMP_PREFIX)
        return not live and (unfinished or (committed is None and entry.name in REPORTS))

    if committed is None and newest is not None:
        scratch = [one for one in scratch if not (_is_whole(one) and _made(one) > newest())]
    removed = commit.sweep([*scratch, *entries], dead)
    if committed is None and not live:
        _remove_if_empty(version)
    return removed


def _made(entry: Entry) -> float:
    """When intermediate data became whole, by the storage's clock."""
    with contextlib.suppress(NotFound):
        return storage.modified(storage.join(entry.path, WHOLE))
    return 0.0


def is_live(path: str) -> bool:
    """True if the run whose lease is at `path` is alive."""
    return bool(_live([path]))


def _relative(version: str, path: str) -> str:
    name, folder = storage.name(path), storage.name(storage.parent(path))
    return f"{folder}/{name}" if folder in (REJECTS, LEDGER) else name


def _remove_if_empty(version: str) -> None:
    # Not recursive: it must fail if a run that just started has put its lease here.
    for directory in (*(storage.join(version, name) for name in (REJECTS, LEDGER)), version):
        with contextlib.suppress(StorageError):
            if not storage.list_dir(directory, unfinished=True):
                storage.remove(directory)
