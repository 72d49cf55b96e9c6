"""Files of unfinished runs: their owners, and when they may be removed.

A run writes every file under a name of its own (its token in it) into the version directory; only
the manifest makes them part of a dataset. While it works it holds a lease
(howdah/storage/lease.py); what belongs to no manifest and to no run with a live lease is swept by
the next run. A run whose files were taken for a dead one's all the same finds that out right before
it commits (`refuse_missing`).
"""

from __future__ import annotations

import contextlib
import re
import secrets
import time
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from howdah import storage
from howdah.data.id_index import name_of
from howdah.data.manifest import MANIFEST, DatasetManifest
from howdah.errors import (
    DataError,
    HowdahError,
    NotFound,
    StorageError,
)
from howdah.etl import report
from howdah.storage import Entry, commit, lease
from howdah.storage.lease import Lease

REJECTS = "rejects"
LEDGER = "ledger"
"""Directories of files in a version directory, beside its shards."""
_SWEEPS, _SWEEP_SECONDS = 5, 2.0
_THREADS = 8
"""Threads that sweep versions."""
LEASE = re.compile(r"_run-([0-9a-f]{8})\.json$")
"""A lease's name; group 1 is the run's token."""
_OURS = re.compile(r"\.([0-9a-f]{8})-\d+\.(tfrecord|tfrecord\.index|tfrecord\.ids|parquet)$")
_SCRATCH = re.compile(r"scratch-([0-9a-f]{8})$")


def attempt_name(stem: str, token: str, attempt: int, suffix: str) -> str:
    """`attempt_name("train-00000-of-00016", "0badcafe", 7, "tfrecord")` ->
    `"train-00000-of-00016.0badcafe-7.tfrecord"`: no other attempt writes to it."""
    return f"{stem}.{token}-{attempt}.{suffix}"


def scratch_name(token: str) -> str:
    """The directory of a run's intermediate data in the version directory."""
    return f"scratch-{token}"


class RunLease(Lease):
    """The lease of a run on the files that it writes: a sweep leaves them alone meanwhile.

    Args:
        directory: the version directory that the run writes to.
        application: the YARN application that works for it: once that is over, so is the run.
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
    """Of runs' leases those whose runs live, which are not applications that have ended."""
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
    """The token of the run that made a file or directory, by its name."""
    if entry.is_dir:
        match = _SCRATCH.fullmatch(entry.name)
    else:
        match = _OURS.search(entry.name) or LEASE.search(entry.name)
    return match.group(1) if match else None


def _named(version: str) -> set[str] | None:
    """Names that a version's manifest lists, relative to it; None without a manifest."""
    path = storage.join(version, MANIFEST)
    if not storage.exists(path):
        return None
    value = storage.read_json(path)
    names = {MANIFEST, *report.FILES}
    for shards in value.get("splits", {}).values():
        for shard in shards:
            names |= {shard["name"], shard["index_name"], name_of(shard["name"])}
    names |= {file["name"] for file in (value.get("ledger") or {}).get("files", [])}
    return names | set(value.get("quality", {}).get("reject_files", []))


def is_ours(relative: str) -> bool:
    """Whether a run of the ETL makes files of this name, relative to a version's directory: what
    `sweep` removes where no manifest names it and no run lives that made it."""
    name = storage.name(relative)
    scratch = _SCRATCH.fullmatch(relative.partition("/")[0])
    return bool(scratch or _OURS.search(name) or name.startswith(storage.TEMP_PREFIX))


def refuse_missing(directory: str, manifest: DatasetManifest) -> None:
    """Check that all files that a manifest is about to name are there, right before it is written.

    Raises:
        DataError: one is not, or has another size: what was written has been swept.
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
            "a file of this run is gone: the dataset is not committed",
            where=storage.join(directory, wrong.name),
            expected="the file" if wrong.expected is None else f"{wrong.expected} bytes",
            got="no file" if wrong.got is None else f"{wrong.got} bytes",
            remedy="run `howdah etl` again; another run may have taken this one for dead, while"
            " storage was away for longer than ten minutes",
        )


def discard(directory: str, token: str) -> None:
    """Remove all files that the run `token` made in a version directory."""
    entries = [*_scratch(directory), *_walk(directory)]
    commit.sweep(entries, lambda entry: _owner(entry) == token and not LEASE.search(entry.name))
    _remove_if_empty(directory)


def sweep(dataset: str, own_token: str | None = None, *, over: Collection[str] = ()) -> list[str]:
    """Remove what crashed runs left in a dataset's version directories; return the paths.

    Args:
        over: YARN applications that are known to have ended: their runs are dead.

    Only files that an ETL makes are touched. Those of runs with a live lease stay, `own_token`'s
    as well; in a version without manifest and without a live run everything of ours goes.
    """
    removed: list[str] = []
    try:
        versions = [e for e in storage.list_dir(dataset) if e.is_dir and e.name.startswith("v=")]
    except NotFound:
        return removed
    if not versions:
        return removed
    # a year of days is 365 versions, each of which takes round trips to storage
    with ThreadPoolExecutor(min(_THREADS, len(versions)), "howdah-sweep") as pool:
        paths = [version.path for version in versions]
        for gone in pool.map(lambda path: _sweep_version(path, own_token, over), paths):
            removed += gone
    return removed


def sweep_until_quiet(dataset: str, *, over: Collection[str] = ()) -> None:
    """Sweep what an application that has just ended left, until nothing comes any more.

    Its executors live on for some heartbeats of their nodes, and write meanwhile.
    """
    with contextlib.suppress(HowdahError):  # the next run sweeps as well
        for _ in range(_SWEEPS):
            if not sweep(dataset, over=over):
                return
            time.sleep(_SWEEP_SECONDS)


def _sweep_version(version: str, own_token: str | None, over: Collection[str]) -> list[str]:
    # Leases are read before the files are listed: a run that starts in between has its lease
    # first and files only afterwards, so that no file of a live run is taken for a dead one's.
    scratch = _scratch(version)
    entries = list(_walk(version))
    leases = {m.group(1): e for e in entries if (m := LEASE.search(e.name))}
    alive = _live([entry.path for entry in leases.values()], over)
    live = {token for token, entry in leases.items() if entry.path in alive}
    if own_token:
        live.add(own_token)
    named = _named(version)

    def dead(entry: Entry) -> bool:
        if named is not None and _relative(version, entry.path) in named:
            return False
        owner = _owner(entry)
        if owner is not None:
            return owner not in live
        unfinished = entry.name.startswith(storage.TEMP_PREFIX)
        return not live and (unfinished or (named is None and entry.name in report.FILES))

    removed = commit.sweep([*scratch, *entries], dead)
    if named is None and not live:
        _remove_if_empty(version)
    return removed


def is_live(path: str) -> bool:
    """Whether the run lives whose lease is at `path`."""
    return bool(_live([path]))


def _relative(version: str, path: str) -> str:
    name, folder = storage.name(path), storage.name(storage.parent(path))
    return f"{folder}/{name}" if folder in (REJECTS, LEDGER) else name


def _remove_if_empty(version: str) -> None:
    # Not recursive: a run that starts just now has put its lease here, and then this must fail.
    for directory in (*(storage.join(version, name) for name in (REJECTS, LEDGER)), version):
        with contextlib.suppress(StorageError):
            if not storage.list_dir(directory, unfinished=True):
                storage.remove(directory)
