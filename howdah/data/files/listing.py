"""The files below a directory that hold rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from howdah import storage
from howdah.storage import Entry

__all__ = ["below", "of_each"]

_THREADS = 16

File = TypeVar("File")
Result = TypeVar("Result")


def below(directory: str) -> Iterator[Entry]:
    """Files of a directory and of those in it, but for names that begin with `_` or `.`."""
    for entry in storage.list_dir(directory):
        if entry.name.startswith(("_", ".")):
            continue  # Hadoop's convention: markers and unfinished files
        if entry.is_dir:
            yield from below(entry.path)
        else:
            yield entry


def of_each(files: Sequence[File], work: Callable[[File], Result]) -> list[Result]:
    """What `work` returns for each file, by threads: each waits for storage."""
    if not files:
        return []
    with ThreadPoolExecutor(min(_THREADS, len(files)), thread_name_prefix="howdah-headers") as pool:
        return list(pool.map(work, files))
