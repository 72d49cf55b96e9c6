"""The driver's files on storage: the status that clients read, the requests that they leave.

No client needs a route to the driver: `howdah status`, `scale` and `kill --save` work through these
files. Storage may be away for minutes: a thread of its own does all of this, and writes the newest
status when storage is back. Before each write and each request it checks whether a later attempt
has the run (jobs/status/claim.py).
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
    ClusterError,
    DataError,
    HowdahError,
    NotFound,
    StorageError,
    StorageUnavailable,
)
from howdah.jobs.status.claim import Claim, Superseded
from howdah.run_files import RUN_JSON

_STATUS_SECONDS = 5.0
_REQUEST_SECONDS = 2.0
_REQUEST_BYTES = 2**16
"""A request is a line of JSON; larger files are refused."""
APPLICATION = "application"
"""In a request: the id of the application that it is for. Those of older versions lack it."""


def directory(run_directory: str) -> str:
    """The directory of a run's files that concern its job on the cluster."""
    return storage.join(run_directory, "yarn")


def status_path(run_directory: str) -> str:
    """Where its drivers write their status."""
    return storage.join(directory(run_directory), "status.json")


def request(run_directory: str, application: str, what: Mapping[str, Any]) -> None:
    """Leave a request for an application's driver, which may not have started yet.

    Args:
        what: {"type": "scale", "workers": N} or {"type": "stop", "save": bool}.
    Raises:
        StorageError: it cannot be written.
    """
    name = f"{time.time_ns() // 1_000_000}-{secrets.token_hex(4)}.json"
    body = json.dumps({**what, APPLICATION: application}).encode()
    storage.write_whole(storage.join(directory(run_directory), "requests", name), body)


def is_ending(status: Mapping[str, Any]) -> bool:
    """By its status, a job whose driver still runs is being stopped, or has failed.

    Who submits its run again wants a new job, not the verdict of this one.
    """
    return status.get("state") in ("stopping", "killed", "failed")


def read(run_directory: str, application: str) -> dict[str, Any]:
    """What an application's driver last wrote; {}: nothing yet, or it is another one's."""
    try:
        status = storage.read_object(status_path(run_directory))
    except NotFound:
        return {}
    return status if status.get("application") == application else {}


def wait_for_end(
    ended: Callable[[], bool],
    *,
    application: str,
    seconds: float,
    pause: float,
    progress: Callable[[str], None],
    refused: ClusterError,
) -> None:
    """Wait for the end of a job that is being stopped.

    Args:
        ended: whether it has.
        seconds: how long it may take.
        pause: seconds between two looks.
        refused: raised where it does not end.
    """
    until, shown = time.monotonic() + seconds, False
    while not ended():
        if time.monotonic() > until:
            raise refused
        if not shown:
            progress(f"waiting for the end of {application}, which is being stopped")
            shown = True
        time.sleep(pause)


