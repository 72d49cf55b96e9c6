"""The files below a directory that hold rows, and what their names say of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from howdah import storage
from howdah.storage import Entry

__all__ = ["below", "ending", "of_each"]

_THREADS = 16
_COMPRESSED = (".gz", ".bz2", ".zst", ".snappy")

File = TypeVar("File")
Result = TypeVar("Result")


def below(directory: str) -> list[Entry]:
    """Files of a directory and of those in it, but for names that begin with `_` or `.`; the
    directories of a level are listed at once. Names are in their order, a
    directory's files in its place."""
    listed: dict[str, list[Entry]] = {}
    level = [directory]
    while level:
        for path, entries in zip(level, of_each(level, storage.list_dir), strict=True):
            # Hadoop's convention: markers and unfinished files
            listed[path] = [e for e in entries if not e.name.startswith(("_", "."))]
        level = [e.path for path in level for e in listed[path] if e.is_dir]

    def files(path: str) -> Iterator[Entry]:
        for entry in listed[path]:
            if entry.is_dir:
                yield from files(entry.path)
            else:
                yield entry

    return list(files(directory))


def of_each(files: Sequence[File], work: Callable[[File], Result]) -> list[Result]:
    """What `work` returns for each file, by threads: each waits for storage."""
    if not files:
        return []
    with ThreadPoolExecutor(min(_THREADS, len(files)), thread_name_prefix="howdah-files") as pool:
        return list(pool.map(work, files))


def ending(name: str) -> str:
    """A file name's end without compression: `.csv` of `a.CSV.gz`."""
    name = name.lower()
    for compressed in _COMPRESSED:
        name = name.removesuffix(compressed)
    return "." + name.rpartition(".")[2] if "." in name else ""
