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
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from howdah import storage
from howdah.core.cache import cache_root
from howdah.core.processes import boot_id, locked, process_start
from howdah.errors import ClusterError, NotFound, StorageError
from jobs.status import status_file
from jobs.status.status_file import directory, status_path

__all__ = [
    "OVER", "Record", "driver_status", "free_for_yarn", "jobs_directory", "known", "of_application",
    "read", "refuse_live_on_yarn", "submitting",
]  # fmt: skip

OVER = {"finished": "SUCCEEDED", "failed": "FAILED", "killed": "KILLED"}
"""{the last state in status.json: its final status, as YARN calls it}."""
_UNHEARD_SECONDS = 120.0
"""A driver on another machine whose status is older than this counts as dead: it writes one every
few seconds."""


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
        """Whether its driver runs; of one on another machine, by the age of its status."""
        if self.here:
            return self.boot == boot_id() and process_start(self.pid) == self.start
        status = driver_status(self)
        return (
            status.get("state") not in OVER
            and time.time() - max(status.get("updated") or 0, self.submitted) < _UNHEARD_SECONDS
        )

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
    found = [_read(os.path.join(one, "place.json")) for one in folders if os.path.isdir(one)]
    return sorted((one for one in found if one), key=lambda one: -one.submitted)


def of_application(application: str) -> Record | None:
    """A job that was submitted from this machine, by its id; None: there is none."""
    return _read(os.path.join(jobs_directory(), application, "place.json"))


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
        status = storage.read_json(status_path(run_directory))
    except (NotFound, StorageError):
        return
    application = str(status.get("application"))
    fresh = time.time() - (status.get("updated") or 0) < _UNHEARD_SECONDS
    if application.startswith("application_") and fresh and status.get("state") not in OVER:
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
        fields = storage.read_json(path)
    except NotFound:
        return None
    if "start" not in fields:
        fields = {**fields, "start": _start_of_older(fields)}
    return Record(**{name: fields[name] for name in Record.__dataclass_fields__})


def _start_of_older(fields: dict[str, Any]) -> int:
    """Of a record that has `born`, seconds since 1970 by the clock, instead of `start`; 0: the
    process has ended, or is on another machine."""
    import psutil

    pid = fields["pid"]
    if fields["host"] != socket.gethostname():
        return 0
    try:
        same = psutil.Process(pid).create_time() == fields["born"]
    except psutil.NoSuchProcess:
        return 0
    return process_start(pid) or 0 if same else 0
