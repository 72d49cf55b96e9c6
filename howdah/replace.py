"""Put a new file or directory in the place of an old one without a moment at which both are lost.

Exports, predictions and partitions of Hive tables all go this way: the new one is written beside
the old one under a name of its own, the old one is renamed aside, the new one is renamed into
place, and only then is the old one removed.
"""

from __future__ import annotations

import contextlib
import secrets
from typing import Protocol

from howdah import storage
from howdah.errors import HowdahError, StorageError

__all__ = ["Files", "put_in_place"]


class Files(Protocol):
    """The calls that it needs of a storage: `howdah.storage` itself has them."""

    def exists(self, path: str) -> bool:
        """Whether a file or directory is there."""
        ...

    def rename_dir(self, source: str, target: str) -> None:
        """One rename; StorageError if it fails, AlreadyExists if the target is there."""
        ...

    def remove(self, path: str, recursive: bool = False) -> None:
        """Remove a file, or a directory with all it holds; missing is not an error."""
        ...


def put_in_place(
    fresh: str,
    target: str,
    *,
    overwrite: bool,
    keep: bool,
    aside: str | None = None,
    files: Files = storage,
) -> str | None:
    """Make `fresh`, which is whole, the file or directory `target`.

    Few storages exchange two directories in one step: between two renames nothing is at `target`.
    A process that is killed just there leaves both, whole, beside it.

    Args:
        fresh: its path now, in the directory of `target` or on the same storage.
        target: where it goes.
        overwrite: replace what is there; else what is there stays, and it is an error.
        keep: when it fails, keep `fresh` (hours of work) even if the old one is back; else remove
            it then. Where the old one cannot be put back both are kept in any case.
        aside: the old one's path until it is removed; none: a hidden name beside `target`.
        files: the storage.
    Returns:
        The path of the old one where it could not be removed; `target` is the new one then too.
    Raises:
        StorageError: of the class of the failure. The error says where the old and the new one are.
    """
    if aside is None:
        aside = storage.join(
            storage.parent(target), f".old-{storage.name(target)}.{secrets.token_hex(4)}"
        )
    replaced = overwrite and files.exists(target)
    try:
        if replaced:
            files.rename_dir(target, aside)
        files.rename_dir(fresh, target)
    except BaseException as error:
        back = _put_back(target, aside, files) if replaced else True
        ours = isinstance(error, HowdahError | OSError)
        kept = not back or (keep and ours)
        if not kept:
            with contextlib.suppress(StorageError):
                files.remove(fresh, recursive=True)
        if ours:
            raise _failed(error, fresh if kept else None, target, aside, replaced, back) from error
        raise
    if replaced:
        try:
            files.remove(aside, recursive=True)
        except StorageError:
            return aside
    return None


def _put_back(target: str, aside: str, files: Files) -> bool:
    """Rename the old one to its place again; whether it is there."""
    try:
        if files.exists(aside):
            files.rename_dir(aside, target)
        return files.exists(target)
    except (StorageError, OSError):
        return False


def _failed(
    error: HowdahError | OSError,
    fresh: str | None,
    target: str,
    aside: str,
    replaced: bool,
    back: bool,
) -> StorageError:
    reason = error.what if isinstance(error, HowdahError) else str(error)
    if isinstance(error, HowdahError) and error.got:
        reason += f" ({error.got})"
    said = []
    if replaced:
        said.append("the old one is in its place" if back else f"the old one is kept as {aside}")
    if fresh is not None:
        said.append(f"the new one is whole, and kept as {fresh}: rename it by hand")
    else:
        said.append("run it again")
    kind = type(error) if isinstance(error, StorageError) else StorageError
    return kind(
        "the new output is written, but could not be put in its place",
        where=target,
        got=reason,
        remedy="; ".join(said),
    )
