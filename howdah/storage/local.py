"""Files of this machine: plain paths and file://."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import pwd
import shutil
import stat
from collections.abc import Callable, Iterator
from typing import BinaryIO

from howdah.core.paths import join, local_path, name, parent
from howdah.errors import NotFound, StorageError
from howdah.faults import below_a_file, typed
from howdah.storage.base import Entry, RenamingBackend
from howdah.storage.files import Writer

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)
"""What link(2) answers on file systems without hard links: a missing permission is EACCES."""
_NO_DIRECTORY_SYNC = (errno.EINVAL, errno.EBADF, errno.EOPNOTSUPP, errno.EACCES, errno.ENOSYS)
"""What opening a directory or fsync(2) of it answers on network and FUSE file systems that cannot
sync a directory, or in one that may be written but not read."""


class LocalStorage(RenamingBackend):
    """os and shutil, with errors typed and renames that survive a power cut."""

    def entry(self, path: str) -> Entry:
        with typed(path, "look up"):
            info = os.stat(local_path(path))
        return _entry(path, info)

    def list_dir(self, path: str) -> Iterator[Entry]:
        entries = []
        with typed(path, "list"), os.scandir(local_path(path)) as items:
            for item in items:
                try:
                    info = item.stat()
                except FileNotFoundError:
                    continue  # another process has renamed or removed it
                entries.append(_entry(join(path, item.name), info))
        return iter(entries)

    def open_read(self, path: str) -> BinaryIO:
        with typed(path, "read"):
            return open(local_path(path), "rb")

    def open_write(self, path: str, mode: int | None = None) -> BinaryIO:
        local = local_path(path)
        with typed(path, "write", self.free_bytes):
            _make_dirs(os.path.dirname(local), path, "write")
            file = open(local, "wb", opener=_opener(mode))  # noqa: SIM115 - the Writer closes it
        return Writer(file, lambda: typed(path, "write", self.free_bytes), path=path, gather=0)

    def make_dirs(self, path: str, mode: int | None = None) -> None:
        local = local_path(path)
        doing = "make the directory"
        with typed(path, doing, self.free_bytes):
            if mode is not None and not os.path.isdir(local):
                _make_dirs(os.path.dirname(local), path, doing)
                with contextlib.suppress(FileExistsError):  # another process was faster
                    os.mkdir(local, mode & 0o700)
                    os.chmod(local, mode)  # whatever the umask leaves out
            _make_dirs(local, path, doing)

    def remove(self, path: str, recursive: bool) -> None:
        local = local_path(path)
        with typed(path, "remove"):
            if not os.path.isdir(local) or os.path.islink(local):
                os.unlink(local)
            elif recursive:
                shutil.rmtree(local)
            else:
                os.rmdir(local)

    def set_mode(self, path: str, mode: int) -> None:
        with typed(path, "set the mode"):
            os.chmod(local_path(path), mode)

    def rename(self, source: str, target: str, *, replace: bool) -> None:
        old, new = local_path(source), local_path(target)
        with typed(target, "write" if replace else "create", self.free_bytes):
            if replace:
                os.replace(old, new)
            else:
                # link, unlike rename, fails if the target exists; unlike O_EXCL it makes the name
                # visible only once the contents are whole.
                try:
                    os.link(old, new)
                except OSError as error:
                    if error.errno in _NO_LINKS:
                        raise _without_links(target, error) from None
                    raise
                os.unlink(old)

    def rename_dir(self, source: str, target: str) -> None:
        with typed(target, "publish", self.free_bytes):
            if os.path.lexists(local_path(target)):
                raise FileExistsError(target)
            _make_dirs(local_path(parent(target)), target, "publish")
            try:
                os.rename(local_path(source), local_path(target))
            except FileNotFoundError:
                raise NotFound("cannot publish: the source does not exist", where=source) from None
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                    raise FileExistsError(target) from None
                raise
            _sync_directory(local_path(parent(target)))

    def sync(self, file: BinaryIO) -> None:
        file.flush()
        os.fsync(file.fileno())

    def free_bytes(self, path: str) -> int | None:
        """Free bytes on the disk of a path, or of its nearest existing parent."""
        local = local_path(path)
        while not os.path.exists(local):
            local = os.path.dirname(local)
        with contextlib.suppress(OSError):
            return shutil.disk_usage(local).free
        return None


def _make_dirs(directory: str, path: str, doing: str) -> None:
    """Make a directory and its parents, for `path`.

    Raises:
        StorageError: it is a file, or below one: makedirs says "exists" of both, which a caller
            would take for `path`.
    """
    try:
        os.makedirs(directory, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        existing = directory
        while not os.path.lexists(existing):
            existing = os.path.dirname(existing)
        if os.path.isdir(existing):  # another process is making or removing these names
            raise
        raise below_a_file(path, doing, existing) from None


def _entry(path: str, info: os.stat_result) -> Entry:
    directory = stat.S_ISDIR(info.st_mode)
    return Entry(
        name=name(path),
        path=path,
        size=0 if directory else info.st_size,
        is_dir=directory,
        modified=info.st_mtime,
        owner=_user_name(info.st_uid),
        mode=stat.S_IMODE(info.st_mode),
    )


@functools.lru_cache(maxsize=1000)
def _user_name(uid: int) -> str:
    """The user's name; the number if this machine does not know it."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _opener(mode: int | None) -> Callable[[str, int], int] | None:
    """For `open(opener=)`: create the file with these permission bits, regardless of the umask."""
    if mode is None:
        return None

    def opened(path: str, flags: int) -> int:
        handle = os.open(path, flags, mode)
        os.fchmod(handle, mode)
        return handle

    return opened


def _without_links(path: str, error: OSError) -> StorageError:
    return StorageError(
        "cannot create the file exclusively: this file system has no hard links",
        where=path,
        got=str(error.strerror),
        remedy="give a directory on another file system: exFAT disks and folders shared with a"
        " virtual machine often have none",
    )


def _sync_directory(directory: str) -> None:
    """Make a rename survive a power cut, where the file system can: the rename itself is done."""
    try:
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_SYNC:
            raise
