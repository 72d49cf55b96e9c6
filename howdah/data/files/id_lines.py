"""A file of ids, one a line, as people and programs of any system write it."""

from __future__ import annotations

from howdah.data.files.opening import head, open_text

__all__ = ["id_lines"]

_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def id_lines(path: str) -> list[str]:
    """The ids in the order of the file, each once, without blanks around them.

    LF and CR LF alone end a line: an id may hold U+2028 or a form feed. A byte order mark is not
    part of the first id.
    """
    encoding = "UTF-16" if head(path, 2) in _UTF16 else "UTF-8"
    with open_text(path, encoding, newline="\n") as lines:
        found = (line.rstrip("\n").removesuffix("\r").strip(" \t") for line in lines)
        return list(dict.fromkeys(line for line in found if line))
