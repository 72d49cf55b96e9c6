"""Escapes control characters in other users' texts before they are printed on a terminal.

Names of applications, events, error texts and log lines may be another user's. A terminal executes
escape sequences in them: they change what was printed before, set the title, and on some terminals
put text on the command line. Right-to-left overrides make a text look like another one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and line feed; C1 (\x9b begins one)
    "\u2028\u2029"  # line breaks of Unicode's own
    "\u202a-\u202e\u2066-\u2069"  # direction overridden, embedded, isolated
    "\ud800-\udfff]"  # lone surrogates, which cannot be printed
)


def shown(text: str) -> str:
    r"""The text with control characters as \uXXXX; line feeds and tabs stay.

    JSON stays valid JSON: there such characters are inside strings.

    >>> shown("\x1b[2Jgone\r\n")
    '\\u001b[2Jgone\n'
    """
    return _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text.replace("\r\n", "\n"))


def as_cell(value: object) -> str:
    r"""`shown` for a value within one line: line feeds are escaped, too.

    >>> as_cell("job\nkilled by howdah")
    'job\\u000akilled by howdah'
    """
    return shown(str(value)).replace("\n", "\\u000a")


def as_table(rows: Sequence[Sequence[object]]) -> list[str]:
    """Lines of a table: rows of the same number of cells, in columns of equal width.

    >>> as_table([("run", "state"), ("a", "finished")])
    ['run  state', 'a    finished']
    """
    cells = [[as_cell(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
