"""Which job has a run directory, and whether its driver lives: `<run.directory>/yarn/place.json`.

A job on YARN is recorded in owner.json beside it (yarn/client/submission_lock.py). place.json
counts wherever it is there: a submission to YARN removes it, once it is no live job's.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from howdah import storage
from howdah.core.cache import cache_root
from howdah.core.processes import boot_id, locked, process_start
from howdah.errors import ClusterError, DataError, NotFound, StorageError
from howdah.jobs.status import beats, status_file
from howdah.jobs.status.status_file import directory, status_path
from howdah.storage.shapes import COUNT, NUMBER, TEXT, Fields

OVER = {"finished": "SUCCEEDED", "failed": "FAILED", "killed": "KILLED"}
"""{the last state in status.json: its final status, as YARN calls it}."""
_UNHEARD_SECONDS = 120.0
"""A driver on another machine whose status has not changed for so long counts as dead: it writes
one every few seconds."""


_TEXTS = ("application", "on", "run_directory", "directory", "fingerprint", "host", "boot")
_SHAPE = Fields(
    {**dict.fromkeys(_TEXTS, TEXT), "submitted": NUMBER, "pid": COUNT, "start": COUNT},
    needed=(*_TEXTS, "submitted", "pid", "start"),
)


@dataclass(frozen=True, kw_only=True)
class Record:
    """The contents of place.json."""

    application: str
    on: str
    """local, spark, ray."""
    run_directory: str
    directory: str
    """Of the job's own files, on `host`."""
    fingerprint: str
    """Hash of the configuration."""
    submitted: float
    """Seconds since 1970."""
    host: str
    boot: str
    pid: int
    """Of its driver, with `start`: when that process began, in clock ticks since the boot."""
    start: int

    @property
    def here(self) -> bool:
        """Whether its driver runs, or ran, on this machine."""
        return self.host == socket.gethostname()

    @property
    def alive(self) -> bool:
        """True if its driver runs; one on another machine is alive while its status changes."""
        if self.here:
            return self.boot == boot_id() and process_start(self.pid) == self.start
        status = driver_status(self)
        if status.get("state") in OVER:
            return False
        path = status_path(self.run_directory) if status else _path(self.run_directory)
        beat = status.get("updated") if status else self.submitted
        return beats.unheard_seconds(path, self.application, beat) < _UNHEARD_SECONDS

    @property
    def is_ours(self) -> bool:
        """True if this user submitted it from this machine, by a record that only this user can
        write. The record in the run directory proves nothing: every user who may write there can
        name any process in it.
        """
        if os.path.basename(self.application) != self.application:
            return False
        private = of_application(self.application)
        return private == self and self.directory == os.path.dirname(_private(self.application))

    def write(self) -> None:
        """Make it the run directory's job, and let `howdah ps` on this machine find it."""
        body = json.dumps(asdict(self)).encode()
        storage.write_whole(_path(self.run_directory), body)
        storage.write_whole(os.path.join(self.directory, "place.json"), body)


def read(run_directory: str) -> Record | None:
    """The record in a run directory, of a live job or not; None: there is none."""
    return _read(_path(run_directory))


def known() -> list[Record]:
    """The jobs that were submitted from this machine, newest first."""
    root = jobs_directory()
    names = os.listdir(root) if os.path.isdir(root) else []
    folders = [os.path.join(root, name) for name in names]
    records: list[Record] = []
    for folder in filter(os.path.isdir, folders):
        with contextlib.suppress(DataError):  # one that is cut off hides none of the others
            record = _read(os.path.join(folder, "place.json"))
            records += [] if record is None else [record]
    return sorted(records, key=lambda one: -one.submitted)


def of_application(application: str) -> Record | None:
    """A job that was submitted from this machine, by its id; None: there is none."""
    return _read(_private(application))


def _private(application: str) -> str:
    return os.path.join(jobs_directory(), application, "place.json")


def jobs_directory() -> str:
    """Where this machine's jobs have their own files, each in a directory with its id."""
    return os.path.join(cache_root(), "jobs")


def driver_status(record: Record) -> dict[str, Any]:
    """What its driver last wrote; {}: nothing yet."""
    return status_file.read(record.run_directory, record.application)


@contextlib.contextmanager
def submitting(run_directory: str) -> Iterator[None]:
    """Hold off other submissions to a run directory from this machine.

    Raises:
        ClusterError: one is under way.
    """
    root = jobs_directory()
    os.makedirs(root, mode=0o700, exist_ok=True)
    name = hashlib.sha256(run_directory.encode()).hexdigest()[:16]
    with open(os.path.join(root, f"{name}.lock"), "w", encoding="ascii") as file:
        if not locked(file):
            raise ClusterError(
                "this run is being submitted at this moment", where=run_directory,
                remedy="wait for that submission",
            )  # fmt: skip
        yield


def free_for_yarn(run_directory: str) -> None:
    """Make way for a submission to YARN.

    Raises:
        ClusterError: a live job on this machine, Spark or Ray has the run directory.
    """
    record = read(run_directory)
    if record is None:
        return
    if record.alive:
        raise in_use(record)
    storage.remove(_path(run_directory))


def refuse_live_on_yarn(run_directory: str) -> None:
    """Raise ClusterError if a job on YARN writes to the run directory."""
    try:
        status = storage.read_object(status_path(run_directory))
    except (NotFound, StorageError):
        return
    application = str(status.get("application"))
    if not application.startswith("application_") or status.get("state") in OVER:
        return
    path, beat = status_path(run_directory), status.get("updated")
    if beats.unheard_seconds(path, application, beat) < _UNHEARD_SECONDS:
        raise ClusterError(
            "a job on YARN is using this run directory", where=run_directory, got=application,
            remedy=f"give run.directory another value, or end it: howdah kill {application}",
        )  # fmt: skip


def in_use(record: Record) -> ClusterError:
    """The error for another job that wants a live one's run directory."""
    return ClusterError(
        "another job is using this run directory", where=record.run_directory,
        expected="no job, or one of the same configuration and place",
        got=f"{record.application} on {record.host}",
        remedy="give run.directory another value, or end it: howdah kill"
        f" {record.run_directory}",
    )  # fmt: skip


def _path(run_directory: str) -> str:
    return storage.join(directory(run_directory), "place.json")


def _read(path: str) -> Record | None:
    try:
        fields = storage.read_object(
            path, _SHAPE, remedy="it is not a record of a job: remove it, and submit the run again"
        )
    except NotFound:
        return None
    return Record(**{name: fields[name] for name in Record.__dataclass_fields__})
