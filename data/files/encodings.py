"""Does another character set explain the rows of a file that are not in the one it is read in?"""

from __future__ import annotations

from collections.abc import Sequence

from howdah.data.files.opening import open_bytes
from howdah.storage.charsets import codec_of

_MOST_FILES = 8
_MOST_BYTES = 64 * 2**20
_BLOCK_BYTES = 2**20
_OTHER = "windows-1252"
"""What spreadsheet programs on Windows save as "CSV" in Europe and America."""


def explained(paths: Sequence[str], encoding: str) -> str | None:
    """The character set in which the lines decode that are not in `encoding`; None: no such one.

    A file that also has lines of valid UTF-8 beyond ASCII is a file of UTF-8 with broken lines. The
    first 64 MiB of up to eight files are looked at.
    """
    if codec_of(encoding) not in ("utf-8-sig", "ascii"):
        return None
    invalid = False
    for path in paths[:_MOST_FILES]:
        with open_bytes(path) as file:
            left, rest = _MOST_BYTES, b""
            while left > 0 and (block := file.read(_BLOCK_BYTES)):
                left -= len(block)
                *lines, rest = (rest + block).split(b"\n")
                answer = _of_lines(lines)
                if answer is False:
                    return None
                invalid = invalid or answer is True
            answer = _of_lines([rest])
            if answer is False:
                return None
            invalid = invalid or answer is True
    return _OTHER if invalid else None


def _of_lines(lines: Sequence[bytes]) -> bool | None:
    """True: there are lines that decode in the other character set alone, and none in UTF-8 beyond
    ASCII. None: all lines are ASCII. False: neither."""
    explained = None
    for line in lines:
        if line.isascii():
            continue
        try:
            line.decode()
        except UnicodeDecodeError:
            try:
                line.decode(_OTHER)
            except UnicodeDecodeError:
                return False
            explained = True
        else:
            return False
    return explained
