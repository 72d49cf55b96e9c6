"""memory://: fsspec's memory file system as a storage, so that tests need no server.

The product has no such scheme: `register` adds it to the table of howdah/storage/backends.py.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from typing import Any, BinaryIO

from howdah.core.paths import join, name, parent
from howdah.errors import StorageError
from howdah.faults import below_a_file, typed
from howdah.storage import backends
from howdah.storage.base import Entry, RenamingBackend
from howdah.storage.files import Writer
from howdah.storage.fsspec_backends import entry_of


def register() -> None:
    """Give this process, and those that it forks, the scheme memory://."""
    backends.OPENERS["memory"] = lambda path: MemoryStorage()


class MemoryStorage(RenamingBackend):
    """fsspec's memory file system, one for the process; renames under a lock."""

    _lock = threading.RLock()

    def __init__(self) -> None:
        import fsspec

        self._fs: Any = fsspec.filesystem("memory")

    @staticmethod
    def _key(path: str) -> str:
        return "/" + path.partition("://")[2].strip("/")

    def entry(self, path: str) -> Entry:
        with self._lock, typed(path, "look up"):
            return entry_of(path, self._fs.info(self._key(path)))

    def list_dir(self, path: str) -> Iterator[Entry]:
        key = self._key(path)
        with self._lock, typed(path, "list"):
            if self._fs.isfile(key):
                raise NotADirectoryError(path)
            infos = self._fs.ls(key, detail=True)
        return iter([entry_of(join(path, name(info["name"])), info) for info in infos])

    def open_read(self, path: str) -> BinaryIO:
        with self._lock, typed(path, "read"):
            data = self._fs.cat_file(self._key(path))
        return io.BytesIO(data)

    def open_write(self, path: str, mode: int | None = None) -> BinaryIO:
        with self._lock, typed(path, "write"):
            self._make_dirs(self._key(parent(path)), path, "write")
            file = self._fs.open(self._key(path), "wb")
        return Writer(file, lambda: typed(path, "write"), path=path, gather=0)

    def make_dirs(self, path: str, mode: int | None = None) -> None:
        with self._lock, typed(path, "make the directory"):
            self._make_dirs(self._key(path), path, "make the directory")

    def _make_dirs(self, key: str, path: str, doing: str) -> None:
        """A directory and its parents, for `path`; fsspec's own takes a file for one."""
        ancestor = key
        while ancestor != "/":
            if self._fs.isfile(ancestor):
                raise below_a_file(path, doing, f"memory:/{ancestor}")
            ancestor = parent(ancestor)
        self._fs.makedirs(key, exist_ok=True)

    def set_mode(self, path: str, mode: int) -> None:
        """This process's memory has no permission bits."""

    def remove(self, path: str, recursive: bool) -> None:
        with self._lock, typed(path, "remove"):
            key = self._key(path)
            store, folders = self._fs.store, self._fs.pseudo_dirs
            self._fs.info(key)
            below = [k for k in [*store, *folders] if k.startswith(key + "/")]
            if below and not recursive:
                raise StorageError("cannot remove: the directory is not empty", where=path)
            for gone in [key, *below]:  # fsspec's rm would expand names as patterns
                store.pop(gone, None)
            folders[:] = [f for f in folders if f != key and not f.startswith(key + "/")]

    def rename(self, source: str, target: str, *, replace: bool) -> None:
        old, new = self._key(source), self._key(target)
        with self._lock, typed(target, "write" if replace else "create"):
            if self._fs.exists(new) and not (replace and self._fs.isfile(new)):
                raise FileExistsError(target)
            if not self._fs.exists(old):
                raise FileNotFoundError(source)
            # In the store itself: fsspec's mv copies, and shows an empty file while it does.
            store, folders = self._fs.store, self._fs.pseudo_dirs
            for key in [k for k in store if k == old or k.startswith(old + "/")]:
                moved = new + key[len(old) :]
                store[moved] = store.pop(key)
                store[moved].path = moved
            folders[:] = [
                new + f[len(old) :] if f == old or f.startswith(old + "/") else f for f in folders
            ]
