"""How fast a save in the background is written: evenly, not as fast as the storage takes it.

A save written at full speed takes cores from the steps beside it that no niceness gives back: those
of DataNodes and of the kernel's network on the same node. Spread over seconds the same work is a
small share of each step, and nobody waits for it. Once somebody does, it goes on at full speed.
The same holds for reading it back.

Source of the idea: PostgreSQL's checkpoint_completion_target.
"""

from __future__ import annotations

import threading
import time
from typing import BinaryIO

from howdah import activity

__all__ = ["Pace"]

_LEAST_BYTES_PER_SECOND = 16 * 2**20
_MOST_SECONDS = 30.0
_PIECE_BYTES = 2**20


class Pace:
    """The pace of one save.

    Args:
        size: bytes of all that will be written; a large save is written faster, so that it takes
            half a minute and no longer because of this.
    """

    def __init__(self, size: int) -> None:
        self._bytes_per_second = max(_LEAST_BYTES_PER_SECOND, size / _MOST_SECONDS)
        self._due = time.monotonic()
        self._awaited = threading.Event()

    def hurry(self) -> None:
        """Somebody waits for the save: no delay from here on."""
        self._awaited.set()

    def keep(self, file: BinaryIO) -> PacedFile:
        """The file, to be written at this pace."""
        return PacedFile(file, self)

    def spent(self, count: int) -> None:
        """Wait until `count` more bytes are due. Time that a slow storage took is not made up."""
        self._due = max(self._due, time.monotonic()) + count / self._bytes_per_second
        self._awaited.wait(max(0.0, self._due - time.monotonic()))


class PacedFile:
    """A file open for writing, as far as `tensorfile.write_tensors` needs one."""

    def __init__(self, file: BinaryIO, pace: Pace) -> None:
        self._file, self._pace = file, pace

    def write(self, data: bytes | memoryview) -> int:
        """Write all of it, piece after piece."""
        for start in range(0, len(data), _PIECE_BYTES):
            piece = data[start : start + _PIECE_BYTES]
            self._file.write(piece)
            activity.advanced(len(piece))
            self._pace.spent(len(piece))
        return len(data)

    def flush(self) -> None:
        """Hand on what is buffered."""
        self._file.flush()
