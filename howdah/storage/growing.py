"""Files that are published while they grow, on storages that cannot append cheaply (HDFS, S3).

While a file grows, it is published as

    <path>                        its first bytes
    <path>.parts/<start>          bytes from offset <start> on, 16 decimal digits

and in the end as `<path>` alone, whole. Parts may overlap: the writer (training/run/mirror.py)
replaces the first of several small parts by one that covers them all, then removes the others. So
a reader that takes parts in the order of their starts, and of each part only the bytes that it does
not have yet, sees every byte once at any moment.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from howdah import storage
from howdah.errors import NotFound, StorageError

_PARTS = ".parts"
_DIGITS = 16
_LISTINGS = 20
"""How often a reader lists again when parts that it has listed are removed meanwhile."""


def part_path(path: str, start: int) -> str:
    """The path of the part that begins at byte `start`."""
    return storage.join(path + _PARTS, f"{start:0{_DIGITS}d}")


def names(directory: str) -> set[str]:
    """Names of the files of which something is published in a directory."""
    try:
        return {entry.name.removesuffix(_PARTS) for entry in storage.list_dir(directory)}
    except NotFound:
        return set()


def read(path: str, start: int = 0) -> tuple[bytes, int] | None:
    """A file's bytes from a position on, and where they end.

    Args:
        path: the file's final path.
        start: bytes that the caller has already. A file that is shorter than that was begun anew,
            and is read from its beginning.
    Returns:
        (bytes, position behind them); None: nothing has been published.
    """
    for last in [False] * (_LISTINGS - 1) + [True]:
        # Parts are listed before the whole file: it has their bytes once they are removed.
        pieces = _parts(path)
        with contextlib.suppress(NotFound):
            whole = storage.entry(path)
            if whole.is_dir:
                raise StorageError(
                    "cannot read: it is a directory", where=path, remedy="move it out of the way"
                )
            pieces.append((0, whole.size, path))
        if not pieces:
            return None
        spans = list(_spans(sorted(pieces, key=lambda piece: (piece[0], -piece[1]))))
        end = spans[-1][1] if spans else 0
        begin = start if start <= end else 0
        try:
            return b"".join(_read(span, begin) for span in spans if span[1] > begin), end
        except NotFound:  # replaced by a larger part, or the whole file, since they were listed
            if last:
                raise
    raise AssertionError("unreachable")


def fetch(path: str, local: str) -> bool:
    """Copy what is published of a file to a local file; False: nothing is."""
    published = read(path)
    if published is None:
        return False
    storage.write_whole(local, published[0])
    return True


def publish_whole(local: str, path: str) -> None:
    """Publish a file that has ended, or was begun anew, as a whole and without parts."""
    storage.upload(local, path)
    forget_parts(path)


def forget_parts(path: str) -> None:
    """Remove all parts of a file.

    One by one, not with their directory: a removal that reaches the storage late must not remove
    parts that were published since, which have other names.
    """
    for _, _, part in _parts(path):
        storage.remove(part)
    with contextlib.suppress(StorageError):  # not empty: parts were published since
        storage.remove(path + _PARTS)


def _parts(path: str) -> list[tuple[int, int, str]]:
    """(start, bytes, path) of each part."""
    try:
        entries = storage.list_dir(path + _PARTS)
    except NotFound:
        return []
    return [
        (int(entry.name), entry.size, entry.path)
        for entry in entries
        if entry.name.isdecimal() and len(entry.name) == _DIGITS
    ]


def _spans(pieces: Iterable[tuple[int, int, str]]) -> Iterator[tuple[int, int, int, str]]:
    """What the pieces add to each other from 0 on, up to the first gap: (first byte, the one behind
    the last, where the piece begins, its path)."""
    at = 0
    for start, size, path in pieces:
        if start > at:
            return
        if start + size > at:
            yield at, start + size, start, path
            at = start + size


def _read(span: tuple[int, int, int, str], begin: int) -> bytes:
    """The bytes of a span from `begin` on."""
    first, end, start, path = span
    with storage.open_read(path) as file:
        file.seek(max(first, begin) - start)
        return file.read(end - max(first, begin))
