"""Character sets of users' files, by Python's and by Java's names, and bytes that are invalid in
them.

One table for all readers: a name that one of them takes, all take.
"""

from __future__ import annotations

import codecs
import re

ESCAPE = "howdah.escape"
"""Name of the error handler by which a byte that is invalid becomes U+DC00 plus the byte.

Python's `surrogateescape` fails for bytes below 0x80, which end a truncated file of UTF-16.
"""
SURROGATES = re.compile("[\ud800-\udfff]")
"""Invalid bytes, and halves of characters that JSON can write (`\\ud83d`)."""

_JAVA_PREFIXES = (("x-windows-", "cp"), ("x-ibm", "cp"), ("x-mac", "mac_"), ("x-", ""))
"""Java's names that Python lacks: x-windows-874, x-IBM874, x-MacRoman, x-Johab."""
_OTHERS = {"windows-31j": "cp932"}
_NO_FILES = {"idna", "punycode", "unicode-escape", "raw-unicode-escape"}
"""Codecs of Python that encode names or source code."""


def _escape(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    invalid = error.object[error.start : error.end]
    return "".join(chr(0xDC00 + byte) for byte in invalid), error.end


codecs.register_error(ESCAPE, _escape)


def codec_of(name: str) -> str:
    """Python's name of a character set of text, which drops a byte order mark of UTF-8.

    Raises:
        LookupError: no such character set, or a codec that is not one of text (base64).

    >>> codec_of("windows-1252"), codec_of("x-windows-949"), codec_of("utf8")
    ('cp1252', 'cp949', 'utf-8-sig')
    """
    spelling = name.strip()
    candidates = [_OTHERS.get(spelling.lower(), spelling)]
    for prefix, instead in _JAVA_PREFIXES:
        if spelling.lower().startswith(prefix):
            candidates.append(instead + spelling[len(prefix) :])
    if "-bom" in spelling.lower():  # x-UTF-16LE-BOM: the mark says the order
        candidates.append(spelling.lower().removeprefix("x-")[:6])
    for candidate in candidates:
        try:
            codec = codecs.lookup(candidate)
        except (LookupError, ValueError):
            continue
        if getattr(codec, "_is_text_encoding", True) and codec.name not in _NO_FILES:
            return "utf-8-sig" if codec.name == "utf-8" else codec.name
    raise LookupError(name)


def lines_are_bytes(name: str) -> bool:
    """True if each byte 0x0A of a file ends a line. LookupError: the character set is unknown."""
    try:
        return "a\n".encode(codec_of(name)).endswith(b"a\n")
    except UnicodeEncodeError:
        return False


def spelled(text: str) -> str:
    """A text that UTF-8 can hold: invalid bytes as `\\xe9`, halves of characters as `\\ud83d`.

    >>> spelled("caf\\udce9")
    'caf\\\\xe9'
    """
    if text.isascii():
        return text
    return SURROGATES.sub(_spelled_one, text)


def _spelled_one(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code - 0xDC00:02x}" if 0xDC00 <= code <= 0xDCFF else f"\\u{code:04x}"


def replaced(text: str) -> str:
    """A text with U+FFFD in place of what `SURROGATES` finds."""
    return text if text.isascii() else SURROGATES.sub("\ufffd", text)
