"""Find quotes that are never closed in a CSV file, and count its records, before rows are parsed.

A quoted field may hold delimiters and line breaks. Where its closing quote is missing, the rows
that follow become part of the field, up to the next quote or to the end of the file: one long text,
or one malformed row, and nothing could count the lost rows among the rejected.

So this module first reads a file once as characters, by these rules, which the parser
(data/files/csv_rows.py) shares:

- A quote opens a field only as the field's first character; elsewhere in an unquoted field it is
  an ordinary character.
- The field ends at a quote that is followed, blanks aside, by the delimiter, a line break or the
  end of the file.
- Any other quote inside that is not escaped is STRAY: the field then goes on to the next delimiter
  or line break as if unquoted, and keeps its quotes.

An error is a field that has swallowed lines: the file ends inside it, a stray quote comes after a
line break, or it has more line breaks than allowed. Stray quotes within a line lose no row; they
are counted.

Line ends outside of quotes end records: LF and CR LF (or CR CR LF), and in a file whose first line
ends in a CR alone each CR. The parser must find as many records, and is refused where it does not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TextIO

from howdah.config.data import CsvOptions
from howdah.data.files.opening import open_text
from howdah.errors import DataError

MAX_LINE_BREAKS = 1_000
"""More line breaks in one quoted field count as an unclosed quote. A correct file can hold a longer
field, but by its length alone can a field that swallows the rest of a file be told from it."""
ENDS_INSIDE = "the file ends inside the field"
_BLOCK_CHARACTERS = 2**20
_SHOWN_CHARACTERS = 60
_LINE_BREAK = re.compile("\r*\n|\r(?=[^\r\n])")
_HEAD_CHARACTERS = 2**16
_RECORD_END = re.compile("[^\r\n]\r*\n")
_LOOK_AHEAD = 16  # characters after a quote that decide what it is, blanks aside


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
    carriage: bool = False
    """Each CR ends a line."""
    records: int = 0
    """Records, the header among them, that end outside of quotes; blank lines are none."""
    marks: list[tuple[int, int]] = field(default_factory=list)
    """(line, records that end before the record on that line), about one for each block: where the
    parser's count differs first tells the place."""


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
        f" line or after at most {MAX_LINE_BREAKS:,} line breaks",
        got=f"{first.problem}; the field begins with {first.begin!r}{more}",
        remedy="close the quote on that line, or double it where it is part of the text. If quotes"
        " are escaped in this file, set data.csv.escape; if they mean nothing, data.csv.quote: ''."
        " If no field holds line breaks, data.csv.multiline: false reads each line by itself.",
    )


def scan_file(path: str, options: CsvOptions, delimiter: str) -> Quotes:
    """The quotes of a file on any storage, up to the first field that swallows lines."""
    with open_text(path, options.encoding) as text:
        return scan(text, options, delimiter)


def cr_ends_lines(begin: str, options: CsvOptions, delimiter: str) -> bool | None:
    """True if each CR ends a line (files of old Macs), judged by the first line break outside of
    quotes. None: the text has no such line break.

    Args:
        begin: the beginning of the file.
    """
    first = None
    for line_break in _LINE_BREAK.finditer(begin):
        if not options.quote or begin.count(options.quote, 0, line_break.start()) % 2 == 0:
            first = line_break
            break
    if first is None:
        return None
    if first.group() != "\r":
        return False
    if options.header or options.names is None:
        return True
    # Without a header the first line may be a row, and the CR part of an unquoted text.
    line = begin.partition("\n")[0]
    return line.count(delimiter) + 1 != len(options.names)


def scan(text: TextIO, options: CsvOptions, delimiter: str) -> Quotes:
    """The quotes of one file, up to the first field that swallows lines.

    Needs memory for two blocks of characters, however long a field is.
    """
    return _Scanner(text, options, delimiter).run()


