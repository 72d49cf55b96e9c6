"""File objects that raise typed errors: `Writer`, and `RangeReader` for remote files."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any

from howdah.core import activity
from howdah.errors import StorageError, StorageUnavailable

CHUNK_BYTES = 4 * 2**20
"""Bytes that are buffered before they are sent to a remote storage."""
_WHOLE_BYTES = 16 * CHUNK_BYTES


class Writer(io.BufferedIOBase):
    """A file open to write, on any storage; `write`, `flush` and `close` raise StorageErrors.

    `close` fails after a failed `write`: a part of a file is never published.

    Args:
        sink: has `write(data)` and `close()`; after an error its `give_up()` is called, if any.
        typed: a context manager that types the sink's errors.
        gather: bytes to buffer before the sink gets them; 0: no buffer.
    """

    def __init__(
        self, sink: Any, typed: Callable[[], Any], *, path: str, gather: int = CHUNK_BYTES
    ) -> None:
        super().__init__()
        self._sink, self._typed, self._path, self._gather = sink, typed, path, gather
        self._buffer = bytearray()
        self._count = 0
        self._failed: StorageError | None = None
        self._closed = False
        self.alone = False
        """True where the caller cannot write the file again: its errors then say so."""
        self._shown = path
        self._publish: Callable[[], object] | None = None
        self._drop: Callable[[], object] = lambda: None

    def publish_as(
        self, path: str, *, publish: Callable[[], object], drop: Callable[[], object]
    ) -> None:
        """The file has a temporary name, and becomes `path`, which its errors name, when closed.

        Args:
            publish: renames it, once it is closed; raises StorageErrors.
            drop: removes it after an error.
        """
        self._shown, self._publish, self._drop = path, publish, drop

    name = property(lambda self: self._shown)

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._count

    def fileno(self) -> int:
        return self._sink.fileno()

    @property
    def closed(self) -> bool:
        return self._closed

    def write(self, data) -> int:
        view = memoryview(data).cast("B")
        if self._closed:
            raise ValueError("write to a closed file")
        if self._failed is not None:
            raise self._failed
        count = len(view)
        if not self._gather:
            self._send(view)
        elif isinstance(data, bytes) and not self._buffer and self._gather <= count <= _WHOLE_BYTES:
            self._send(data)
        elif self._buffer or count < self._gather:
            self._buffer += view
            if len(self._buffer) >= self._gather:
                buffered, self._buffer = self._buffer, bytearray()
                self._send(buffered)
        else:
            for start in range(0, count, self._gather):
                self._send(view[start : start + self._gather])
        self._count += count
        activity.current().advanced()
        return count

    def _send(self, data) -> None:
        self._guard(lambda: self._sink.write(data))

    def _guard(self, call: Callable[[], object]) -> None:
        try:
            with self._typed():
                call()
        except StorageError as error:
            self._failed = error
            if error.where == self._path:
                error.where = self._shown
            if self.alone and isinstance(error, StorageUnavailable):
                error.remedy = (
                    "a file that is written piece by piece cannot be resumed here: start the step"
                    " again; what was published before is intact"
                )
            raise

    def flush(self) -> None:
        """Send what is buffered (a remote storage may still hold it back)."""
        if self._closed or self._failed is not None:
            return
        if self._buffer:
            buffered, self._buffer = self._buffer, bytearray()
            self._send(buffered)
        if hasattr(self._sink, "flush"):
            self._guard(self._sink.flush)

    def close(self) -> None:
        if self._closed:
            return
        self._finish(self._failed is None)
        if self._failed is not None:
            raise self._failed

    def _finish(self, whole: bool) -> None:
        try:
            if whole:
                if self._buffer:
                    buffered, self._buffer = self._buffer, bytearray()
                    self._send(buffered)
                self._guard(self._sink.close)
                if self._publish is not None:
                    self._guard(self._publish)
        finally:
            self._closed = True
            if self._failed is not None:
                with contextlib.suppress(Exception):  # the first error names the cause
                    getattr(self._sink, "give_up", self._sink.close)()
                if not isinstance(self._failed, StorageUnavailable):
                    with contextlib.suppress(Exception):  # likewise
                        self._drop()

    def __exit__(self, kind, error, trace) -> None:
        if error is None:
            self.close()
            return
        with contextlib.suppress(StorageError):
            self.close()

    def __del__(self) -> None:
        """Close a handle that was never closed, without errors: its file was never published."""
        if not getattr(self, "_closed", True):
            with contextlib.suppress(Exception):
                self.close()


WINDOW_BYTES = 16 * 2**20
"""Large enough that requests are few; also the most memory that a reader takes."""
_FIRST_WINDOW = 128 * 2**10


class RangeReader(io.BufferedIOBase):
    """A remote file, seekable, read in windows that grow while it is read sequentially.

    Args:
        fetch: (offset, length) -> exactly these bytes; it types its errors and retries by itself.
        size: bytes of the file when it was opened.
        window: bytes of the largest window.
    """

    def __init__(
        self,
        fetch: Callable[[int, int], bytes],
        size: int,
        *,
        path: str,
        window: int = WINDOW_BYTES,
    ) -> None:
        super().__init__()
        self.fetch, self.size, self._path, self._largest = fetch, size, path, window
        self._at = 0
        self._start, self._window = 0, b""
        self._next = _FIRST_WINDOW

    name = property(lambda self: self._path)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        if base + offset < 0:
            raise ValueError("seek before the beginning of the file")
        self._at = base + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self.size - self._at)
        remaining = left if size is None or size < 0 else min(size, left)
        parts = []
        while remaining:
            inside = self._at - self._start
            if not 0 <= inside < len(self._window):
                self._load(remaining)
                inside = self._at - self._start
            part = self._window[inside : inside + remaining]
            parts.append(part)
            self._at += len(part)
            remaining -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _load(self, remaining: int) -> None:
        sequential = self._at == self._start + len(self._window)
        self._next = min(2 * self._next, self._largest) if sequential else _FIRST_WINDOW
        count = min(max(self._next, min(remaining, self._largest)), self.size - self._at)
        self._window = b""  # not two windows at once
        self._window, self._start = self.fetch(self._at, count), self._at
        activity.current().advanced()

    def read1(self, size: int = -1) -> bytes:
        return self.read(min(size, self._largest) if size > 0 else self._largest)

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)
