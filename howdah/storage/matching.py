"""Patterns (*, ?, [..], **) on remote storages, as glob takes them for local files."""

from __future__ import annotations

import fnmatch
import glob
from collections.abc import Iterator
from typing import Protocol

from howdah.storage.base import Entry


class Look(Protocol):
    """What is asked of a storage: howdah.storage itself."""

    def exists(self, path: str) -> bool: ...
    def is_dir(self, path: str) -> bool: ...
    def list_dir(self, path: str) -> list[Entry]: ...


def matches(directory: str, parts: list[str], look: Look) -> Iterator[str]:
    """Paths below a directory whose names match the parts, as glob does it for local files."""
    while parts and not glob.has_magic(parts[0]):
        directory, parts = f"{directory}/{parts[0]}", parts[1:]
    if not parts:
        if look.exists(directory):
            yield directory
        return
    part, rest = parts[0], parts[1:]
    if not look.is_dir(directory):
        return
    entries = look.list_dir(directory)
    if part == "**":
        if rest:
            yield from matches(directory, rest, look)
        for found in entries:
            if not rest:
                yield found.path
            if found.is_dir:
                yield from matches(found.path, parts, look)
        return
    for found in entries:
        hidden = found.name.startswith(".") and not part.startswith(".")
        if hidden or not fnmatch.fnmatchcase(found.name, part):
            continue
        if not rest:
            yield found.path
        elif found.is_dir:
            yield from matches(found.path, rest, look)