class _Scanner:
    """A window over the characters: `self.text[self.at:]` is not scanned yet."""

    def __init__(self, text: TextIO, options: CsvOptions, delimiter: str) -> None:
        self.source, self.options = text, options
        self.quote = options.quote
        self.delimiter = delimiter
        self.text = ""
        self.at = 0
        self.line = 1
        self.ended = self.held = False
        self.begun = False  # the record under way has content
        self.result = Quotes()
        if self.quote:
            self._compile(options.escape or options.quote, delimiter)
        self.carriage = False
        self.carriage = self._only_carriage_returns()

    def _compile(self, escape: str, delimiter: str) -> None:
        quote, cut = re.escape(self.quote), re.escape(delimiter)
        # an escaped character, or a quote that is not escaped; then any other character of a line
        inner, plain = f"{re.escape(escape)}{quote}|{quote}", f"[^{quote}\n]"
        escaped = re.escape(escape) + quote
        if escape != self.quote:
            inner, plain = f"{re.escape(escape)}.|{quote}", f"[^{quote}{re.escape(escape)}\n]"
            escaped = re.escape(escape) + "[^\n]"
        self.inner = re.compile(inner, re.DOTALL)
        # what may follow the quote that ends a field: blanks, and the field's end
        self.closed = re.compile(f"(?:(?!{cut})[ \t])*({cut}|[\r\n]|\\Z)")
        # an opening quote follows the delimiter or a line break. Most fields end on their line:
        # as many of those as follow one another are taken at once (group 1).
        whole = f"{plain}*+(?:{escaped}{plain}*+)*+{quote}(?={cut}|\r?\n)"
        opening = f"(?:{cut}|[\r\n]){quote}"
        self.opening = re.compile(f"((?:{opening}{whole})++)|{opening}")
        self.escape = escape

    def _only_carriage_returns(self) -> bool:
        """True if lines end with CR alone."""
        only = None
        while only is None:
            while len(self.text) < _HEAD_CHARACTERS and self.more():
                pass
            only = cr_ends_lines(self.text, self.options, self.delimiter)
            if only is None and not self.more():
                break
        if only:
            self.text = self.plain(self.text)
        self.result.carriage = bool(only)
        return self.result.carriage

    def plain(self, block: str) -> str:
        """Line ends of a block as LF, where a CR ends a line."""
        if self.held:
            block = "\r" + block
        self.held = block.endswith("\r") and not self.ended  # it may be half of a CR LF
        block = block[:-1] if self.held else block
        return block.replace("\r\n", "\n").replace("\r", "\n")

    def more(self) -> bool:
        """Append one more block to the window and drop what is scanned. False at the end."""
        if self.ended:
            return False
        block = self.source.read(_BLOCK_CHARACTERS)
        self.ended = not block
        if self.carriage:
            block = self.plain(block)
        self.text = self.text[self.at :] + block
        self.at = 0
        return bool(block) or not self.ended

    def advance(self, to: int) -> None:
        """Move to `to`: everything before it is scanned."""
        self.line += self.text.count("\n", self.at, to)
        self.at = to

    def outside(self, to: int) -> None:
        """Move to `to`, and count the records that end before it: no quoted field is open."""
        count = self.text.count("\n", self.at, to)
        if self.begun and not count:
            self.at = to
            return
        part = self.text[self.at : to]
        blank = "\n\n" in part or "\n\r" in part or (not self.begun and part[:1] in ("\n", "\r"))
        if not blank:
            self.result.records += count
        else:
            self.result.records += len(_RECORD_END.findall(part))
            if self.begun and part.lstrip("\r")[:1] == "\n":
                self.result.records += 1
        if tail := part.rstrip("\r"):
            self.begun = not tail.endswith("\n")
        self.line, self.at = self.line + count, to

    def run(self) -> Quotes:
        """Scan the file, up to the first field that swallows lines."""
        if self.quote and self.text.startswith(self.quote):
            self.outside(len(self.quote))
            self.field()
        while not self.result.line:
            match = None
            if self.quote and self.text.find(self.quote, self.at) >= 0:
                match = self.opening.search(self.text, self.at)
            if match is not None:
                self.outside(match.end())
                if not match.group(1):
                    self.field()
                continue
            # the window's end may be the first half of a match
            half = len(self.delimiter) + len(self.quote) - 1
            self.outside(max(self.at, len(self.text) - half))
            if not self.more():
                break
            self.result.marks.append((self.line, self.result.records))
        self.outside(len(self.text))
        self.result.records += self.begun
        return self.result

    def field(self) -> None:
        """Scan one field, from after its opening quote to after the quote that ends it."""
        while len(self.text) - self.at < _SHOWN_CHARACTERS and self.more():
            pass
        first, begin = self.line, self.text[self.at : self.at + _SHOWN_CHARACTERS]

        def swallows(problem: str) -> None:
            self.result.line, self.result.problem, self.result.begin = first, problem, begin

        while True:
            if self.line - first > MAX_LINE_BREAKS:
                return swallows(f"more than {MAX_LINE_BREAKS:,} line breaks in one field")
            match = self.inner.search(self.text, self.at)
            if match is None:
                half = self.text.endswith(self.escape)  # it may escape what the next block has
                self.advance(max(self.at, len(self.text) - half))
                if self.more():
                    continue
                return swallows(ENDS_INSIDE)
            self.advance(match.start())
            if self.line - first > MAX_LINE_BREAKS:
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
                self.result.strays += 1
                self.result.stray_line = self.result.stray_line or first
            return None
