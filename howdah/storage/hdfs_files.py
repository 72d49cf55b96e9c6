"""Files on HDFS, open: byte ranges and writes through hdfs-native, one window at a time."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from howdah.errors import NotFound, StorageUnavailable
from howdah.storage import retry
from howdah.storage.faults import replaced
from howdah.storage.paths import inner

if TYPE_CHECKING:
    from howdah.storage.hdfs import HdfsStorage

WINDOW_BYTES = 4 * 2**20
"""What is read at once. A DataNode's answer takes less than a millisecond, and buffers of this size
are used again; those of 16 MiB are mapped anew each time, which halves the throughput."""

DATA_SECONDS = 180.0
"""For one window of data, DataNodes' own time-outs and recovery included."""

WRITE_SECONDS = 75.0
"""For a piece of a file; hdfs-native waits 60 s for an acknowledgement. Where it hangs all the same
(below) there must be time left to try again."""

# hdfs-native queues 100 packets of 64 KiB. By all appearances a call that waits for a place in the
# full queue at the very moment at which the block's DataNodes fail waits for ever: its sender waits
# for the place that the call was just given, and nobody wakes it. They mostly fail when a block
# is begun with a node that has died. So a call brings less than the queue takes, and the one after
# a block's beginning comes when that has failed or not.
_PIECE_BYTES = 4 * 2**20
_BLOCKS_BYTES = 64 * 2**20
"""Blocks begin at multiples of it, as clusters are set up."""
_SETTLE_SECONDS = 0.005

# hdfs-native keeps connections to DataNodes for 3 s, for the whole process. A forked child inherits
# them without the threads that serve them, and would wait on one for ever.
_KEPT_SECONDS = 4.0
_moved = time.monotonic() - _KEPT_SECONDS
"""When data last moved, by time.monotonic()."""
_inherited = 0.0
"""In a forked child: until when connections of its parent may be kept."""


def _data_moves() -> None:
    global _moved
    _moved = time.monotonic()


def _forked() -> None:
    global _inherited
    _inherited = _moved + _KEPT_SECONDS


os.register_at_fork(after_in_child=_forked)


def let_inherited_connections_end() -> None:
    """Wait, in a child forked a moment ago, for what it inherited to be too old to be used."""
    left = _inherited - time.monotonic()
    if left > 0:
        time.sleep(left)


class Source:
    """Byte ranges of one file. Block locations grow old (a DataNode dies, the NameNode restarts):
    after a failure the file is opened anew, and must still be the same one."""

    def __init__(self, storage: HdfsStorage, path: str) -> None:
        self._storage, self._path = storage, path
        self._file, self._identity = self._open()
        self.size = len(self._file)

    def _open(self) -> tuple[Any, tuple[int, int]]:
        """The file and what tells it from another; both of one moment."""

        def same(client: Any) -> tuple[Any, tuple[int, int]]:
            place = inner(self._path)
            for _ in range(20):
                before = client.get_file_info(place)
                file = client.read(place)
                after = client.get_file_info(place)
                identity = (after.modification_time, after.length)
                if identity == (before.modification_time, before.length):
                    return file, identity
            raise replaced(self._path)

        return self._storage.do(self._path, "read", same)

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
                return self._storage.do(
                    self._path, "read", lambda c: file.read_range(offset, length), DATA_SECONDS
                )
            except StorageUnavailable:
                self._file = None
                # At once a second time: where the file was replaced, waiting would be for nothing.
                self._file = self._reopen()
                raise

        data = retry.run(self._path, attempt)
        _data_moves()
        if len(data) != length:
            raise replaced(self._path)
        return data


def raw(file: Any) -> Any:
    """What writes inside hdfs-native's file.

    The file around it closes itself when it is collected, in whichever thread that happens and
    without a limit: where a block's DataNodes have died that takes 15 s and more, for each attempt.
    """
    file.close = lambda: None
    return file.inner


class Sink:
    """A file being written. After an error it is left alone: closing would publish a part, or wait
    for seconds for a block that never comes.

    Args:
        file: `raw` of it.
    """

    def __init__(self, storage: HdfsStorage, path: str, file: Any) -> None:
        self._storage, self._path, self._file = storage, path, file
        self._at = 0
        self._begun = False
        """A block may have been begun by the last piece."""

    def write(self, data: Any) -> None:
        if not isinstance(data, bytes) or len(data) > _PIECE_BYTES:
            view = memoryview(data)
            for at in range(0, len(view), _PIECE_BYTES):
                # hdfs-native takes other buffers than bytes one by one: 10 times slower
                self._write(bytes(view[at : at + _PIECE_BYTES]))
        else:
            self._write(data)

    def _write(self, piece: bytes) -> None:
        if self._begun:
            time.sleep(_SETTLE_SECONDS)
        before, self._at = self._at, self._at + len(piece)
        self._begun = before == 0 or before // _BLOCKS_BYTES != self._at // _BLOCKS_BYTES
        self._storage.do(self._path, "write", lambda c: self._file.write(piece), WRITE_SECONDS)
        _data_moves()

    def close(self) -> None:
        self._storage.do(self._path, "write", lambda c: self._file.close(), WRITE_SECONDS)
        _data_moves()

    def give_up(self) -> None:
        self._file = None
