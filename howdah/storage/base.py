"""What every storage can do: the seam between howdah/storage/__init__.py and its backends.

A backend takes whole paths (with scheme), makes ONE attempt at each call and lets its errors be
typed by `faults.typed`; howdah/storage/__init__.py adds what all share: trying again, listing in
order, globbing.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from howdah.errors import AlreadyExists, NotFound, StorageError, StorageFull
from howdah.storage import retry
from howdah.storage.paths import parent, temp_beside

Fill = Callable[[BinaryIO], None]
"""Writes a file's whole contents to an open handle; called again when a write is tried again."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A name in a directory: size in bytes (directories: 0), modified in seconds since 1970."""

    name: str
    path: str
    size: int
    is_dir: bool
    modified: float


class Backend(abc.ABC):
    """One storage of one process. Errors are StorageErrors that name the path."""

    @abc.abstractmethod
    def entry(self, path: str) -> Entry:
        """Size, kind and time of one path; NotFound."""

    @abc.abstractmethod
    def list_dir(self, path: str) -> Iterable[Entry]:
        """What a directory holds, in any order, unfinished names too; NotFound."""

    @abc.abstractmethod
    def open_read(self, path: str) -> BinaryIO:
        """The file, seekable; NotFound. Reads try again by themselves."""

    @abc.abstractmethod
    def open_write(self, path: str) -> BinaryIO:
        """A file open to write, parents made, an old one replaced; its errors are typed."""

    @abc.abstractmethod
    def make_dirs(self, path: str) -> None:
        """The directory and its parents; being there is fine."""

    @abc.abstractmethod
    def remove(self, path: str, recursive: bool) -> None:
        """A file, or a directory (with all it holds); NotFound if it is not there."""

    @abc.abstractmethod
    def put(self, path: str, fill: Fill, *, replace: bool, size: int | None) -> None:
        """A file whole or not at all; without `replace` AlreadyExists if the name is taken.

        Args:
            size: bytes that `fill` will write, where known: for the message when room runs out.
        """

    @abc.abstractmethod
    def rename_dir(self, source: str, target: str) -> None:
        """Publish a directory; AlreadyExists if the target is there, NotFound without source."""

    def free_bytes(self, path: str) -> int | None:
        """Bytes that can still be written at `path`; None where the storage does not tell."""
        return None


class RenamingBackend(Backend):
    """A storage with an atomic rename: files are written under a temporary name beside theirs.

    A rename whose answer was lost may have happened. The temporary name is ours alone, so it tells:
    once it is gone the rename was done, whatever the server says to a second one.
    """

    @abc.abstractmethod
    def rename(self, source: str, target: str, *, replace: bool) -> None:
        """One atomic rename; AlreadyExists without `replace`. Never INTO a directory."""

    def put(self, path: str, fill: Fill, *, replace: bool, size: int | None) -> None:
        """Write a temporary file (a new one for each attempt), then rename it."""
        temps: list[str] = []

        def write() -> str:
            temps.append(temp_beside(path))
            with _about(path, temps[-1], size), self.open_write(temps[-1]) as file:
                fill(file)
                self.sync(file)
            return temps[-1]

        try:
            temp = retry.run(path, write)
            with _about(path, temp, size):
                retry.run(path, lambda: self._settle(temp, path, replace))
            temps.remove(temp)
        finally:
            for temp in temps:
                with contextlib.suppress(StorageError):
                    self.remove(temp, recursive=False)

    def sync(self, file: BinaryIO) -> None:
        """Make written bytes survive a power cut, where closing does not."""

    def _settle(self, temp: str, path: str, replace: bool) -> None:
        try:
            self.rename(temp, path, replace=replace)
        except (AlreadyExists, NotFound):
            if self._there(temp) or not self._there(path):
                raise

    def rename_dir(self, source: str, target: str) -> None:
        """One rename. What the first attempt finds decides; later ones may meet their own work."""
        retry.run(source, lambda: self.entry(source))
        if retry.run(target, lambda: self._there(target)):
            raise AlreadyExists("cannot publish: it is there already", where=target)
        retry.run(target, lambda: self.make_dirs(parent(target)))
        retry.run(target, lambda: self._settle(source, target, False))

    def _there(self, path: str) -> bool:
        try:
            self.entry(path)
        except NotFound:
            return False
        return True


@contextlib.contextmanager
def _about(path: str, temp: str, size: int | None) -> Iterator[None]:
    """Errors about a temporary name are about the caller's path, and tell what it needed."""
    try:
        yield
    except StorageError as error:
        if error.where == temp:
            error.where = path
        if isinstance(error, StorageFull) and size is not None:
            error.expected = f"room for {size:,} bytes"
        raise
