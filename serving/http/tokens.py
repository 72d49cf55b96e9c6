"""The bearer tokens of a running server, which follows their file so that one can be revoked."""

from __future__ import annotations

import hmac
import os
import threading
import time
from collections.abc import Callable

from howdah import storage
from howdah.core import threads
from howdah.errors import ConfigError, StorageError
from howdah.serving.http import access

_METRICS = "/metrics"


class TokenFile:
    """The current tokens of serve.token_file.

    Args:
        path: the file.
        say: takes a line.
    Raises:
        ConfigError: the file cannot be used. If it breaks later, the tokens stay as they were.
    """

    def __init__(self, path: str, say: Callable[[str], None] = lambda line: None) -> None:
        self._path, self._say = path, say
        self._stop = threading.Event()
        self._broken = False
        self._seen = self._signature()
        self._tokens, self._for_metrics = access.read(path)

    def start(self, seconds: float) -> None:
        """Start a thread that calls `look` at this interval."""

        def follow() -> None:
            while not self._stop.wait(seconds):
                self.look()

        threads.start(follow, name="tokens", failed=threads.RESTART, say=self._say)

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()

    def look(self) -> None:
        """Read the file again if it was replaced or changed."""
        signature = self._signature()
        if signature == self._seen and not self._broken:
            return
        try:
            self._tokens, self._for_metrics = access.read(self._path)
        except ConfigError as error:
            if not self._broken:
                self._say(f"the tokens stay as they were: {error.what} ({error.where})")
            self._broken = True
            return
        self._seen, self._broken = signature, False
        self._say(f"the tokens were read again: {len(self._tokens)}")

    def permits(self, token: bytes, path: str) -> bool:
        """True if this token allows a request to this path."""
        tokens = self._tokens + (self._for_metrics if path == _METRICS else [])
        # Compare with all tokens, so that the time taken does not reveal which one was close.
        right = [hmac.compare_digest(token, one) for one in tokens]
        return any(right)

    def _signature(self) -> tuple[int, ...] | None:
        try:
            info = os.stat(storage.local_path(self._path))
        except (OSError, StorageError):  # it is gone, or not a local file
            return None
        return (info.st_ino, info.st_size, info.st_mtime_ns, info.st_mode)


class RefusedAddresses:
    """Logs the addresses that send requests without a valid token, each once a minute.

    Args:
        say: takes a line.
    """

    _SECONDS = 60.0
    _MOST = 1000

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._counts: dict[str, tuple[float, int]] = {}
        """{address: (time of its last line, refused requests since)}."""

    def add(self, address: str, got: str) -> None:
        """Count a refused request, and log it if the address had no line for a minute.

        Args:
            got: "no" or "another" token.
        """
        now = time.monotonic()
        last_logged, count = self._counts.get(address, (None, 0))
        if last_logged is not None and now - last_logged < self._SECONDS:
            self._counts[address] = (last_logged, count + 1)
            return
        if len(self._counts) >= self._MOST:
            self._counts.pop(next(iter(self._counts)))
        self._counts[address] = (now, 0)
        more = f", and {count} more since the last line" if count else ""
        self._say(f"refused: a request from {address} with {got} token{more}")
