"""SHA-256 of files, remembered: gigabytes are read once, not at each submission."""

from __future__ import annotations

import hashlib
import json
import os
import secrets

__all__ = ["FileHashes"]

_WORTH = 2**16  # bytes; hashing less is as quick as looking it up


class FileHashes:
    """Hashes of files by path, size and times of change, kept in a JSON file.

    Any number of processes may use one at once: a reader sees a whole file, and what two of them
    find out at the same time one of them finds out again.

    Args:
        path: where they are kept; a missing or damaged file is an empty memory.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._known: dict[str, list] = {}
        self._new = False
        try:
            with open(path, encoding="utf-8") as file:
                known = json.load(file)
        except (OSError, ValueError):
            return
        if isinstance(known, dict):
            self._known = known

    def of(self, path: str) -> str:
        """The SHA-256 of a file, in hex."""
        status = os.stat(path)
        stamp = [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
        known = self._known.get(path)
        if isinstance(known, list) and known[:3] == stamp and len(known) == 4:
            return known[3]
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if status.st_size >= _WORTH:
            self._known[path] = [*stamp, digest]
            self._new = True
        return digest

    def save(self) -> None:
        """Keep what was found out (not being able to is no harm); forget files that are gone."""
        if not self._new:
            return
        known = {path: entry for path, entry in self._known.items() if os.path.exists(path)}
        temp = f"{self._path}.{secrets.token_hex(4)}.tmp"
        try:
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            with open(temp, "w", encoding="utf-8") as file:
                json.dump(known, file)
            os.replace(temp, self._path)
        except OSError:
            if os.path.exists(temp):
                os.unlink(temp)
