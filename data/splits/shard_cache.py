"""Local copies of remote files: fetched once for all processes of a node, whole, and bounded.

    <directory>/space.lock            held while room is made
    <directory>/shards.lock           the locks on what is read now and next (shard_locks.py)
    <directory>/room_requests.lock    held, shared, by a reader that cannot continue without room
    <directory>/<set>/in-use          locked by every process that has this set of files open
    <directory>/<set>/<name>          a whole file; a reader holds a shared lock on it (Pin)
    <directory>/<set>/<name>.part     being fetched by the process that holds its lock

A file gets its own name by a rename, after its check; from then on it is only read or removed.

When a file may leave the disk: only to make room for another one, the least recently used first,
and only while (`ShardCache._remove_if_unused`)

    no reader has locked it        the shards that a reader reads now and next: Prefetcher
    no process has it pinned       a shard: mapped by ShardSet
    its set is not in use          an index: mapped as long as its dataset is open

A reader that finds no room releases its pins before it waits (`ShardSet._open`), and requests room
(`request_room`). Prefetchers whose own reader waits anyway then release their locks, so that no
two ranks wait for each other. A copy that is found damaged is removed at once (`drop`).

All locks are the kernel's, flock(2) on open files but for shards.lock: they end with their process,
however it dies, so that none is ever stale. The unlocked `.part` of a killed process is fetched
anew by the next process that needs the file, or removed to make room. Files are open to read where
their lock is shared and to write where it is exclusive, as NFS demands (flock(2)): home directories
often lie there.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from howdah import storage
from howdah.core import activity
from howdah.core.cache import cache_root
from howdah.core.processes import is_named, locked
from howdah.data.splits.shard_locks import ShardLocks, is_locked
from howdah.errors import HowdahError, PermissionDenied, StorageError, StorageFull

DEFAULT_BYTES = 20 * 2**30
_PART = ".part"
_ROOM_REQUESTS, _SHARD_LOCKS = "room_requests.lock", "shards.lock"
_POLL_SECONDS = 0.02
_KEPT = ".index"
"""Ending of files that stay while their set is in use: they are mapped without a lock of their own,
which would take an open file for each."""

Fill = Callable[[BinaryIO], None]
"""Writes a file's whole contents; raises if they are not the expected ones."""


class NoRoom(StorageFull):
    """All files of the cache are in use or locked at this moment."""


def default_directory() -> str:
    """Where local copies lie unless the configuration says otherwise."""
    return os.path.join(cache_root(), "shards")


@dataclass(frozen=True)
class Pin:
    """A file of the cache, open to read: it is not removed before `release`."""

    file: BinaryIO

    def release(self) -> None:
        """The file may be removed when room is needed."""
        self.file.close()

    def __del__(self) -> None:
        self.release()


