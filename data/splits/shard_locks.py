"""Locks on the shard cache's files: a file that is locked is not removed to make room.

A reader locks the shards that it reads now and next, whether or not they are in the cache yet. Such
a lock is the kernel's, on one byte of an empty file; a hash of the shard's key gives the offset.
These are OFD locks (of open file descriptions): two threads of one process hold separate ones, and
the kernel releases them when their process dies, so that none is ever stale.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
from collections.abc import Iterable

_FLOCK = "hhqqi4x"  # struct flock of 64-bit Linux: type, whence, start, length, pid


class ShardLocks:
    """The locks of one reader; none after `close`.

    Args:
        path: the file that is locked; made where it is missing.
    """

    def __init__(self, path: str) -> None:
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b")
        self._keys: set[str] = set()

    def replace(self, keys: Iterable[str]) -> None:
        """Hold locks on exactly these files from now on."""
        needed = set(keys)
        for key in needed - self._keys:
            _lock_byte(self._file.fileno(), fcntl.F_OFD_SETLK, fcntl.F_RDLCK, key)
        for key in self._keys - needed:
            _lock_byte(self._file.fileno(), fcntl.F_OFD_SETLK, fcntl.F_UNLCK, key)
        self._keys = needed

    def close(self) -> None:
        """Release all of them."""
        self._keys = set()
        self._file.close()


def is_locked(path: str, key: str) -> bool:
    """Whether a reader of any process of this machine, this one included, locks the file."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return _lock_byte(handle, fcntl.F_OFD_GETLK, fcntl.F_WRLCK, key) != fcntl.F_UNLCK
    finally:
        os.close(handle)


def _lock_byte(handle: int, command: int, kind: int, key: str) -> int:
    """Apply an fcntl lock command to the byte of `key`; the lock type that the kernel returns."""
    offset = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=7).digest(), "big")
    request = struct.pack(_FLOCK, kind, os.SEEK_SET, offset, 1, 0)
    return struct.unpack(_FLOCK, fcntl.fcntl(handle, command, request))[0]
