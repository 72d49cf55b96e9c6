"""Files of this machine: plain paths and file://."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from typing import BinaryIO

from howdah.errors import NotFound
from howdah.storage.base import Entry, RenamingBackend
from howdah.storage.faults import typed
from howdah.storage.files import Writer
from howdah.storage.paths import join, local_path, name, parent


class LocalStorage(RenamingBackend):
    """os and shutil, with errors typed and renames that survive a power cut."""

    def entry(self, path: str) -> Entry:
        place = local_path(path)
        with typed(path, "look up"):
            info = os.stat(place)
        directory = os.path.isdir(place)
        return Entry(
            name=name(path),
            path=path,
            size=0 if directory else info.st_size,
            is_dir=directory,
            modified=info.st_mtime,
        )

    def list_dir(self, path: str) -> Iterator[Entry]:
        found = []
        with typed(path, "list"), os.scandir(local_path(path)) as items:
            for item in items:
                try:
                    info = item.stat()
                except FileNotFoundError:
                    continue  # gone since: another process published or removed it
                directory = item.is_dir()
                found.append(
                    Entry(
                        name=item.name,
                        path=join(path, item.name),
                        size=0 if directory else info.st_size,
                        is_dir=directory,
                        modified=info.st_mtime,
                    )
                )
        return iter(found)

    def open_read(self, path: str) -> BinaryIO:
        with typed(path, "read"):
            return open(local_path(path), "rb")

    def open_write(self, path: str) -> BinaryIO:
        place = local_path(path)
        with typed(path, "write", self.free_bytes):
            os.makedirs(os.path.dirname(place), exist_ok=True)
            file = open(place, "wb")  # noqa: SIM115 - the Writer closes it
        return Writer(file, lambda: typed(path, "write", self.free_bytes), path=path, gather=0)

    def make_dirs(self, path: str) -> None:
        with typed(path, "make the directory", self.free_bytes):
            os.makedirs(local_path(path), exist_ok=True)

    def remove(self, path: str, recursive: bool) -> None:
        place = local_path(path)
        with typed(path, "remove"):
            if not os.path.isdir(place) or os.path.islink(place):
                os.unlink(place)
            elif recursive:
                shutil.rmtree(place)
            else:
                os.rmdir(place)

    def rename(self, source: str, target: str, *, replace: bool) -> None:
        old, new = local_path(source), local_path(target)
        with typed(target, "write" if replace else "create", self.free_bytes):
            if replace:
                os.replace(old, new)
            else:
                # link, unlike rename, refuses an existing target; unlike O_EXCL it shows the
                # name only once the contents are whole.
                os.link(old, new)
                os.unlink(old)

    def rename_dir(self, source: str, target: str) -> None:
        with typed(target, "publish", self.free_bytes):
            if os.path.lexists(local_path(target)):
                raise FileExistsError(target)
            os.makedirs(local_path(parent(target)), exist_ok=True)
            try:
                os.rename(local_path(source), local_path(target))
            except FileNotFoundError:
                raise NotFound("cannot publish: it is not there", where=source) from None
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
        place = local_path(path)
        while not os.path.exists(place):
            place = os.path.dirname(place)
        with contextlib.suppress(OSError):
            return shutil.disk_usage(place).free
        return None


def _sync_directory(place: str) -> None:
    """Make a rename survive a power cut."""
    handle = os.open(place, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
