"""The driver's files on storage: the status that clients read, the requests that they leave.

No client needs a route to the driver: `howdah status`, `scale` and `kill --save` work through these
files. Storage may be away for minutes: all of it happens in a thread of its own, and the newest
status is what is written when it is back.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from howdah import storage
from howdah.errors import HowdahError, StorageError

__all__ = ["Books", "directory"]

_STATUS_SECONDS = 5.0
_REQUEST_SECONDS = 2.0


def directory(run_directory: str) -> str:
    """Where a run keeps what concerns YARN."""
    return storage.join(run_directory, "yarn")


class Books:
    """Writes status.json, reads requests.

    Args:
        run_directory: the run's.
        fresh: this is the application's first driver: requests that lie there were for another
            application.
        status: () -> the status now.
        obey: called with each request, {"type": "scale" | "stop", ...}; what it raises
            (HowdahError) is told through `say`.
        say: told what goes wrong here.
    """

    def __init__(
        self,
        run_directory: str,
        *,
        fresh: bool,
        status: Callable[[], dict[str, Any]],
        obey: Callable[[dict[str, Any]], None],
        say: Callable[[str], None],
    ) -> None:
        self._status_path = storage.join(directory(run_directory), "status.json")
        self._requests = storage.join(directory(run_directory), "requests")
        self._run_file = storage.join(run_directory, "run.json")
        self._ended: tuple[str, str] | None = None
        self._fresh = fresh
        self._status, self._obey, self._say = status, obey, say
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="books", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def touch(self) -> None:
        """Write the status soon: something has happened."""
        self._wake.set()

    def close(self, seconds: float, ended: tuple[str, str] | None) -> bool:
        """Write the last status; False if that could not be done in time.

        Args:
            seconds: to wait.
            ended: status and error for a run.json that still says "running": killed ranks could
                not write it themselves. None: the run has ended well.
        """
        self._ended = ended
        self._closing.set()
        self._wake.set()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        written = asked = 0.0
        ready = False
        while True:
            closing = self._closing.is_set()
            self._wake.wait(0.5)
            touched = self._wake.is_set()
            self._wake.clear()
            try:
                if not ready:
                    self._make_ready()
                    ready = True
                if closing or touched or time.monotonic() - written > _STATUS_SECONDS:
                    text = json.dumps(self._status(), ensure_ascii=False)
                    storage.write_whole(self._status_path, text.encode())
                    written = time.monotonic()
                if closing:
                    self._close_run()
                if not closing and time.monotonic() - asked > _REQUEST_SECONDS:
                    asked = time.monotonic()
                    self._take_requests()
            except StorageError as error:
                self._say(f"the run directory cannot be written or read: {error.what}")
                time.sleep(1.0)
            if closing:
                return

    def _close_run(self) -> None:
        if self._ended is None or not storage.exists(self._run_file):
            return
        values = storage.read_json(self._run_file)
        if isinstance(values, dict) and values.get("status") == "running":
            status, error = self._ended
            text = json.dumps({**values, "status": status, "error": error}, ensure_ascii=False)
            storage.write_whole(self._run_file, text.encode())

    def _make_ready(self) -> None:
        if self._fresh:
            storage.remove(self._requests, recursive=True)
        storage.make_dirs(self._requests)

    def _take_requests(self) -> None:
        for entry in storage.list_dir(self._requests):
            if entry.is_dir or not entry.name.endswith(".json"):
                continue
            try:
                request = storage.read_json(entry.path)
            except (StorageError, ValueError) as error:
                self._say(f"a request cannot be read: {entry.path}: {error}")
                request = None
            storage.remove(entry.path)
            if not isinstance(request, dict):
                continue
            try:
                self._obey(request)
            except HowdahError as error:
                self._say(f"a request was refused: {error.what} ({error.expected})")
