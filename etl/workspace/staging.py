"""Files of unfinished runs: their owners, and when they may be removed.

A run writes every file under a name of its own (its token in it) into the version directory; only
the manifest makes them part of a dataset. While it works it keeps a lease file; what belongs to no
manifest and to no run with a live lease is swept by the next run.

During an outage of storage no lease can be renewed, and all look expired after it. So a run renews
its lease within seconds of the outage, and a sweep that meets an expired lease looks again before
it removes anything. A run whose files were removed nevertheless detects it right before it commits
(`refuse_missing`).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

from howdah import storage
from howdah.core import threads
from howdah.core.processes import boot_id, pid_space, stat_fields
from howdah.data.id_index import name_of
from howdah.data.manifest import MANIFEST, DatasetManifest
from howdah.errors import (
    DataError,
    HowdahError,
    NotFound,
    StorageError,
    StorageUnavailable,
)
from howdah.etl import report
from howdah.storage import Entry, commit

REJECTS = "rejects"
LEDGER = "ledger"
"""Directories of files in a version directory, beside its shards."""
BEAT_SECONDS = 60.0
EXPIRED_SECONDS = 600.0
_AGAIN_SECONDS = 3.0
"""Pause between two attempts at a beat during an outage of storage."""
SECOND_LOOK_SECONDS = 10.0
"""How long a sweep gives a run whose lease has expired: storage may have been away for all."""
_END_SECONDS = 60.0
"""How long the end of a lease waits for storage: a file that stays is swept by the next run."""
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


class Lease:
    """A sign of life beside the files of a run, renewed once a minute until it is left.

    Args:
        directory: the version directory that the run writes to.
        application: the YARN application that works for it: once that is over, so is the run.
    """

    def __init__(self, directory: str, application: str | None = None) -> None:
        self.token = secrets.token_hex(4)
        self.directory = directory
        self.application = application
        self._path = storage.join(directory, f"_run-{self.token}.json")
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Lease:
        storage.make_dirs(self.directory)
        self.beat()
        # Without it this run's files would be swept under its hands: it begins again.
        self._thread = threads.start(self._beats, name="etl-lease", failed=threads.RESTART)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._thread is not None:  # an interrupt may have come before it was started
            self._thread.join(_END_SECONDS)
        with contextlib.suppress(StorageError), storage.waiting_at_most(_END_SECONDS):
            storage.remove(self._path)

    def beat(self) -> None:
        """Renew it: for the next EXPIRED_SECONDS no sweep takes this run for dead.

        Raises:
            StorageError: it cannot be written.
        """
        body = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "process": _process(os.getpid()),
            "token": self.token,
            "application": self.application,
        }
        storage.write_whole(self._path, json.dumps(body).encode())

    def _beats(self) -> None:
        pause = BEAT_SECONDS
        while not self._stop.wait(pause):
            # A missed beat is not a failure: the next one may succeed, and nine more are allowed.
            # Each is one attempt, so that the end of the run does not wait for a storage.
            pause = BEAT_SECONDS
            try:
                with storage.waiting_at_most(0.0):
                    self.beat()
            except StorageUnavailable:
                pause = _AGAIN_SECONDS
            except StorageError:
                pass


def _process(pid: int | None = None) -> list[str] | None:
    """What makes a pid unmistakable: this boot, the namespace of pids, when it started.

    A driver in a container may have this host's name and pids of its own, and a pid comes again.
    None where /proc does not say; without `pid` only boot and namespace.
    """
    try:
        values = [boot_id(), pid_space()]
    except OSError:
        return None
    if pid is not None:
        fields = stat_fields(pid)
        if fields is None:
            return None
        values.append(fields[19])
    return values


def _alive(entry: Entry, now: float, over: Collection[str]) -> bool | None:
    """Whether the run of a lease is alive, by its process if that is visible, else by its beat.
    None: only the age of its last beat is known, and it is too old."""
    by_beat = True if now - entry.modified < EXPIRED_SECONDS else None
    try:
        body = storage.read_json(entry.path)
        host, pid, process = body["host"], int(body["pid"]), body.get("process")
    except NotFound:
        return False
    except (HowdahError, AttributeError, KeyError, TypeError, ValueError):
        return by_beat
    if body.get("application") in over:
        return False
    if host != socket.gethostname() or (process and process[:2] != _process()):
        return by_beat
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return not process or process == _process(pid)


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
    now = _storage_time(version) if leases else 0.0
    states = {token: _alive(entry, now, over) for token, entry in leases.items()}
    live = {token for token, alive in states.items() if alive}
    live |= _beat_again({t: leases[t] for t, alive in states.items() if alive is None})
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


def is_live(version: str, token: str) -> bool:
    """Whether the run whose lease in a version directory has this token is alive."""
    try:
        entry = storage.entry(storage.join(version, f"_run-{token}.json"))
        alive = _alive(entry, _storage_time(version), ())
    except NotFound:
        return False
    return bool(_beat_again({token: entry})) if alive is None else alive


def _beat_again(expired: dict[str, Entry]) -> set[str]:
    """The runs that beat again within SECOND_LOOK_SECONDS although their leases had expired."""
    if not expired:
        return set()
    time.sleep(SECOND_LOOK_SECONDS)
    beating = set()
    for token, entry in expired.items():
        with contextlib.suppress(NotFound):
            if storage.modified(entry.path) != entry.modified:
                beating.add(token)
    return beating


def _relative(version: str, path: str) -> str:
    name, folder = storage.name(path), storage.name(storage.parent(path))
    return f"{folder}/{name}" if folder in (REJECTS, LEDGER) else name


def _storage_time(directory: str) -> float:
    """Now, by the clock that stamps the storage's files (it may differ from this machine's)."""
    probe = storage.join(directory, f"{storage.TEMP_PREFIX}clock-{secrets.token_hex(4)}")
    with storage.open_write(probe) as file:
        file.write(b"0")
    try:
        return storage.modified(probe)
    finally:
        storage.remove(probe)


def _remove_if_empty(version: str) -> None:
    # Not recursive: a run that starts just now has put its lease here, and then this must fail.
    for directory in (*(storage.join(version, name) for name in (REJECTS, LEDGER)), version):
        with contextlib.suppress(StorageError):
            if not storage.list_dir(directory, unfinished=True):
                storage.remove(directory)
