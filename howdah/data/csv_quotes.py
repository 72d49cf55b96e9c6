"""Find quotes that are never closed in a CSV file, before Spark reads rows from it.

A quoted field may hold delimiters and line breaks. Where its closing quote is missing, the rows
that follow become part of the field, up to the next quote or to the end of the file. Spark's parser
reports nothing: it reads one long text, or one malformed row, and the ETL cannot count the lost
rows among the rejected.

So this module first reads a file once as characters, by the rules of Spark's parser (univocity,
unescaped quotes: STOP_AT_DELIMITER):

- A quote opens a field only as the field's first character; elsewhere in an unquoted field it is
  an ordinary character.
- The field ends at a quote that is followed, blanks aside, by the delimiter, a line break or the
  end of the file.
- Any other quote inside that is not escaped is STRAY: the field then goes on to the next delimiter
  or line break as if unquoted, and keeps its quotes.

An error is a field that has swallowed lines: the file ends inside it, a stray quote comes after a
line break, or it has more line breaks than allowed. Stray quotes within a line lose no row; they
are counted.
"""

from __future__ import annotations

import bz2
import gzip
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO, TextIO, cast

from howdah import storage
from howdah.config.data import CsvOptions
from howdah.errors import DataError

__all__ = ["COMPRESSED", "Quotes", "refused", "scan", "scan_file"]

_BLOCK_CHARACTERS = 2**20
_SHOWN_CHARACTERS = 60
_LINE_BREAK = re.compile("\r?\n|\r(?=[^\n])")
_LOOK_AHEAD = 16  # characters after a quote that decide what it is, blanks aside
COMPRESSED = {".gz": gzip.open, ".bz2": bz2.open}
"""Endings of compressed files that can be scanned."""


@dataclass
class Quotes:
    """The stray quotes and the first unclosed quote of one file."""

    strays: int = 0
    """Fields with a stray quote that swallowed no line."""
    stray_line: int = 0
    """Line of the first of them (1-based)."""
    line: int = 0
    """Line on which a field begins that swallows lines; 0: there is none."""
    problem: str = ""
    """What is wrong with that field."""
    begin: str = ""
    """The beginning of that field."""


def refused(bad: Sequence[tuple[str, Quotes]], options: CsvOptions) -> DataError:
    """The error for files with a field that swallows lines.

    Args:
        bad: (path, its quotes); the error names the first one.
    """
    path, first = bad[0]
    more = "" if len(bad) == 1 else f"; {len(bad) - 1} more files have such a field"
    return DataError(
        "a quoted field swallows the lines after it: its closing quote is missing",
        where=f"{path}, line {first.line}",
        expected=f"a closing {options.quote} before the delimiter or the end of the line, on this"
        f" line or after at most {options.max_line_breaks:,} line breaks",
        got=f"{first.problem}; the field begins with {first.begin!r}{more}",
        remedy="close the quote on that line, or double it where it is part of the text. If quotes"
        " are escaped in this file, set data.csv.escape; if they mean nothing, data.csv.quote: ''."
        " If no field holds line breaks, data.csv.multiline: false reads each line by itself. For"
        " texts of more lines raise data.csv.max_line_breaks",
    )


def scan_file(path: str, options: CsvOptions, delimiter: str) -> Quotes:
    """The quotes of a file on any storage, up to the first field that swallows lines."""
    with storage.open_read(path) as raw, _characters(raw, path, options) as text:
        return scan(text, options, delimiter)


def _characters(raw: BinaryIO, path: str, options: CsvOptions) -> TextIO:
    opened = next((how for end, how in COMPRESSED.items() if path.lower().endswith(end)), None)
    plain = cast(BinaryIO, opened(raw, "rb")) if opened else raw
    return io.TextIOWrapper(plain, options.encoding, errors="replace", newline="")


def scan(text: TextIO, options: CsvOptions, delimiter: str) -> Quotes:
    """The quotes of one file, up to the first field that swallows lines.

    Needs memory for two blocks of characters, however long a field is.
    """
    return _Scanner(text, options, delimiter).run()


