"""The driver's files on storage: the status that clients read, the requests that they leave.

Clients need no route to the driver: `howdah status`, `scale` and `kill --save` use these files.
Storage may be unreachable for minutes, so that a separate thread does all of this and writes the
newest status when storage is back. Before each write and each request it checks whether a later
attempt has the run (jobs/status/claim.py).
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from howdah import attempts, storage
from howdah.attempts import Attempt
from howdah.core import threads
from howdah.errors import (
    DataError,
    HowdahError,
    NotFound,
    StorageError,
    StorageUnavailable,
)
from howdah.jobs.status.claim import Claim, Superseded
from howdah.run_files import RUN_JSON
from howdah.storage.shapes import COUNT, TEXT, Fields, Items, Kind

_STATUS_SECONDS = 5.0
_REQUEST_SECONDS = 2.0
_REQUEST_BYTES = 2**16
"""Largest request, which is a line of JSON."""
APPLICATION = "application"
"""Key of a request: the id of the application that it is for."""
ETL = "etl"
"""State of a job while it makes its dataset."""
_FIGURE = Kind("a number", lambda value: isinstance(value, int | float))  # a loss may not be finite
_LINE = Kind(
    "[a number, a text]",
    lambda value: isinstance(value, list) and [type(part) for part in value] == [int, str],
)
_BYTES = dict.fromkeys(("local_bytes", "remote_bytes", "fetches"), _FIGURE)
_SHAPE = Fields(
    {
        "state": TEXT,
        **dict.fromkeys(("attempt", "step", "total_steps", "exit_code", "saving"), COUNT),
        **dict.fromkeys(("fewest_workers", "most_workers"), COUNT),
        **dict.fromkeys(("epoch", "loss", "examples_per_second", "eta_seconds"), _FIGURE),
        "last_checkpoint": Fields({"step": COUNT, "path": TEXT}),
        "ranks": Items(Fields({"data": Fields(_BYTES)})),
        "events": Items(Fields({"time": _FIGURE, "what": TEXT}, needed=("time", "what"))),
        "lines": Items(_LINE),
        "error": Fields({"what": TEXT, "exit_code": COUNT}),
    },
    needed=("state",),
)
"""What readers rely on: any user who may write to the run directory can replace the file."""


def directory(run_directory: str) -> str:
    """The directory of a run's files about its job on the cluster."""
    return storage.join(run_directory, "job")


def status_path(run_directory: str) -> str:
    """Path of the status that a run's drivers write."""
    return storage.join(directory(run_directory), "status.json")


def request(run_directory: str, application: str, what: Mapping[str, Any]) -> None:
    """Leave a request for an application's driver, which may not have started yet.

    Args:
        what: {"type": "scale", "workers": N} or {"type": "stop", "save": bool}.
    Raises:
        StorageError: the request cannot be written.
    """
    name = f"{time.time_ns() // 1_000_000}-{secrets.token_hex(4)}.json"
    body = json.dumps({**what, APPLICATION: application}).encode()
    storage.write_whole(storage.join(directory(run_directory), "requests", name), body)


def is_ending(status: Mapping[str, Any]) -> bool:
    """True if the job is stopping, killed or failed.

    A resubmission of its run then starts a new job instead of attaching to this one.
    """
    return status.get("state") in ("stopping", "killed", "failed")


def read(run_directory: str, application: str) -> dict[str, Any]:
    """The status that an application's driver last wrote; {}: none, or another application's.

    Raises:
        DataError: the file is malformed.
    """
    path = status_path(run_directory)
    try:
        status = storage.read_object(path)
    except NotFound:
        return {}
    if status.get("application") != application:
        return {}
    return storage.checked_object(status, path, _SHAPE)


def as_json(value: Mapping[str, Any]) -> bytes:
    """JSON in UTF-8; a lone surrogate, which UTF-8 cannot encode, is escaped as JSON allows it."""
    return json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace")


