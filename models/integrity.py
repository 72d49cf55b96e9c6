"""Compares the files of a published version with the hashes of its manifest.

This finds damage: a bad disk, an interrupted copy, a file overwritten by mistake. It is not a
signature: a user who may write the model's directory can write manifest.json, too.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from howdah import storage
from howdah.errors import ModelError, NotFound
from howdah.models.registry import manifest_of

ManifestFiles = Mapping[str, Mapping[str, Any]]
"""`files` of a manifest: {name: {bytes, sha256}}."""

_CHUNK = 8 * 2**20


def files_of(directory: str) -> ManifestFiles | None:
    """The files of a published version by its manifest; None if the directory is not one."""
    manifest = manifest_of(directory, whole=True)
    return manifest and manifest["files"]


def digest(path: str) -> dict[str, Any]:
    """{bytes, sha256} of a file on any storage.

    Raises:
        NotFound, StorageError: the file cannot be read.
    """
    sha256, size = hashlib.sha256(), 0
    with storage.open_read(path) as file:
        while chunk := file.read(_CHUNK):
            sha256.update(chunk)
            size += len(chunk)
    return {"bytes": size, "sha256": sha256.hexdigest()}


def require_whole(directory: str, files: ManifestFiles, *, at: str | None = None) -> None:
    """Refuse files that differ from those of the manifest.

    Args:
        directory: the version's directory, for messages.
        at: directory to read them from; None: `directory`.
    Raises:
        ModelError: a file is missing or differs.
    """
    for name, file in sorted(files.items()):
        try:
            got = digest(storage.join(at or directory, name))
        except NotFound:
            got = None
        require_same(storage.join(directory, name), file, got)


def require_same(path: str, file: Mapping[str, Any], got: Mapping[str, Any] | None) -> None:
    """Refuse a file that differs from the manifest's.

    Args:
        path: the file's path, for messages.
        file: {bytes, sha256} from the manifest.
        got: {bytes, sha256} of the file that was read; None: there is no such file.
    Raises:
        ModelError: they differ.
    """
    if got == file:
        return
    raise ModelError(
        "a published file is damaged",
        where=path,
        expected=f"{file['bytes']:,} bytes, sha256 {file['sha256']}",
        got=f"{got['bytes']:,} bytes, sha256 {got['sha256']}" if got else "nothing",
        remedy="publish the run again, or roll back to another version",
    )


@contextlib.contextmanager
def unchanged(
    directory: str, files: ManifestFiles | None, local: str, patterns: Sequence[str]
) -> Iterator[None]:
    """Guard the block that opens a version's files: they are compared with the manifest before it,
    and must be the same files after it, so that the hashed bytes are the ones that were read.

    Args:
        directory: the version's directory, for messages.
        files: the manifest's files; None: not a published version, and nothing is compared.
        local: the directory of this machine where they are opened.
        patterns: patterns of the names that are opened.
    Raises:
        ModelError: a file is damaged, or was replaced or written while it was opened.
    """
    opened = {
        name: file
        for name, file in (files or {}).items()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    }
    before = {name: _state(local, name) for name in opened}
    require_whole(directory, opened, at=local)
    yield
    for name, state in before.items():
        if _state(local, name) != state:
            raise ModelError(
                "a published file was changed while it was opened",
                where=storage.join(directory, name),
                remedy="open the model again; `howdah model published` lists the versions",
            )


def _state(local: str, name: str) -> tuple[int, ...] | None:
    """Values that change when a file is replaced or written; None if it does not exist."""
    try:
        info = os.stat(os.path.join(local, name))
    except FileNotFoundError:
        return None
    # The inode's change time is left out: Spark's workers add hard links to a file at any time.
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns
