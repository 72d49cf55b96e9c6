"""Does another character set explain the rows of a file that are not in the one it is read in?"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence

from howdah.data.files.opening import open_bytes
from howdah.errors import DataError
from howdah.storage.charsets import codec_of

MOST_DROPPED = 0.01
"""Largest share of rows in another character set that the ETL drops with a line alone."""
_MOST_FILES = 8
_MOST_BYTES = 64 * 2**20
_BLOCK_BYTES = 2**20
_OTHER = "windows-1252"
"""What spreadsheet programs on Windows save as "CSV" in Europe and America."""
_BEYOND_ASCII = re.compile(rb"[\x80-\xff]+")
_ANY = "ISO-8859-1"
"""An encoding in which any bytes decode."""


def explained(paths: Sequence[str], encoding: str) -> str | None:
    """The character set in which the lines decode that are not in `encoding`; None: no such one.

    A file that also has lines of valid UTF-8 beyond ASCII is a file of UTF-8 with broken lines. The
    first 64 MiB of up to eight files are looked at.
    """
    if not is_unicode(encoding):
        return "UTF-8" if _are_utf8(paths) else None
    invalid = False
    for path in paths[:_MOST_FILES]:
        for lines in _first_lines(path):
            answer = _of_lines(lines)
            if answer is False:
                return None
            invalid = invalid or answer is True
    return _OTHER if invalid else None


def is_unicode(encoding: str) -> bool:
    """True for UTF-8 and ASCII, in which texts of another character set do not decode."""
    return codec_of(encoding) in ("utf-8-sig", "ascii")


def _are_utf8(paths: Sequence[str]) -> bool:
    """True if all lines are UTF-8, some of them beyond ASCII: by chance, others never are."""
    beyond = False
    for path in paths[:_MOST_FILES]:
        for lines in _first_lines(path):
            for line in lines:
                if _is_utf8(line):
                    beyond = True
                elif not line.isascii():
                    return False
    return beyond


def _first_lines(path: str) -> Iterator[list[bytes]]:
    """The lines of a file's first 64 MiB, block by block, without one that is cut off there."""
    with open_bytes(path) as file:
        left, rest = _MOST_BYTES, b""
        while left > 0 and (block := file.read(_BLOCK_BYTES)):
            left -= len(block)
            *lines, rest = (rest + block).split(b"\n")
            yield lines
        if left > 0:
            yield [rest]


def sniffed(begin: bytes) -> str | None:
    """The character set that a file's first bytes show; None: they are ASCII, UTF-8 with broken
    lines, or in a character set that only its writer knows.

    >>> sniffed("caf\u00e9\\n".encode()), sniffed("caf\u00e9\\n".encode("cp1252"))
    ('UTF-8', 'windows-1252')
    """
    if begin.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "UTF-16"
    if begin.isascii():
        return None
    lines = begin.split(b"\n")
    lines = lines[:-1] if len(lines) > 1 else lines  # the last one may be cut in a character
    answer = _of_lines(lines)
    if answer is not False:
        return _OTHER if answer else None
    try:
        b"\n".join(lines).decode()
    except UnicodeDecodeError:
        broken = any(map(_is_utf8, lines))
        return None if broken or not _is_western(lines) else _ANY
    return "UTF-8"


def refused(
    where: str, count: int, rows: int, form: str, other: str, encoding: str = "UTF-8"
) -> DataError:
    """The error for a source of which too many rows are in another character set.

    Args:
        other: their character set.
        encoding: the one that the source is read in.
    """
    remedies = remedy(form, other)
    if is_unicode(encoding):
        remedies += "; to drop these rows all the same, remove them from the source"
    return DataError(
        "the source is in another character set",
        where=where,
        expected=encoding,
        got=problem(count, rows, other, encoding),
        remedy=remedies,
    )


def problem(count: int, rows: int, other: str, encoding: str = "UTF-8") -> str:
    """What is wrong with rows that are in another character set."""
    return f"{count:,} of {rows:,} rows are not {encoding}; all of them decode as {other}"


def remedy(form: str, other: str) -> str:
    """How such rows are read."""
    if form == "jsonl":
        return f"JSON must be UTF-8: convert the files, as by iconv -f {other} -t UTF-8"
    return (
        f"add `--set data.csv.encoding={other}`, or to the configuration"
        f" data: {{csv: {{encoding: {other}}}}}"
    )


def _is_utf8(line: bytes) -> bool:
    """True for a line that is UTF-8 beyond ASCII."""
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return not line.isascii()


def _is_western(lines: Sequence[bytes]) -> bool:
    """True if most letters beyond ASCII stand between ASCII, as in European languages of Latin
    letters. Cyrillic, Greek, Chinese or Japanese text has them side by side, and decodes too: into
    nonsense."""
    letters = alone = 0
    for line in lines:
        runs = _BEYOND_ASCII.findall(line)
        letters += sum(map(len, runs))
        alone += sum(len(run) == 1 for run in runs)
    return 2 * alone > letters


def _of_lines(lines: Sequence[bytes]) -> bool | None:
    """True: there are lines that decode in the other character set alone and look like it, and none
    in UTF-8 beyond ASCII. None: all lines are ASCII. False: neither."""
    explained = None
    for line in lines:
        if line.isascii():
            continue
        if _is_utf8(line):
            return False
        try:
            line.decode(_OTHER)
        except UnicodeDecodeError:
            return False
        explained = True
    return False if explained and not _is_western(lines) else explained
