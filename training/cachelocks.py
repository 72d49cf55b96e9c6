"""The shard cache's locks, all of them the kernel's: gone with their process, however it dies.

Wants tell every process of the machine which files are going to be read. A want is a lock on one
byte of an empty file, at a place that the wanted file's key gives: so one can want what is not
there yet. These are OFD locks (of open file descriptions), as flock's are: the threads of a process
are told apart as well.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
import time
from collections.abc import Iterable
from typing import BinaryIO

from howdah import activity

__all__ = ["Wants", "is_named", "is_wanted", "lock"]

_POLL_SECONDS = 0.02
_FLOCK = "hhqqi4x"  # struct flock of 64-bit Linux: type, whence, start, length, pid


class Wants:
    """What one reader wants; nothing once it is closed.

    Args:
        path: the file of the locks, made where it is not there.
    """

    def __init__(self, path: str) -> None:
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b")
        self._held: set[str] = set()

    def set(self, keys: Iterable[str]) -> None:
        """Want these, and no others any more."""
        wanted = set(keys)
        for key in wanted - self._held:
            _flock(self._file.fileno(), fcntl.F_OFD_SETLK, fcntl.F_RDLCK, key)
        for key in self._held - wanted:
            _flock(self._file.fileno(), fcntl.F_OFD_SETLK, fcntl.F_UNLCK, key)
        self._held = wanted

    def close(self) -> None:
        """Want nothing."""
        self._held = set()
        self._file.close()


def is_wanted(path: str, key: str) -> bool:
    """Somebody wants it, perhaps in this process."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return _flock(handle, fcntl.F_OFD_GETLK, fcntl.F_WRLCK, key) != fcntl.F_UNLCK
    finally:
        os.close(handle)


def _flock(handle: int, command: int, kind: int, key: str) -> int:
    """The type of lock that the kernel answers with."""
    place = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=7).digest(), "big")
    asked = struct.pack(_FLOCK, kind, os.SEEK_SET, place, 1, 0)
    return struct.unpack(_FLOCK, fcntl.fcntl(handle, command, asked))[0]


def lock(file: BinaryIO, name: str | None = None) -> None:
    """Take the lock, however long another process holds it; a signal gets through meanwhile.

    Args:
        name: not waited for longer than the file has this name. What its holder writes into it
            counts as progress here.
    """
    if _locked(file):
        return
    what = "waiting for the shard cache"
    if name is not None:
        what = f"waiting for {os.path.basename(name)}, which another process or thread fetches"
    written = 0
    with activity.doing("cache", what):
        while not _locked(file):
            if name is not None and not is_named(file, name):
                return
            if (now := os.fstat(file.fileno()).st_mtime_ns) != written:
                written = now
                activity.advanced()
            time.sleep(_POLL_SECONDS)


def _locked(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_named(file: BinaryIO, path: str) -> bool:
    """The open file is the one that the name means."""
    try:
        named = os.stat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(file.fileno()), named)
