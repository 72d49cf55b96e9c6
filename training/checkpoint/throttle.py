"""Limits how fast a background save is written and read back, so that it does not slow training.

A save at full speed takes cores from training's steps through processes whose priority Howdah does
not set: DataNodes, and the kernel's network stack on the same node. Spread over seconds, the same
work is a small share of each step. Once training waits for the save, it continues at full speed.

Source: PostgreSQL's checkpoint_completion_target.
"""

from __future__ import annotations

import threading
import time
from typing import BinaryIO

from howdah.core import activity

_LEAST_BYTES_PER_SECOND = 16 * 2**20
_MOST_SECONDS = 30.0
_PIECE_BYTES = 2**20


class WriteThrottle:
    """The throttle of one save: 16 MiB/s, or faster if that would take over half a minute.

    Args:
        size: total number of bytes that will be written.
    """

    def __init__(self, size: int) -> None:
        self._bytes_per_second = max(_LEAST_BYTES_PER_SECOND, size / _MOST_SECONDS)
        self._due = time.monotonic()
        self._lifted = threading.Event()

    def hurry(self) -> None:
        """Stop throttling: training waits for the save."""
        self._lifted.set()

    def wrap(self, file: BinaryIO) -> ThrottledFile:
        return ThrottledFile(file, self)

    def passed(self, count: int) -> None:
        """Count bytes that were written or read, and wait as long as they should have taken.

        Time lost on slow storage is not made up for by a burst.
        """
        self._due = max(self._due, time.monotonic()) + count / self._bytes_per_second
        self._lifted.wait(max(0.0, self._due - time.monotonic()))


class ThrottledFile:
    """A file open for writing, with the methods that `tensors.write_tensors` needs."""

    def __init__(self, file: BinaryIO, throttle: WriteThrottle) -> None:
        self._file, self._throttle = file, throttle

    def write(self, data: bytes | memoryview) -> int:
        for start in range(0, len(data), _PIECE_BYTES):
            piece = data[start : start + _PIECE_BYTES]
            self._file.write(piece)
            activity.current().advanced(len(piece))
            self._throttle.passed(len(piece))
        return len(data)

    def flush(self) -> None:
        self._file.flush()
