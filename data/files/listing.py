"""Which files a source is made of, and what their names say: one rule for all that reads rows.

An existing file or directory is itself, whatever characters its name has; else the source is a
pattern. Of directories and patterns, files count whose names, and those of the directories that
they are found in, do not begin with `_` or `.`: markers, unfinished and hidden files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from howdah import storage
from howdah.storage import Entry

HIDDEN = ("_", ".")
"""Hadoop's convention, which our own unfinished outputs keep (`.tmp-`, `.old-`)."""
_THREADS = 16
_COMPRESSED = (".gz", ".bz2", ".zst", ".zstd", ".deflate", ".snappy")

File = TypeVar("File")
Result = TypeVar("Result")


def files_of(source: str) -> tuple[str | None, list[Entry]] | None:
    """(the directory that they are found below, or None; the files), in the order of their names.

    Returns:
        None: there is no such file or directory, and no match of the pattern.
    """
    if storage.is_local(source):
        source = storage.local_path(source)
    if storage.exists(source):
        entry = storage.entry(source)
        storage.require_file(source)
        return (source, below(source)) if entry.is_dir else (None, [entry])
    names = source.split("/")
    fixed = next((n for n, name in enumerate(names) if set(name) & set("*?[")), len(names) - 1)
    hidden = any(name.startswith(HIDDEN) for name in names[fixed:])  # asked for by name
    entries: list[Entry] = []
    any_match = False
    for path in storage.find(source):
        any_match = True
        entry = storage.entry(path)
        if not hidden and any(name.startswith(HIDDEN) for name in path.split("/")[fixed:]):
            continue
        entries += below(path) if entry.is_dir else [entry]
    if not any_match:
        return None
    return None, list({entry.path: entry for entry in entries}.values())  # ** matches a file twice


def below(directory: str) -> list[Entry]:
    """Files of a directory and of those in it; the directories of a level are listed at once.
    Names are in their order, a directory's files in its place."""
    listed: dict[str, list[Entry]] = {}
    level = [directory]
    while level:
        for path, entries in zip(level, of_each(level, storage.list_dir), strict=True):
            listed[path] = [e for e in entries if not e.name.startswith(HIDDEN)]
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