class ShardCache:
    """The cache in one directory.

    Args:
        directory: local; made when it is first used, for this user alone.
        limit_bytes: of all files in it together, those of other runs and datasets too.
    """

    def __init__(self, directory: str | None = None, limit_bytes: int = DEFAULT_BYTES) -> None:
        self.directory = storage.local_path(directory or default_directory())  # ~ is home
        self.limit_bytes = limit_bytes

    def _make_directory(self) -> None:
        os.makedirs(self.directory, mode=0o700, exist_ok=True)
        owner = os.stat(self.directory).st_uid
        if owner != os.geteuid():
            raise PermissionDenied(
                "the shard cache belongs to another user, who could alter what is trained on",
                where=self.directory,
                expected=f"a directory of user {os.geteuid()}",
                got=f"owner {owner}",
                remedy="set training.shard_cache_directory or HOWDAH_CACHE elsewhere",
            )

    def use(self, name: str) -> Pin:
        """Mark the set `name` as in use: its indexes stay until the pin is released.

        Call it before anything of the set is fetched or taken.

        Raises:
            PermissionDenied, StorageError: the directory cannot be made, or has another owner.
        """
        with self._typed():
            self._make_directory()
            os.makedirs(os.path.join(self.directory, name), exist_ok=True)
            file = open(os.path.join(self.directory, name, "in-use"), "a+b")  # noqa: SIM115
            fcntl.flock(file, fcntl.LOCK_SH)
        return Pin(file)

    def path(self, key: str) -> str:
        """Local path of a file.

        Args:
            key: "<set>/<name>".
        """
        return storage.join(self.directory, key)  # which refuses a key that leads elsewhere

    def holds(self, key: str, size: int) -> bool:
        """Whether the whole file is there."""
        try:
            return os.stat(self.path(key)).st_size == size
        except FileNotFoundError:
            return False

    # ------------------------------------------------------------------------------- reading
    def take(self, key: str, size: int, fill: Fill) -> Pin:
        """The file, open and pinned; fetched first if it is missing.

        Args:
            key: "<set>/<name>".
            size: bytes it has, exactly.
            fill: fetches it; called at most once at a time on this node.
        Raises:
            NoRoom: the files in use leave too little room; try again later.
            StorageFull: the disk is full.
            HowdahError: what `fill` raises.
        """
        while True:
            pin = self._pinned(key, size)
            if pin is not None:
                return pin
            self.fetch(key, size, fill)

    def _pinned(self, key: str, size: int) -> Pin | None:
        try:
            file = open(self.path(key), "rb")  # noqa: SIM115 - open as long as it is pinned
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_SH)
            info = os.fstat(file.fileno())
            if info.st_nlink and info.st_size == size:
                os.utime(file.fileno())  # what was used last is removed last
                return Pin(file)
        except BaseException:
            file.close()
            raise
        file.close()
        if info.st_nlink:  # of another size: damaged from outside
            self.drop(key)
        return None

    def drop(self, key: str) -> None:
        """Remove a file; processes that have it open keep reading its bytes."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path(key))

    # ------------------------------------------------------------------------------ fetching
    def fetch(self, key: str, size: int, fill: Fill) -> None:
        """Make sure that the file is there: of all processes that need it, one fetches it.

        A file that is there already counts as used now.

        Raises:
            As `take`.
        """
        path = self.path(key)
        if self.holds(key, size):
            with contextlib.suppress(FileNotFoundError):
                os.utime(path)
                return
        with self._typed():
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with self._part(path) as file:
                if file is None or self.holds(key, size):
                    return
                try:
                    self._make_room(file, size)
                    # Processes that wait for this file see by its modification time that the
                    # fetch is alive, also while storage is away and no bytes come (_lock).
                    with activity.hearing_notes(lambda text: os.utime(file.fileno())):
                        fill(file)
                    file.flush()
                    if os.fstat(file.fileno()).st_size != size:
                        raise ValueError(f"{key}: not filled with {size} bytes")
                    os.fsync(file.fileno())  # the name must not outlive its bytes
                    with self._space():  # a process that sums up sizes must see one of the names
                        os.rename(path + _PART, path)
                except BaseException:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(path + _PART)
                    raise

    @contextlib.contextmanager
    def _part(self, path: str) -> Iterator[BinaryIO | None]:
        """The locked, empty `.part` of `path`; None if another process has finished the file."""
        while True:
            handle = os.open(path + _PART, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            file = os.fdopen(handle, "r+b")
            try:
                # Once renamed, the file's lock is held by its readers: do not wait for them.
                _lock(file, path + _PART)
                if not is_named(file, path + _PART):
                    # The process that held the lock has finished the file, or given up.
                    if os.path.exists(path):
                        yield None
                        return
                    continue
                file.truncate(0)
                yield file
                return
            finally:
                file.close()

    # ---------------------------------------------------------------------------------- room
    def shard_locks(self) -> ShardLocks:
        """A reader's locks, none yet: what it locks is not removed to make room."""
        with self._typed():
            return ShardLocks(os.path.join(self.directory, _SHARD_LOCKS))

    @contextlib.contextmanager
    def request_room(self) -> Iterator[None]:
        """Inside, `room_requested` is true in every process: a reader here cannot continue."""
        with self._typed(), open(os.path.join(self.directory, _ROOM_REQUESTS), "a+b") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            yield

    def room_requested(self) -> bool:
        """Whether a reader of any process, this one included, cannot continue without room.

        Also true, by mistake, where two processes ask this at the same moment.
        """
        try:
            with open(os.path.join(self.directory, _ROOM_REQUESTS), "r+b") as file:
                return not locked(file)
        except FileNotFoundError:
            return False

    @contextlib.contextmanager
    def _space(self) -> Iterator[None]:
        """One process at a time makes room, or gives a file its name."""
        with open(os.path.join(self.directory, "space.lock"), "ab") as file:
            _lock(file)
            yield

    def _make_room(self, file: BinaryIO, size: int) -> None:
        """Reserve `size` bytes on the disk for `file`; removes least recently used files."""
        with self._space():
            copies = self._copies()
            used = sum(copy.size for copy in copies)
            while used + size > self.limit_bytes:
                freed = self._remove_oldest(copies)
                if freed is None:
                    raise NoRoom(
                        "the shard cache is full of shards in use",
                        where=self.directory,
                        expected=f"{_mib(size)} free of {_mib(self.limit_bytes)}",
                        got=f"{_mib(used)} in use",
                        remedy="raise training.shard_cache_bytes, or give runs that share this"
                        " machine a training.shard_cache_directory each",
                    )
                used -= freed
            while True:
                try:
                    os.posix_fallocate(file.fileno(), 0, max(size, 1))
                    os.ftruncate(file.fileno(), size)
                except OSError as error:
                    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                        raise
                    if self._remove_oldest(copies) is None:
                        raise self._disk_full(size) from None
                else:
                    file.seek(0)
                    return

    def _copies(self) -> list[_Copy]:
        """All files, the least recently used one last."""
        copies = []
        for folder in os.scandir(self.directory):
            if not folder.is_dir(follow_symlinks=False):
                continue
            for item in os.scandir(folder.path):
                with contextlib.suppress(FileNotFoundError):  # renamed or removed since
                    info = item.stat(follow_symlinks=False)
                    if item.name != "in-use":
                        copies.append(_Copy(item.path, info.st_size, info.st_mtime_ns))
        return sorted(copies, key=lambda copy: -copy.used)

    def _remove_oldest(self, copies: list[_Copy]) -> int | None:
        """Remove the least recently used file that may go; its bytes, or None if none may."""
        while copies:
            copy = copies.pop()
            if self._remove_if_unused(copy.path):
                return copy.size
        return None

    def _remove_if_unused(self, path: str) -> bool:
        """Remove a file unless it is locked, pinned, or an index of a set in use."""
        key = os.path.relpath(path, self.directory)
        if is_locked(os.path.join(self.directory, _SHARD_LOCKS), key):
            return False
        guard = path  # its lock tells whether the file is in use
        if path.endswith(_KEPT):
            guard = os.path.join(os.path.dirname(path), "in-use")
        with contextlib.suppress(FileNotFoundError), open(guard, "r+b") as file:
            if locked(file) and (guard != path or is_named(file, path)):
                os.unlink(path)
                return True
        return False

    def _disk_full(self, size: int) -> StorageFull:
        disk = os.statvfs(self.directory)
        return StorageFull(
            "no room on the disk for a shard",
            where=self.directory,
            expected=f"{_mib(size)} free",
            got=f"{_mib(disk.f_bavail * disk.f_frsize)} free",
            remedy="make room, or set training.shard_cache_directory to a larger disk",
        )

    @contextlib.contextmanager
    def _typed(self) -> Iterator[None]:
        """Turn the operating system's errors into typed ones that name the file or directory."""
        try:
            yield
        except HowdahError:
            raise
        except PermissionError as error:
            raise PermissionDenied(
                "the shard cache cannot be written",
                where=error.filename or self.directory,
                got=str(error),
                remedy="set training.shard_cache_directory or HOWDAH_CACHE elsewhere",
            ) from None
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise self._disk_full(0) from None
            raise StorageError(
                "the shard cache cannot be used",
                where=error.filename or self.directory,
                got=str(error),
                remedy="set training.shard_cache_directory or HOWDAH_CACHE elsewhere",
            ) from error


@dataclass(frozen=True)
class _Copy:
    path: str
    size: int
    used: int
    """Nanoseconds since 1970."""


def _lock(file: BinaryIO, name: str | None = None) -> None:
    """Take a file's exclusive lock; signals are handled while it waits.

    Args:
        name: return without the lock once the file no longer has this name. What the holder writes
            into the file, and each of its attempts to reach a storage that is away, counts as
            progress here.
    """
    if locked(file):
        return
    what = "waiting for the shard cache"
    if name is not None:
        what = f"waiting for {os.path.basename(name)}, which another process or thread is fetching"
    written = 0
    with activity.current().doing("cache", what):
        while not locked(file):
            if name is not None and not is_named(file, name):
                return
            if (now := os.fstat(file.fileno()).st_mtime_ns) != written:
                written = now
                activity.current().advanced()
            time.sleep(_POLL_SECONDS)


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
