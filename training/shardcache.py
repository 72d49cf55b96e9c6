"""Local copies of remote files: fetched once for all processes of a node, whole, and bounded.

    <directory>/space.lock            held for the moment in which room is made
    <directory>/wanted.lock           what is going to be read: cachelocks.py
    <directory>/asked.lock            held, shared, by whoever cannot go on for want of room
    <directory>/<set>/in-use          locked by every process that has this set of files open
    <directory>/<set>/<name>          a whole file; who reads it holds a shared lock on it
    <directory>/<set>/<name>.part     being fetched by whoever holds its lock

All locks are flock(2) on open files, but for wants: the kernel lets go of them when their process
dies, however it dies, so that none is ever stale. What a killed process had half fetched is an
unlocked `.part`: the next one that needs the file fetches it anew, or whoever needs room removes
it. A file appears under its own name by a rename, after its check; from then on it is only read or,
least recently used first and never while somebody reads or wants it, removed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from howdah import storage
from howdah.cache import cache_root
from howdah.errors import HowdahError, PermissionDenied, StorageError, StorageFull
from training.cachelocks import Wants, is_named, is_wanted, lock

__all__ = ["NoRoom", "Pin", "ShardCache", "default_directory"]

DEFAULT_BYTES = 20 * 2**30
_PART = ".part"
_ASKED, _WANTED = "asked.lock", "wanted.lock"
_KEPT = ".index"
"""Files that stay while their set is in use: they are mapped, but hold no lock of their own (one
open file for each would be too many)."""

Fill = Callable[[BinaryIO], None]
"""Writes a file's whole contents, and raises if they are not what they must be."""


class NoRoom(StorageFull):
    """Everything that the cache holds is being read at this moment."""


def default_directory() -> str:
    """Where local copies lie unless the configuration says so."""
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
        self.directory = directory or default_directory()
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
        """Say that the set `name` is in use; its indexes stay until the pin is released.

        To be called before anything of the set is fetched or taken.

        Raises:
            PermissionDenied, StorageError: the directory cannot be made or is somebody else's.
        """
        with self._typed():
            self._make_directory()
            os.makedirs(os.path.join(self.directory, name), exist_ok=True)
            file = open(os.path.join(self.directory, name, "in-use"), "ab")  # noqa: SIM115
            fcntl.flock(file, fcntl.LOCK_SH)
        return Pin(file)

    def path(self, key: str) -> str:
        """Local path of a file.

        Args:
            key: "<set>/<name>".
        """
        return storage.join(self.directory, key)  # which refuses a key that leads elsewhere

    def holds(self, key: str, size: int) -> bool:
        """The file is there whole."""
        try:
            return os.stat(self.path(key)).st_size == size
        except FileNotFoundError:
            return False

    # ------------------------------------------------------------------------------- reading
    def take(self, key: str, size: int, fill: Fill) -> Pin:
        """The file, open and pinned; fetched first where it is not there.

        Args:
            key: "<set>/<name>".
            size: bytes it has, exactly.
            fill: fetches it; called at most once at a time on this node.
        Raises:
            NoRoom: the files being read now leave too little room; to be tried again.
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
        if info.st_nlink:  # of another size: damaged from outside, and of no use to anybody
            self.drop(key)
        return None

    def drop(self, key: str) -> None:
        """Remove a file; whoever reads it keeps what he has."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path(key))

    # ------------------------------------------------------------------------------ fetching
    def fetch(self, key: str, size: int, fill: Fill) -> None:
        """Have the file there: of all processes that want it at once, one fetches it.

        One that is there counts as used now.

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
                    fill(file)
                    file.flush()
                    if os.fstat(file.fileno()).st_size != size:
                        raise ValueError(f"{key}: not filled with {size} bytes")
                    os.fsync(file.fileno())  # the name must not outlive its bytes
                    with self._space():  # or who counts what there is might see neither name
                        os.rename(path + _PART, path)
                except BaseException:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(path + _PART)
                    raise

    @contextlib.contextmanager
    def _part(self, path: str) -> Iterator[BinaryIO | None]:
        """The locked, empty file that is going to be `path`; None if somebody else has made it."""
        while True:
            handle = os.open(path + _PART, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            file = os.fdopen(handle, "r+b")
            try:
                # Once it is whole its readers hold its lock: it is no `.part` any more then.
                lock(file, path + _PART)
                if not is_named(file, path + _PART):
                    # Whoever held it has finished it, or given up: the name is free or another's.
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
    def wants(self) -> Wants:
        """To say what is going to be read: nobody removes that to make room."""
        with self._typed():
            return Wants(os.path.join(self.directory, _WANTED))

    @contextlib.contextmanager
    def asking_for_room(self) -> Iterator[None]:
        """Meanwhile `is_short` tells every process that somebody cannot go on for want of room."""
        with self._typed(), open(os.path.join(self.directory, _ASKED), "ab") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            yield

    def is_short(self) -> bool:
        """Somebody, perhaps in this process, cannot go on for want of room.

        True as well for who looks at the very moment at which another looks.
        """
        try:
            with open(os.path.join(self.directory, _ASKED), "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    @contextlib.contextmanager
    def _space(self) -> Iterator[None]:
        with open(os.path.join(self.directory, "space.lock"), "ab") as file:
            lock(file)
            yield

    def _make_room(self, file: BinaryIO, size: int) -> None:
        """Give `file` its bytes on the disk, at the cost of what was used longest ago."""
        with self._space():
            held = self._held()
            used = sum(entry.size for entry in held)
            while used + size > self.limit_bytes:
                freed = self._remove_oldest(held)
                if freed is None:
                    raise NoRoom(
                        "the shard cache is full of what is being read",
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
                    if self._remove_oldest(held) is None:
                        raise self._disk_full(size) from None
                else:
                    file.seek(0)
                    return

    def _held(self) -> list[_Held]:
        """Files there are, the one used longest ago last."""
        found = []
        for folder in os.scandir(self.directory):
            if not folder.is_dir(follow_symlinks=False):
                continue
            for item in os.scandir(folder.path):
                with contextlib.suppress(FileNotFoundError):  # renamed or removed since
                    info = item.stat(follow_symlinks=False)
                    if item.name != "in-use":
                        found.append(_Held(item.path, info.st_size, info.st_mtime_ns))
        return sorted(found, key=lambda entry: -entry.used)

    def _remove_oldest(self, held: list[_Held]) -> int | None:
        """Remove one file that nobody uses or wants; its bytes, or None where there is none."""
        wanted = os.path.join(self.directory, _WANTED)
        while held:
            entry = held.pop()
            if is_wanted(wanted, os.path.relpath(entry.path, self.directory)):
                continue
            guard = entry.path
            if entry.path.endswith(_KEPT):
                guard = os.path.join(os.path.dirname(entry.path), "in-use")
            with contextlib.suppress(FileNotFoundError, BlockingIOError):
                with open(guard, "rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if guard != entry.path or is_named(file, entry.path):
                        os.unlink(entry.path)
                        return entry.size
        return None

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
        """What the operating system refuses, as an error that names the directory."""
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
class _Held:
    path: str
    size: int
    used: int
    """Nanoseconds since 1970."""


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
