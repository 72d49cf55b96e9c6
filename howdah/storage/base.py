"""`Backend`: the interface between howdah/storage/__init__.py and each storage.

A backend takes whole paths (with scheme), makes ONE attempt at each call and types its errors with
`faults.typed`; howdah/storage/__init__.py adds what all share: retries, sorted listings, globbing.
"""

from __future__ import annotations

import abc
import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from howdah.core.paths import parent, temp_beside
from howdah.errors import (
    AlreadyExists,
    NotFound,
    StorageError,
    StorageFull,
    StorageUnavailable,
)
from howdah.storage import retry

UMASK = "HOWDAH_UMASK"
"""Environment variable: permission bits, in octal, that new files on HDFS do not get, beside those
of the Hadoop configuration's own umask."""

Fill = Callable[[BinaryIO], object]
"""Writes a file's whole contents to an open handle; called again for each attempt."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A name in a directory: size in bytes (directories: 0), modified in seconds since 1970.

    `owner` (a user's name) and `mode` (permission bits) are None where the storage has none.
    """

    name: str
    path: str
    size: int
    is_dir: bool
    modified: float
    owner: str | None = None
    mode: int | None = None


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
        """The file, seekable; NotFound. Its reads retry by themselves."""

    @abc.abstractmethod
    def open_write(self, path: str, mode: int | None = None) -> BinaryIO:
        """A file open to write, parents made, an old one replaced; its errors are typed.

        Args:
            mode: permission bits of a new file, where the storage has them; None: its default.
        """

    def open_new(self, path: str) -> BinaryIO:
        """`open_write` for a caller that cannot write the file again: no late call affects it."""
        return self.open_write(path)

    @abc.abstractmethod
    def make_dirs(self, path: str, mode: int | None = None) -> None:
        """The directory and its parents; no error if it exists.

        Args:
            mode: permission bits of the directory itself if it is made, where the storage has them.
        """

    @abc.abstractmethod
    def remove(self, path: str, recursive: bool) -> None:
        """A file, or a directory (with all it holds); NotFound if it is not there."""

    @abc.abstractmethod
    def put(
        self, path: str, fill: Fill, *, replace: bool, size: int | None, mode: int | None = None
    ) -> None:
        """A file whole or not at all; without `replace` AlreadyExists if the name is taken.

        Args:
            size: bytes that `fill` will write, where known, for the message of StorageFull.
            mode: as of `open_write`.
        """

    @abc.abstractmethod
    def rename_dir(self, source: str, target: str) -> None:
        """Publish a directory; AlreadyExists if the target is there, NotFound without source."""

    @abc.abstractmethod
    def set_mode(self, path: str, mode: int) -> None:
        """Set the permission bits of what is there; ignored where the storage has none."""

    def free_bytes(self, path: str) -> int | None:
        """Bytes that can still be written at `path`; None where unknown."""
        return None


def closed_bits() -> int:
    """The bits of $HOWDAH_UMASK."""
    try:
        return int(os.environ.get(UMASK, "0"), 8) & 0o777
    except ValueError:
        return 0o777


_late_renames: dict[str, list[str]] = {}
"""{target: temporary files whose removal was not confirmed}: a late rename may still move one to
the target."""


class RenamingBackend(Backend):
    """A storage with an atomic rename: files are written under a temporary name beside theirs.

    A rename whose answer was lost may have happened. Only this writer uses the temporary name, so
    once that is gone the rename was done, whatever the server answers to a second attempt.

    A rename that timed out may still reach the server, minutes later. If the temporary file could
    not be removed either, it is removed before this process writes the same target again: the late
    rename then fails instead of replacing the newer file.
    """

    arrives_late = False
    """The storage is on a network: a call that timed out may still be executed later. (`open_write`
    returns a `files.Writer` then.)"""

    @abc.abstractmethod
    def rename(self, source: str, target: str, *, replace: bool) -> None:
        """One atomic rename; AlreadyExists without `replace`. Never INTO a directory."""

    def open_new(self, path: str) -> BinaryIO:
        """The file has a temporary name until it is closed: a creation that timed out would, if it
        arrives late, replace what the next attempt has written."""
        if not self.arrives_late:
            return self.open_write(path)
        temp = temp_beside(path)
        file: Any = self.open_write(temp)
        file.publish_as(
            path,
            publish=lambda: retry.run(path, lambda: self._settle(temp, path, True)),
            drop=lambda: self._gone(temp),
        )
        return file

    def put(
        self, path: str, fill: Fill, *, replace: bool, size: int | None, mode: int | None = None
    ) -> None:
        """Write a temporary file (a new one for each attempt), then rename it."""
        temps: list[str] = []
        while late := _late_renames.get(path):
            retry.run(path, lambda: self._gone(late[0]))
            late.pop(0)
        _late_renames.pop(path, None)

        def write() -> str:
            temps.append(temp_beside(path))
            with _about(path, temps[-1], size), self.open_write(temps[-1], mode) as file:
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
                try:
                    self._gone(temp)
                except StorageUnavailable:
                    _late_renames.setdefault(path, []).append(temp)
                except StorageError:
                    pass

    def sync(self, file: BinaryIO) -> None:
        """Make written bytes survive a power cut, where closing does not."""

    def _settle(self, temp: str, path: str, replace: bool) -> None:
        try:
            self.rename(temp, path, replace=replace)
        except (AlreadyExists, NotFound):
            if self._there(temp) or not self._there(path):
                raise

    def rename_dir(self, source: str, target: str) -> None:
        """One rename. The checks precede it, since a retry may find the target that it made."""
        retry.run(source, lambda: self.entry(source))
        if retry.run(target, lambda: self._there(target)):
            raise AlreadyExists("cannot publish: it already exists", where=target)
        retry.run(target, lambda: self.make_dirs(parent(target)))
        retry.run(target, lambda: self._settle(source, target, False))

    def _gone(self, path: str) -> None:
        """Remove a file, in one attempt; no error if it is missing."""
        with contextlib.suppress(NotFound):
            self.remove(path, recursive=False)

    def _there(self, path: str) -> bool:
        try:
            self.entry(path)
        except NotFound:
            return False
        return True


@contextlib.contextmanager
def _about(path: str, temp: str, size: int | None) -> Iterator[None]:
    """Make errors about a temporary name name the caller's path, and the bytes it needed."""
    try:
        yield
    except StorageError as error:
        if error.where == temp:
            error.where = path
        if isinstance(error, StorageFull) and size is not None:
            error.expected = f"room for {size:,} bytes"
        raise
