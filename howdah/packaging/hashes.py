"""Cached SHA-256 of files: gigabytes are read once, not at each submission."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os

from howdah import storage
from howdah.errors import StorageError

_CACHED_BYTES = 2**16  # hashing a smaller file is as fast as a lookup


def sha256(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a local file, in hex; the file is read completely."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class FileHashes:
    """Hashes of files by path, size and times of change, kept in a JSON file.

    Any number of processes may use one file at once: readers see a complete file, and of two
    writers the second replaces the first's entries, which are then hashed again.

    Args:
        path: of the JSON file; a missing or damaged one counts as empty.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._entries: dict[str, list] = {}
        self._changed = False
        try:
            with open(path, encoding="utf-8") as file:
                entries = json.load(file)
        except (OSError, ValueError):
            return
        if isinstance(entries, dict):
            self._entries = entries

    def of(self, path: str) -> str:
        """The SHA-256 of a file, in hex."""
        status = os.stat(path)
        stamp = [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
        entry = self._entries.get(path)
        if isinstance(entry, list) and entry[:3] == stamp and len(entry) == 4:
            return entry[3]
        digest = sha256(path)
        if status.st_size >= _CACHED_BYTES:
            self._entries[path] = [*stamp, digest]
            self._changed = True
        return digest

    def save(self) -> None:
        """Write new hashes (a failure is ignored), without those of files that do not exist."""
        if not self._changed:
            return
        entries = {path: entry for path, entry in self._entries.items() if os.path.exists(path)}
        with contextlib.suppress(StorageError):
            storage.write_whole(self._path, json.dumps(entries).encode())
