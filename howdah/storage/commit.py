"""Atomic publication: a file or directory gets its name once it is complete, or not at all.

    with commit.stage(fresh) as staged:         # a name that no reader opens
        write(staged.path)
        fence.check()                           # the caller's own check, before the rename
        replaced = staged.publish(target, aside=commit.hidden(target, "old"))
    if replaced is not None:
        commit.discard(replaced)

It relies on these properties of the storages:

- A rename is atomic on files, on HDFS and in memory, never moves INTO an existing directory, and of
  two publishers of one name exactly one succeeds (`storage.rename_dir`).
- S3 has no rename: `rename_dir` copies, manifest.json last, and does not notice another publisher
  of the same directory. Where several may publish there, a file that is created exclusively
  decides: a dataset's manifest (its files have names of their own, and are not renamed), or the
  claim of a published model's number.
- No storage exchanges two directories in one step. The old one is renamed aside first and removed
  last: a process that is killed between the renames leaves both, whole, beside the name.
- A rename whose answer was lost may have happened, or happen later. Only one writer uses a staged
  name: once that is gone and the target is there, the rename was done. What could not be removed
  is removed before this process stages beside it again.
"""

from __future__ import annotations

import contextlib
import posixpath
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from howdah import storage
from howdah.errors import AlreadyExists, HowdahError, NotFound, StorageError, StorageUnavailable
from howdah.storage import Entry

_undeleted: set[str] = set()
"""Staged paths that could not be removed when their writers failed."""


class StagingStorage(Protocol):
    """The calls that staging needs of a storage, as `howdah.storage` documents them."""

    def exists(self, path: str) -> bool: ...

    def rename_dir(self, source: str, target: str) -> None: ...

    def remove(self, path: str, recursive: bool = False) -> None: ...


def hidden(target: str, kind: str) -> str:
    """A new name beside `target` that Spark, Hive and `ls` skip: `.<kind>-<name>.<hex>`.

    `storage.list_dir` skips those of kind "tmp", too.
    """
    fresh = f".{kind}-{storage.name(target)}.{secrets.token_hex(4)}"
    return storage.join(storage.parent(target), fresh)


# ----------------------------------------------------------------------------- stage and publish
@contextlib.contextmanager
def stage(path: str, *, files: StagingStorage = storage) -> Iterator[Staged]:
    """A block that writes `path`, a file or directory, which is removed if it is not published.

    The removal is tried once, since a writer often fails because of the storage. Where it fails
    too, the next `stage` beside it in this process tries again; after a kill the user's `sweep`.

    Args:
        path: a name that no other writer uses, on the storage of the target.
        files: the storage.
    """
    for earlier in tuple(_undeleted):
        if storage.parent(earlier) == storage.parent(path):
            _drop(earlier, storage)
    staged = Staged(path, files)
    try:
        yield staged
    finally:
        if not staged.kept:
            _drop(path, files)


class Staged:
    """A file or directory under a name that no reader opens; made by `stage`."""

    def __init__(self, path: str, files: StagingStorage) -> None:
        self.path = path
        self.kept = False
        """Not removed when the block ends: it is published, or kept after a failed rename."""
        self._files = files

    def publish(self, target: str, *, aside: str | None = None, keep: bool = False) -> str | None:
        """Rename what is staged, which must be complete, to `target`.

        Args:
            aside: a free name. What is at `target` is renamed to it first, and back if the new one
                cannot be put there. None: `target` must not exist.
            keep: after a failure keep what was staged (hours of work), even if the old one is back.
                If the old one cannot be put back, both are kept in any case.
        Returns:
            `aside` if the old one is there now, for the caller to keep or remove; else None.
        Raises:
            AlreadyExists: `target` exists, and `aside` is None.
            StorageError: of the class of the failure. It says where the old and the new one are.
        """
        replaced = aside is not None and self._files.exists(target)
        try:
            if replaced:
                self._files.rename_dir(target, aside)
            self._files.rename_dir(self.path, target)
        except BaseException as error:
            if isinstance(error, StorageUnavailable) and self._was_renamed(target):
                self.kept = True
                return aside if replaced else None
            back = self._put_back(target, aside) if replaced else True
            expected = isinstance(error, HowdahError | OSError)
            self.kept = not back or (keep and expected)
            if expected:
                old = None if not replaced else "in its place" if back else f"kept as {aside}"
                raise self._failed(error, target, old) from error
            raise
        self.kept = True
        return aside if replaced else None

    def _was_renamed(self, target: str) -> bool:
        """Whether only the answer to the rename was lost."""
        try:
            with storage.waiting_at_most(0.0):  # the storage was waited for already
                return not self._files.exists(self.path) and self._files.exists(target)
        except StorageError:
            return False

    def _put_back(self, target: str, aside: str) -> bool:
        """Rename the old one back; whether it is at `target` now."""
        try:
            if self._files.exists(aside):
                self._files.rename_dir(aside, target)
            return self._files.exists(target)
        except (StorageError, OSError):
            return False

    def _failed(self, error: HowdahError | OSError, target: str, old: str | None) -> StorageError:
        reason = error.what if isinstance(error, HowdahError) else str(error)
        if isinstance(error, HowdahError) and error.got:
            reason += f" ({error.got})"
        remedy = "" if old is None else f"the old one is {old}; "
        if self.kept:
            remedy += f"the new one is complete and kept as {self.path}: rename it by hand"
        else:
            remedy += "run it again"
        return (type(error) if isinstance(error, StorageError) else StorageError)(
            "the new output is written, but could not be put in its place",
            where=target,
            got=reason,
            remedy=remedy,
        )