class StatusFile:
    """Writes status.json and reads requests.

    Args:
        run_directory: the run directory.
        claim: the right to write to it.
        status: () -> the present status, to which the attempt's keys are added.
        on_request: called with each request to this application, {"type": "scale" | "stop", ...};
            its HowdahErrors go to `say`.
        say: logs this object's problems.
        superseded: called once when a later attempt has begun; nothing is written from then on.
    """

    def __init__(
        self,
        run_directory: str,
        *,
        claim: Claim,
        status: Callable[[], dict[str, Any]],
        on_request: Callable[[dict[str, Any]], None],
        say: Callable[[str], None],
        superseded: Callable[[Superseded], None],
    ) -> None:
        self._directory = run_directory
        self._status_path = status_path(run_directory)
        self._requests = storage.join(directory(run_directory), "requests")
        self._run_file = storage.join(run_directory, RUN_JSON)
        self._claim = claim
        self._status, self._on_request, self._say = status, on_request, say
        self._on_superseded = superseded
        self._ended: tuple[str, str] | None = None
        self._ready = False
        self._unremovable: set[str] = set()
        self._written = self._requests_read = 0.0
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._looked = threading.Condition()
        self._looked_at = float("-inf")
        self._over = False
        """True once the last status is written, or another driver has the run."""
        self._closed_well = False
        self._away = False
        """True while the run directory cannot be written or read."""

    def start(self) -> None:
        threads.start(self._run, name="status-file", failed=threads.RESTART, say=self._say)

    def touch(self) -> None:
        """Write the status soon, since it has changed."""
        self._wake.set()

    def verify(self, seconds: float) -> None:
        """Wait for a new check whether a later attempt has begun; on return, `superseded` has been
        called if one has. While storage is unreachable, return after this many seconds.
        """
        since = time.monotonic()
        self._wake.set()
        with self._looked:
            self._looked.wait_for(lambda: self._looked_at >= since or self._over, seconds)

    def close(self, seconds: float, ended: tuple[str, str] | None) -> bool:
        """Write the last status; True if it was written.

        Args:
            seconds: how long to wait for storage.
            ended: status and error for a run.json that still says "running", since killed ranks
                could not write it. None: the run has succeeded.
        """
        self._ended = ended
        self._closing.set()
        self._wake.set()
        with self._looked:
            self._looked.wait_for(lambda: self._over, seconds)
            self._over = True
            return self._closed_well

    # ------------------------------------------------------------------------- in the thread
    def _run(self) -> None:
        while not self._over:
            self._wake.wait(0.5)
            closing, touched = self._closing.is_set(), self._wake.is_set()
            self._wake.clear()
            try:
                if self._turn(closing, touched):
                    self._end(well=True)
            except Superseded as later:
                self._on_superseded(later)
                self._end(well=False)
            except HowdahError as error:
                if not self._away:  # a line a second would displace the job's own events
                    self._say(f"the run directory cannot be written or read: {error.what}")
                self._away = True
                time.sleep(1.0)

    def _turn(self, closing: bool, touched: bool) -> bool:
        """Write and read what is due; True once the last status is written."""
        now = time.monotonic()
        status_due = closing or touched or now - self._written > _STATUS_SECONDS
        requests_due = not closing and now - self._requests_read > _REQUEST_SECONDS
        if status_due or requests_due:
            self._claim.check(0.0 if status_due else _STATUS_SECONDS)
        if status_due:
            with self._looked:
                self._looked_at = now
                self._looked.notify_all()
        if not self._ready:
            storage.make_dirs(self._requests)
            self._ready = True
        if status_due:
            status = {**self._status(), **self._claim.attempt.to_dict()}
            self._claim.write(self._status_path, as_json(status))
            self._written = time.monotonic()
            if self._away:
                self._away = False
                self._say("the run directory can be written again")
        if requests_due:
            self._requests_read = time.monotonic()
            self._take_requests()
        if closing:
            self._close_run()
        return closing

    def _end(self, *, well: bool) -> None:
        with self._looked:
            self._over, self._closed_well = True, well
            self._looked.notify_all()

    # ------------------------------------------------------------------------------ requests
    def _take_requests(self) -> None:
        for entry in storage.list_dir(self._requests):
            name = entry.name
            if entry.is_dir or not name.endswith(".json") or name in self._unremovable:
                continue
            try:
                request = self._read_request(entry)
            except StorageUnavailable:
                raise  # read again when storage is back
            except HowdahError as error:
                self._say(f"removed a request that cannot be read: {entry.path}: {error.what}")
                request = None
            try:
                storage.remove(entry.path)
            except StorageUnavailable:
                raise
            except StorageError as error:  # carried out, it would be read again and again
                self._unremovable.add(name)
                self._say(f"ignored a request that cannot be removed: {entry.path}: {error.what}")
                continue
            if request is None:
                continue
            application = request.pop(APPLICATION, None)
            if application != self._claim.attempt.application:  # left by an earlier job of the run
                self._say(f"ignored a request for {application}: {entry.path}")
                continue
            try:
                self._on_request(request)
            except HowdahError as error:
                self._say(f"a request was refused: {error.what} ({error.expected or error.got})")

    @staticmethod
    def _read_request(entry: storage.Entry) -> dict[str, Any]:
        if entry.size > _REQUEST_BYTES:
            raise DataError(f"{entry.size:,} bytes, and a request has {_REQUEST_BYTES:,} at most")
        return storage.read_object(entry.path)

    # -------------------------------------------------------------------------------- run.json
    def _close_run(self) -> None:
        """Write the end into a run.json that still says "running", if the run is our own.

        Rank 0 writes it itself if it can; by now every agent has been ordered to end it. The file
        is read again right before it is replaced, in case that rank was quicker.
        """
        if self._ended is None or not storage.exists(self._run_file):
            return
        if not self._ours():
            return
        before = storage.read_bytes(self._run_file)
        try:
            values = json.loads(before)
        except ValueError:  # left as it is: the next attempt replaces a damaged file
            return
        if not isinstance(values, dict) or values.get("status") != "running":
            return
        status, error = self._ended
        after = as_json({**values, "status": status, "error": error})
        if storage.read_bytes(self._run_file) == before and self._ours():
            self._claim.write(self._run_file, after)

    def _ours(self) -> bool:
        """True if no attempt later than ours has trained."""
        fence = attempts.newest_fence(self._directory)
        if fence is None:
            return True
        theirs, ours = Attempt.of(fence), self._claim.attempt
        # A run without a cluster has a fence without an attempt: it began after our job had ended.
        return theirs is not None and not theirs.follows(ours)
