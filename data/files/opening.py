"""Open users' files: decompressed, a part of one by whole lines, and as text."""

from __future__ import annotations

import bz2
import codecs
import contextlib
import gzip
import io
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, cast

from howdah import storage
from howdah.errors import DataError, UsageError
from howdah.storage.charsets import ESCAPE, codec_of

_SMALL = 64 * 2**10
_BUFFER_BYTES = 2**20
_MARKS = {
    "utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE,
    "utf-32-le": codecs.BOM_UTF32_LE, "utf-32-be": codecs.BOM_UTF32_BE,
}  # fmt: skip
"""{codec that keeps a byte order mark: the mark}; the codec without -le and -be drops it."""


def _zstd(raw: Any) -> BinaryIO:
    import pyarrow as pa

    # pyarrow's stream lacks readinto, which io's readers call
    return cast(BinaryIO, io.BufferedReader(_Reading(pa.CompressedInputStream(raw, "zstd"))))


class _Reading(io.RawIOBase):
    """A raw stream over anything that has `read(bytes)`."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def readable(self) -> bool:
        return True

    def _next(self, size: int) -> bytes:
        return self._source.read(size)

    def readinto(self, buffer: Any) -> int:
        data = self._next(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class _Inflated(_Reading):
    """A file in zlib's format, as Hadoop's DefaultCodec writes `.deflate`; several that were put
    together (`hdfs dfs -getmerge`) are read one after the other."""

    def __init__(self, source: Any) -> None:
        super().__init__(source)
        self._inflate = zlib.decompressobj()

    def _next(self, size: int) -> bytes:
        while True:
            if self._inflate.eof:
                data = self._inflate.unused_data or self._source.read(_SMALL)
                if not data:
                    return b""
                self._inflate = zlib.decompressobj()
            else:
                data = self._inflate.unconsumed_tail or self._source.read(_SMALL)
            inflated = self._inflate.decompress(data, size)
            if inflated:
                return inflated
            if not data and not self._inflate.eof:
                raise EOFError("the compressed file ends before its end marker")


COMPRESSED: dict[str, Callable[[Any], Any]] = {
    ".gz": gzip.open, ".bz2": bz2.open, ".zst": _zstd, ".zstd": _zstd,
    ".deflate": lambda raw: io.BufferedReader(_Inflated(raw)),
}  # fmt: skip
"""{ending of a file's name: what opens its content}."""
NOT_READ = (".snappy", ".lz4", ".lzo", ".xz", ".zip", ".7z", ".br")
"""Endings of compressed or packed files that this reader does not open."""


class LineCount:
    """Line ends (LF) among bytes, counted before anything is parsed, and the lines that are."""

    mark = b""
    """The byte order mark that the decoder drops: a file of nothing else has no line."""

    def __init__(self) -> None:
        self._ends, self._last, self._begin, self._read = 0, b"\n", b"", 0

    def add(self, data: bytes) -> None:
        self._ends += data.count(b"\n")
        self._last = data[-1:] or self._last
        if len(self._begin) <= len(self.mark):
            self._begin += data[: len(self.mark) + 1]

    @property
    def lines(self) -> int:
        """With a last one that has no end."""
        if self.mark.startswith(self._begin):  # a part of the mark is dropped too
            return 0
        return self._ends + (self._last != b"\n")

    def each(self, lines: Iterable[str]) -> Iterator[str]:
        """The lines, counted as they are read."""
        for line in lines:
            self._read += 1
            yield line

    def require(self, path: str) -> None:
        """Raise DataError where `each` has given another number of lines than there are."""
        if self._read != self.lines:
            raise DataError(
                "not all lines of a file were read",
                where=f"{path}, from line {min(self._read, self.lines):,} on",
                expected=f"{self.lines:,} lines",
                got=f"{self._read:,}",
                remedy="this is a defect: please report the lines after that one",
            )


def compression_of(path: str) -> str | None:
    """The ending of `COMPRESSED` that a name has."""
    name = path.lower()
    return next((end for end in COMPRESSED if name.endswith(end)), None)


def refuse_compression(path: str) -> None:
    """Raise DataError for a compression that is not read."""
    if path.lower().endswith(NOT_READ):
        raise DataError(
            "files of this compression are not read",
            where=path,
            expected="no compression, or " + ", ".join(COMPRESSED),
            remedy="decompress it, or compress it by gzip",
        )


@contextlib.contextmanager
def open_bytes(path: str) -> Iterator[Any]:
    """The content of a file, decompressed by its name's ending.

    Raises:
        DataError: a compression that is not read, or a damaged or incomplete file.
    """
    refuse_compression(path)
    opened = COMPRESSED.get(compression_of(path) or "")
    with contextlib.ExitStack() as stack:
        file: Any = stack.enter_context(storage.open_read(path))
        if opened is not None:
            file = stack.enter_context(opened(file))
        with _whole(path, opened is not None):
            yield file


@contextlib.contextmanager
def _whole(path: str, compressed: bool) -> Iterator[None]:
    what = "the compressed file is damaged or incomplete"
    if path.lower().endswith(".gz"):
        what = "the gzip file is incomplete"
    try:
        yield
    except gzip.BadGzipFile as error:
        reason = str(error)
        if reason.startswith("Not a gzip"):  # its beginning, or what follows a whole member
            what = "the file is not gzip, or has other bytes behind it"
    except (EOFError, zlib.error) as error:
        reason = str(error)
    except OSError as error:  # bz2's and zstd's
        if not compressed or error.errno is not None:
            raise
        reason = str(error)
    else:
        return
    raise DataError(
        what,
        where=path,
        got=reason.splitlines()[0][:200] if reason else None,
        remedy="copy it again; if it is not compressed, name it without that ending",
    ) from None


def head(path: str, size: int = _SMALL) -> bytes:
    """The first bytes of a file's content."""
    with open_bytes(path) as file:
        chunk = file.read(size)
        while len(chunk) < size and (more := file.read(size - len(chunk))):
            chunk += more
        return chunk


@contextlib.contextmanager
def open_text(
    path: str,
    encoding: str,
    *,
    newline: str | None = "",
    part: tuple[int, int] | None = None,
    count: LineCount | None = None,
) -> Iterator[io.TextIOWrapper]:
    """The content as text, without a byte order mark; invalid bytes are `charsets.SURROGATES`.

    Args:
        newline: of `io.TextIOWrapper`: "" ends lines at LF, CR and CR LF, a line feed there alone;
            nothing is translated.
        part: first byte and the one after the last, of a file that is not compressed; the lines
            that begin there.
        count: counts the line ends among the bytes that are read.
    Raises:
        UsageError: no such character set.
        DataError: see `open_bytes`.
    """
    try:
        codec = codec_of(encoding)
    except LookupError:
        raise UsageError("there is no such character set", got=encoding) from None
    if codec in _MARKS and head(path, 4).startswith(_MARKS[codec]):
        codec = codec.rpartition("-")[0]
    elif codec in ("utf-16", "utf-32"):
        _require_mark(path, encoding, tuple(_MARKS[codec + order] for order in ("-le", "-be")))
    with open_bytes(path) as file:
        if part is not None:
            start, end = (_line_begin(file, at) for at in part)
            file = io.BufferedReader(_Part(file, start, end), _BUFFER_BYTES)
            if start and codec == "utf-8-sig":
                codec = "utf-8"  # a byte order mark there is a character
        if count is not None:
            if codec == "utf-8-sig":
                count.mark = codecs.BOM_UTF8
            file = io.BufferedReader(_Counted(file, count), _BUFFER_BYTES)
        with io.TextIOWrapper(file, encoding=codec, errors=ESCAPE, newline=newline) as text:
            yield text


def _require_mark(path: str, encoding: str, marks: tuple[bytes, ...]) -> None:
    """Refuse a file that does not say in which order its bytes are."""
    begin = head(path, 4)
    if begin and not begin.startswith(marks):
        raise DataError(
            f"the file has no byte order mark, which {encoding} demands",
            where=path,
            expected=" or ".join(mark.hex(" ") for mark in marks),
            got=begin.hex(" "),
            remedy=f"set data.csv.encoding to {encoding}LE or {encoding}BE, or to the character set"
            " that the file is in",
        )


def _line_begin(file: Any, at: int) -> int:
    """Offset of the first line that does not begin before `at`."""
    if at == 0:
        return 0
    at -= 1
    file.seek(at)
    while block := file.read(_SMALL):
        newline = block.find(b"\n")
        if newline >= 0:
            return at + newline + 1
        at += len(block)
    return at


class _Part(_Reading):
    """The bytes of a file from `start` on and before `end`."""

    def __init__(self, source: Any, start: int, end: int) -> None:
        super().__init__(source)
        source.seek(start)
        self._left = end - start

    def _next(self, size: int) -> bytes:
        data = self._source.read(min(size, self._left)) if self._left else b""
        self._left -= len(data)
        return data


class _Counted(_Reading):
    """A stream whose line ends are counted."""

    def __init__(self, source: Any, count: LineCount) -> None:
        super().__init__(source)
        self._count = count

    def _next(self, size: int) -> bytes:
        data = self._source.read(size)
        self._count.add(data)
        return data