class StatusFile:
    """Writes status.json, reads requests.

    Args:
        run_directory: the run's.
        claim: the right to do so.
        status: () -> the status now; the attempt's own keys are added here.
        on_request: called with each request to this application, {"type": "scale" | "stop", ...};
            what it raises (HowdahError) goes to `say`.
        say: logs what goes wrong here.
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
        # Requests that lie there at an application's first driver, and do not name the application
        # (those of older versions), were for another one.
        self._remove_old = claim.attempt.number == 1
        self._ready = False
        self._unremovable: set[str] = set()
        self._written = self._asked = 0.0
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._looked = threading.Condition()
        self._looked_at = float("-inf")
        self._over = False
        """Nothing more is to be written: the last status is written, or another driver has the
        run."""
        self._closed_well = False

    def start(self) -> None:
        """Begin."""
        threads.start(self._run, name="status-file", failed=threads.RESTART, say=self._say)

    def touch(self) -> None:
        """Write the status soon: it has changed."""
        self._wake.set()

    def verify(self, seconds: float) -> None:
        """Wait for a new check whether a later attempt has begun: `superseded` has been called on
        return, if it has. If storage is away, return after so many seconds.
        """
        since = time.monotonic()
        self._wake.set()
        with self._looked:
            self._looked.wait_for(lambda: self._looked_at >= since or self._over, seconds)

    def close(self, seconds: float, ended: tuple[str, str] | None) -> bool:
        """Write the last status; whether it was written.

        Args:
            seconds: to wait.
            ended: status and error for a run.json that still says "running": killed ranks could
                not write it themselves. None: the run has ended well.
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
                self._say(f"the run directory cannot be written or read: {error.what}")
                time.sleep(1.0)

    def _turn(self, closing: bool, touched: bool) -> bool:
        """Do what is due; whether all is done."""
        now = time.monotonic()
        status_due = closing or touched or now - self._written > _STATUS_SECONDS
        requests_due = not closing and now - self._asked > _REQUEST_SECONDS
        if status_due or requests_due:
            self._claim.check(0.0 if status_due else _STATUS_SECONDS)
        if status_due:
            with self._looked:
                self._looked_at = now
                self._looked.notify_all()
        if not self._ready:
            self._make_ready()
        if status_due:
            self._claim.write(self._status_path, self._text().encode())
            self._written = time.monotonic()
        if requests_due:
            self._asked = time.monotonic()
            self._take_requests()
        if closing:
            self._close_run()
        return closing

    def _end(self, *, well: bool) -> None:
        with self._looked:
            self._over, self._closed_well = True, well
            self._looked.notify_all()

    def _text(self) -> str:
        payload = {**self._status(), **self._claim.attempt.to_dict()}
        return json.dumps(payload, ensure_ascii=False)

    def _make_ready(self) -> None:
        storage.make_dirs(self._requests)
        if self._remove_old:
            for entry in storage.list_dir(self._requests):
                if not self._asked_before(entry):
                    storage.remove(entry.path, recursive=entry.is_dir)
        self._ready = True

    def _asked_before(self, entry: storage.Entry) -> bool:
        """Whether it is a request to this application that came before its driver had started."""
        if entry.is_dir or not entry.name.endswith(".json"):
            return False
        try:
            request = self._read_request(entry)
        except StorageUnavailable:
            raise
        except (HowdahError, ValueError, RecursionError):
            return False
        return request.get(APPLICATION) == self._claim.attempt.application

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
            except (HowdahError, ValueError, RecursionError) as error:
                what = error.what if isinstance(error, HowdahError) else str(error)
                self._say(f"a request cannot be read, and is removed: {entry.path}: {what}")
                request = None
            try:
                storage.remove(entry.path)
            except StorageUnavailable:
                raise
            except StorageError as error:  # or it would be carried out again and again
                self._unremovable.add(name)
                self._say(
                    f"a request cannot be removed, and is not carried out: {entry.path}:"
                    f" {error.what}"
                )
                continue
            if request is None:
                continue
            wanted = request.pop(APPLICATION, self._claim.attempt.application)
            if wanted != self._claim.attempt.application:
                self._say(f"a request is for {wanted}, and is not carried out: {entry.path}")
                continue
            try:
                self._on_request(request)
            except HowdahError as error:
                self._say(f"a request was refused: {error.what} ({error.expected})")

    @staticmethod
    def _read_request(entry: storage.Entry) -> dict[str, Any]:
        if entry.size > _REQUEST_BYTES:
            raise DataError(f"{entry.size:,} bytes, and a request has {_REQUEST_BYTES:,} at most")
        request = storage.read_json(entry.path)
        if not isinstance(request, dict):
            raise DataError("it is no JSON object")
        return request

    # -------------------------------------------------------------------------------- run.json
    def _close_run(self) -> None:
        """Put the end into a run.json that still says "running", if that is our own run.

        Rank 0 writes it itself where it can: by now every agent was ordered to end it. It is
        read again right before it is replaced, in case that rank was quicker.
        """
        if self._ended is None or not storage.exists(self._run_file):
            return
        if not self._ours():
            return
        before = storage.read_bytes(self._run_file)
        try:
            values = json.loads(before)
        except ValueError:  # not for us to repair: the next attempt begins it anew
            return
        if not isinstance(values, dict) or values.get("status") != "running":
            return
        status, error = self._ended
        text = json.dumps({**values, "status": status, "error": error}, ensure_ascii=False)
        if storage.read_bytes(self._run_file) == before and self._ours():
            self._claim.write(self._run_file, text.encode())

    def _ours(self) -> bool:
        """The newest attempt at training is ours, or one before ours."""
        fence = attempts.newest_fence(self._directory)
        if fence is None:
            return True
        theirs, ours = Attempt.of(fence), self._claim.attempt
        # A run without a cluster has no attempt of an application's: it came after ours has gone.
        return theirs is not None and not theirs.follows(ours)