class _Scanner:
    """A window over the characters: `self.text[self.at:]` is not scanned yet."""

    def __init__(self, text: TextIO, options: CsvOptions, delimiter: str) -> None:
        self.source = text
        self.quote = options.quote
        self.most = options.max_line_breaks
        self.delimiter = delimiter
        self.text = ""
        self.at = 0
        self.line = 1
        self.ended = False
        self.found = Quotes()
        escape = options.escape or options.quote
        quote, cut = re.escape(self.quote), re.escape(delimiter)
        # an escaped character, or a quote that is not escaped; then any other character of a line
        inner, plain = f"{re.escape(escape)}{quote}|{quote}", f"[^{quote}\n]"
        escaped = re.escape(escape) + quote
        if escape != self.quote:
            inner, plain = f"{re.escape(escape)}.|{quote}", f"[^{quote}{re.escape(escape)}\n]"
            escaped = re.escape(escape) + "[^\n]"
        self.inner = re.compile(inner, re.DOTALL)
        # what may follow the quote that ends a field: blanks, and the field's end
        self.closed = re.compile(f"(?:(?!{cut})[ \t\r])*({cut}|\n|\\Z)")
        # an opening quote follows the delimiter or a line break. Most fields end on their line:
        # as many of those as follow one another are taken at once (group 1).
        whole = f"{plain}*+(?:{escaped}{plain}*+)*+{quote}(?={cut}|\r?\n)"
        opening = f"(?:{cut}|\r?\n){quote}"
        self.opening = re.compile(f"((?:{opening}{whole})++)|{opening}")
        self.escape = escape
        self.carriage = False
        self.carriage = self._only_carriage_returns()

    def _only_carriage_returns(self) -> bool:
        """Whether lines end with CR alone, found as Spark finds it: by the first line break."""
        while not (first := _LINE_BREAK.search(self.text)) and self.more():
            pass
        self.text = self.text.removeprefix("\ufeff")
        only = first is not None and first.group() == "\r"
        if only:
            self.text = self.text.replace("\r", "\n")
        return only

    def more(self) -> bool:
        """Append one more block to the window and drop what is scanned. False at the end."""
        if self.ended:
            return False
        block = self.source.read(_BLOCK_CHARACTERS)
        if self.carriage:
            block = block.replace("\r", "\n")
        self.ended = not block
        self.text = self.text[self.at :] + block
        self.at = 0
        return not self.ended

    def advance(self, to: int) -> None:
        """Move to `to`: everything before it is scanned."""
        self.line += self.text.count("\n", self.at, to)
        self.at = to

    def run(self) -> Quotes:
        """Scan the file, up to the first field that swallows lines."""
        if self.text.startswith(self.quote):
            self.advance(len(self.quote))
            self.field()
        while not self.found.line:
            match = None
            if self.text.find(self.quote, self.at) >= 0:
                match = self.opening.search(self.text, self.at)
            if match is not None:
                self.advance(match.end())
                if not match.group(1):
                    self.field()
                continue
            # the window's end may be the first half of a match
            half = len(self.delimiter) + len(self.quote) - 1
            self.advance(max(self.at, len(self.text) - half))
            if not self.more():
                break
        return self.found

    def field(self) -> None:
        """Scan one field, from after its opening quote to after the quote that ends it."""
        while len(self.text) - self.at < _SHOWN_CHARACTERS and self.more():
            pass
        first, begin = self.line, self.text[self.at : self.at + _SHOWN_CHARACTERS]

        def swallows(problem: str) -> None:
            self.found.line, self.found.problem, self.found.begin = first, problem, begin

        while True:
            if self.line - first > self.most:
                return swallows(f"more than {self.most:,} line breaks in one field")
            match = self.inner.search(self.text, self.at)
            if match is None:
                half = self.text.endswith(self.escape)  # it may escape what the next block has
                self.advance(max(self.at, len(self.text) - half))
                if self.more():
                    continue
                return swallows("the file ends inside the field")
            self.advance(match.start())
            if self.line - first > self.most:
                continue
            if match.end() == len(self.text) and self.more():
                continue  # what follows the quote decides
            if len(match.group()) > len(self.quote):
                self.advance(self.at + len(match.group()))
                continue
            end = self.closed.match(self.text, self.at + len(self.quote))
            undecided = end is not None and not end.group(1)
            if (undecided or len(self.text) - self.at < _LOOK_AHEAD) and self.more():
                continue
            self.advance(self.at + len(self.quote))
            if end is None and self.line > first:
                return swallows(f"a quote on line {self.line} is neither its end nor escaped")
            if end is None:
                self.found.strays += 1
                self.found.stray_line = self.found.stray_line or first
            return None
