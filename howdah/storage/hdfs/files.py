"""Open files on HDFS: byte ranges and writes through hdfs-native, one window at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from howdah.core.paths import inner
from howdah.errors import NotFound, StorageUnavailable
from howdah.faults import replaced
from howdah.storage import retry

WINDOW_BYTES = 4 * 2**20
"""Bytes of one read. A DataNode answers in under a millisecond, and malloc reuses buffers of this
size; it maps those of 16 MiB anew each time, which halves the throughput."""

DATA_SECONDS = 180.0
"""Limit for one window of data, with the DataNodes' time-outs and recovery."""

WRITE_SECONDS = 75.0
"""Limit for one piece of a file. hdfs-native waits 60 s for an acknowledgement; where it hangs all
the same (below) there must be time left to try again."""

# hdfs-native queues 100 packets of 64 KiB. It seems to deadlock when the block's DataNodes fail
# while a call waits for a place in the full queue: the sender waits for the place that the call was
# just given, and nothing wakes it. Most of these failures happen when a block is begun with a node
# that has died. So one call writes less than the queue holds, and the call after the beginning of
# a block waits a moment for that to succeed or fail.
_PIECE_BYTES = 4 * 2**20
_BLOCKS_BYTES = 64 * 2**20
"""Blocks begin at multiples of this on clusters with usual block sizes."""
_SETTLE_SECONDS = 0.005

# hdfs-native caches connections to DataNodes for 3 s, for the whole process. A forked child
# inherits them without the threads that serve them, and would wait on one for ever.
_CONNECTION_SECONDS = 4.0
_last_transfer = time.monotonic() - _CONNECTION_SECONDS
"""time.monotonic() of the last read or write."""
_inherited_until = 0.0
"""time.monotonic() until which a forked child may find its parent's connections in the cache."""


def _note_transfer() -> None:
    global _last_transfer
    _last_transfer = time.monotonic()


def _forked() -> None:
    global _inherited_until
    _inherited_until = _last_transfer + _CONNECTION_SECONDS


os.register_at_fork(after_in_child=_forked)


def let_inherited_connections_expire() -> None:
    """Wait, in a child forked a moment ago, until hdfs-native drops its parent's connections."""
    left = _inherited_until - time.monotonic()
    if left > 0:
        time.sleep(left)


Do = Callable[..., Any]
"""`HdfsStorage.do`: one attempt of a call on hdfs-native's client, its errors typed."""


class HdfsReader:
    """Byte ranges of one file.

    Block locations become stale (a DataNode dies, the NameNode restarts): after a failure the file
    is opened anew, and must still be the same one.
    """

    def __init__(self, do: Do, path: str) -> None:
        self._do, self._path = do, path
        self._file, self._identity = self._open()
        self.size = len(self._file)

    def _open(self) -> tuple[Any, tuple[int, int]]:
        """The file, and its modification time and length; both of one moment."""

        def same(client: Any) -> tuple[Any, tuple[int, int]]:
            plain = inner(self._path)
            for _ in range(20):
                before = client.get_file_info(plain)
                file = client.read(plain)
                after = client.get_file_info(plain)
                identity = (after.modification_time, after.length)
                if identity == (before.modification_time, before.length):
                    return file, identity
            raise replaced(self._path)

        return self._do(self._path, "read", same)

    def _reopen(self) -> Any:
        try:
            file, identity = self._open()
        except NotFound:
            raise replaced(self._path) from None
        if identity != self._identity:
            raise replaced(self._path)
        return file

    def fetch(self, offset: int, length: int) -> bytes:
        """Exactly these bytes; tries again while storage is away."""

        def attempt() -> bytes:
            file = self._file or self._reopen()
            self._file = file
            try:
                return self._do(
                    self._path, "read", lambda c: file.read_range(offset, length), DATA_SECONDS
                )
            except StorageUnavailable:
                self._file = None
                # Reopen before any wait: if the file was replaced, waiting would be useless.
                self._file = self._reopen()
                raise

        data = retry.run(self._path, attempt)
        _note_transfer()
        if len(data) != length:
            raise replaced(self._path)
        return data


def raw(file: Any) -> Any:
    """The writer inside hdfs-native's file object.

    The object around it closes itself when it is garbage-collected, in any thread and without a
    time limit: where a block's DataNodes have died that takes 15 s and more, for each attempt.
    """
    file.close = lambda: None
    return file.inner


class Sink:
    """A file being written. After an error it is not closed: that would publish a part of the file,
    or wait for seconds for a block that cannot be written.

    Args:
        file: `raw` of it.
    """

    def __init__(self, do: Do, path: str, file: Any) -> None:
        self._do, self._path, self._file = do, path, file
        self._at = 0
        self._block_begun = False
        """The last piece may have begun a block."""

    def write(self, data: Any) -> None:
        if not isinstance(data, bytes) or len(data) > _PIECE_BYTES:
            view = memoryview(data)
            for at in range(0, len(view), _PIECE_BYTES):
                # hdfs-native converts other buffers than bytes byte by byte: 10 times slower
                self._write(bytes(view[at : at + _PIECE_BYTES]))
        else:
            self._write(data)

    def _write(self, piece: bytes) -> None:
        if self._block_begun:
            time.sleep(_SETTLE_SECONDS)
        before, self._at = self._at, self._at + len(piece)
        self._block_begun = before == 0 or before // _BLOCKS_BYTES != self._at // _BLOCKS_BYTES
        self._do(self._path, "write", lambda c: self._file.write(piece), WRITE_SECONDS)
        _note_transfer()

    def close(self) -> None:
        self._do(self._path, "write", lambda c: self._file.close(), WRITE_SECONDS)
        _note_transfer()

    def give_up(self) -> None:
        self._file = None
