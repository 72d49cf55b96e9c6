"""The record of the application that has a run directory: `<run.directory>/job/application.json`.

A submission creates the record exclusively before it starts anything, so that one of two concurrent
submissions fails, and adds the application's id afterwards (jobs/submit.py). A record is stale once
its cluster reports that its application is over.

Where a job's driver is a process of the submitter's machine, a copy of the record lies in
$HOWDAH_CACHE/jobs, which only its user can write. The one in the run directory cannot be trusted
with process ids, since every user who may write there can put any process into it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

from howdah import storage
from howdah.config.job import ClusterName
from howdah.core.cache import cache_root
from howdah.core.processes import boot_id, process_start
from howdah.errors import DataError, NotFound, StorageError
from howdah.jobs.status import status_file
from howdah.jobs.status.status_file import directory, status_path
from howdah.storage import lease
from howdah.storage.shapes import COUNT, NUMBER, TEXT, Fields, one_of

OVER = {"finished": "SUCCEEDED", "failed": "FAILED", "killed": "KILLED"}
"""{the last state in status.json: its final status in YARN's words}."""
_FILE = "application.json"
_UNHEARD_SECONDS = 120.0
"""A driver on another machine counts as dead once its status has not changed for this long; it
writes its status every few seconds."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """The contents of application.json."""

    token: str
    """Random text that identifies the submission."""
    on: str
    """The cluster: yarn, local, spark or ray."""
    run_directory: str
    """The run directory; for a server, its model's directory."""
    kind: Literal["training", "server"] = "training"
    application: str = ""
    """The id; "" until it is known."""
    fingerprint: str = ""
    """Hash of the configuration."""
    submitted: float = 0.0
    """Seconds since 1970, by the submitter's clock."""
    user: str = ""
    """The application's user as YARN names it; "" on other clusters."""
    directory: str = ""
    """Directory on `host` with the driver's files; "" on YARN."""
    host: str = ""
    boot: str = ""
    pid: int = 0
    """Process id of the submission, then of the driver where that is a process of `host`."""
    start: int = 0
    """When that process began, in clock ticks since the boot: its id may be used again."""

    @classmethod
    def of_this_process(cls, **values: Any) -> Record:
        """The record of a submission that this process begins."""
        pid = os.getpid()
        values |= {"pid": pid, "start": process_start(pid) or 0}
        return cls(**values, submitted=time.time(), host=socket.gethostname(), boot=boot())

    def as_json(self) -> bytes:
        """The file's contents."""
        return json.dumps(asdict(self)).encode()

    @property
    def here(self) -> bool:
        """True if its process runs, or ran, on this machine."""
        return self.host == socket.gethostname()

    @property
    def process_lives(self) -> bool:
        """True if its process runs on this machine."""
        return self.here and self.boot == boot() and process_start(self.pid) == self.start

    @property
    def driver_lives(self) -> bool:
        """True if its driver runs; on another machine, while its status changes."""
        return self.process_lives if self.here else self.is_heard()

    def is_heard(self) -> bool:
        """True if the driver's status says that it runs, and has changed lately."""
        status = status_file.read(self.run_directory, self.application)
        if status.get("state") in OVER:
            return False
        path = status_path(self.run_directory) if status else path_of(self.run_directory)
        beat = status.get("updated") if status else self.submitted
        return lease.unheard_seconds(path, self.application, beat) < _UNHEARD_SECONDS

    @property
    def is_ours(self) -> bool:
        """True if this user submitted it from this machine, by the private record."""
        if os.path.basename(self.application) != self.application:
            return False
        private = of_application(self.application)
        if private is None or private.directory != os.path.dirname(_private(self.application)):
            return False
        same = replace(private, run_directory=self.run_directory) == self
        return same and _is_one_place(private.run_directory, self.run_directory)

    def write(self, *, private: bool = False) -> None:
        """Replace the run directory's record.

        Args:
            private: replace the private one too. Only for a record that this process has made: a
                record that was read may have come from any user, and so may its `directory`.
        """
        storage.write_whole(path_of(self.run_directory), self.as_json())
        if private:
            storage.write_whole(os.path.join(self.directory, _FILE), self.as_json())


_NAMES = tuple(one.name for one in fields(Record))
_SHAPE = Fields(
    {
        **dict.fromkeys(_NAMES, TEXT), "submitted": NUMBER, "pid": COUNT, "start": COUNT,
        "on": one_of(get_args(ClusterName)), "kind": one_of(("training", "server")),
    },
    needed=_NAMES,
)  # fmt: skip


def path_of(run_directory: str) -> str:
    """Path of a run directory's record."""
    return storage.join(directory(run_directory), _FILE)


def read(run_directory: str) -> Record | None:
    """The record in a run directory, of a live or an ended application; None: it has none.

    A `run_directory` in the file that differs is replaced: requests and completed records are
    written where the record was read, never where it points to.

    Raises:
        DataError: the file is malformed.
    """
    record = _read(path_of(run_directory))
    if record is None or record.run_directory.rstrip("/") == run_directory.rstrip("/"):
        return record
    return replace(record, run_directory=run_directory)


def submitted_here() -> list[Record]:
    """The jobs that were submitted from this machine and have files here, newest first."""
    root = jobs_directory()
    records = []
    for name in os.listdir(root) if os.path.isdir(root) else []:
        with contextlib.suppress(DataError, StorageError):  # one of them must not hide the others
            records.append(_read(os.path.join(root, name, _FILE)))
    return sorted(filter(None, records), key=lambda record: -record.submitted)


def of_application(application: str) -> Record | None:
    """The private record of a job that was submitted from this machine; None: it has none."""
    return _read(_private(application))


def jobs_directory() -> str:
    """The directory of this machine's jobs, with a subdirectory for each, named by its id."""
    return os.path.join(cache_root(), "jobs")


def _private(application: str) -> str:
    return os.path.join(jobs_directory(), application, _FILE)


def _read(path: str) -> Record | None:
    try:
        remedy = "it is not an application's record: remove it, and submit the run again"
        values = storage.read_object(path, _SHAPE, remedy=remedy)
    except NotFound:
        return None
    return Record(**{name: values[name] for name in _NAMES})


def _is_one_place(one: str, other: str) -> bool:
    """True if two paths lead to one directory; on this machine, one of them by a link."""
    if storage.is_local(one) and storage.is_local(other):
        one, other = (os.path.realpath(storage.local_path(path)) for path in (one, other))
    return one.rstrip("/") == other.rstrip("/")


def boot() -> str:
    """This machine's boot id; "" where the kernel has none."""
    try:
        return boot_id()
    except OSError:
        return ""