def cached(target: str, make: Callable[[str], None]) -> str:
    """`target`, a local file or directory that is named by its contents; made if it is missing.

    If several processes make it at once, the first one's is used.

    Args:
        make: makes it under the name that it is given, in an existing directory.
    """
    if not storage.exists(target):
        storage.make_dirs(storage.parent(target))
        with stage(hidden(target, "tmp")) as staged:
            make(staged.path)
            with contextlib.suppress(AlreadyExists):
                staged.publish(target)
    return target


# ---------------------------------------------------------------------------------------- verify
@dataclass(frozen=True)
class Defect:
    """A file that is missing (`got` is None), or has another size than expected."""

    name: str
    expected: int | None
    """Bytes; None: any."""
    got: int | None
    """Bytes; None: the file is missing."""

    def __str__(self) -> str:
        if self.got is None:
            return f"{self.name} is missing"
        return f"{self.name} has {self.got} bytes instead of {self.expected}"


def size_defect(directory: str, sizes: Mapping[str, int | None]) -> Defect | None:
    """The first file that is missing or has another size; None if all are as expected.

    Args:
        sizes: {name relative to the directory: bytes, or None for any size}.
    """
    present: dict[str, int] = {}
    for below in {posixpath.dirname(name) for name in sizes}:
        with contextlib.suppress(NotFound):
            folder = storage.join(directory, below) if below else directory
            for entry in storage.list_dir(folder, unfinished=True):
                if not entry.is_dir:
                    present[posixpath.join(below, entry.name)] = entry.size
    for name, size in sizes.items():
        if name not in present or size not in (None, present[name]):
            return Defect(name, size, present.get(name))
    return None


# ---------------------------------------------------------------------------------------- remove
def discard(path: str, *, files: StagingStorage = storage) -> bool:
    """Remove what is no longer needed; False if it cannot be removed."""
    try:
        files.remove(path, recursive=True)
    except StorageError:
        return False
    return True


def retract(path: str, doomed: str) -> None:
    """Remove a published directory; a kill half-way leaves nothing that looks complete.

    Args:
        doomed: a name that no reader opens, and that the caller's `sweep` removes.
    """
    storage.remove(doomed, recursive=True)
    storage.rename_dir(path, doomed)
    storage.remove(doomed, recursive=True)


def sweep(entries: Iterable[Entry], dead: Callable[[Entry], object]) -> list[str]:
    """Remove what writers that have ended left unpublished; the removed paths.

    Only the caller knows whether a writer has ended: by a later attempt's number (checkpoints), a
    lease that is not renewed (datasets), the time of its newest file (published models), or since
    only one may write there at all (exports).

    Args:
        entries: listed BEFORE the writers' leases or times were read.
        dead: whether an entry's writer has ended.
    """
    removed = []
    for entry in entries:
        if dead(entry):
            storage.remove(entry.path, recursive=entry.is_dir)
            removed.append(entry.path)
    return removed


def _drop(path: str, files: StagingStorage) -> None:
    with storage.waiting_at_most(0.0):
        gone = discard(path, files=files)
    if gone:
        _undeleted.discard(path)
    elif files is storage:
        _undeleted.add(path)
