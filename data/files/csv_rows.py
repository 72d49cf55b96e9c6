"""The one parser of CSV: of the ETL, of predictions and of whatever else reads users' files.

`csv.reader` of the standard library parses what is written by the rules (RFC 4180), at the speed of
C. It runs in strict mode: what it refuses is parsed again here, character by character.

- LF, CR LF and CR CR LF end a record outside of quotes.
- A CR alone does so in a file whose first line it ends. In another file a line with such a CR is
  one record if it has the number of columns that way (pandas leaves a text's CR unquoted);
  otherwise each part of it is one.
- A quote that neither ends its field nor is escaped is text: the field keeps all of its quotes, up
  to the next delimiter (data/files/quotes.py has the rules).
- An empty field has no value: None.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from typing import Any

from howdah.config.data import CsvOptions
from howdah.data.files.quotes import Quotes
from howdah.errors import DataError

Fields = list[str]
_BEFORE_CR = re.compile("[ \t]*\r")


def records(
    lines: Iterable[str], options: CsvOptions, delimiter: str, counted: Quotes, path: str
) -> Iterator[tuple[int, Fields]]:
    """(line from 1 on which it begins, fields) of each record, the header among them.

    Args:
        lines: of the file, with their ends: at LF, or where `counted.carriage` at CR as well.
        counted: what was counted in the same file before.
        path: for messages.
    Raises:
        DataError: there are not as many records as were counted: a defect, or the file has changed.
    """
    marks = iter(counted.marks)
    mark, expected = next(marks, (0, 0))
    line = number = 0
    for lines_taken, ends, group in _groups(lines, options, delimiter):
        first, line = line + 1, line + lines_taken
        if not group:
            continue
        while mark and line >= mark:
            _require(number == expected, path, f"line {first}", expected, number)
            mark, expected = next(marks, (0, 0))
        number += ends
        for fields in group:
            yield first, fields
    _require(number == counted.records, path, f"line {line}", counted.records, number)


def first(lines: Iterable[str], options: CsvOptions, delimiter: str) -> Fields:
    """The first record of a file's first lines; empty where they have none."""
    if options.multiline and options.quote:
        records = (record for _, _, record in _groups(lines, options, delimiter) if record)
        return next(records, [[]])[0]
    return next((fields for _, fields in by_line(lines, options, delimiter)), [])


def _groups(
    lines: Iterable[str], options: CsvOptions, delimiter: str
) -> Iterator[tuple[int, int, list[Fields]]]:
    """(lines taken, line ends outside of quotes among theirs that are not of blank lines, records)
    of one record after the other; of several where CRs divide a line, of none for a blank line."""
    slow = _Parser(options, delimiter)
    taken: list[str] = []
    columns = 0

    def feed() -> Iterator[str]:
        for line in lines:
            taken.append(line)
            yield line

    source = feed()
    if options.escape is not None:
        for text in source:
            ends, rows = slow.several(text, source, columns)
            columns = columns or len(rows[0]) if rows else columns
            yield len(taken), ends, rows
            taken.clear()
        return
    reader = _reader(options, delimiter, source)
    while True:
        try:
            for fields in reader:
                columns = columns or len(fields)
                yield len(taken), 1, [fields] if fields else []
                taken.clear()
            return
        except csv.Error:
            ends, rows = slow.several("".join(taken), source, columns)
        columns = columns or len(rows[0]) if rows else columns
        yield len(taken), ends, rows
        taken.clear()


def _require(same: bool, path: str, where: str, expected: int, got: int) -> None:
    if not same:
        raise DataError(
            "not all records of a CSV file were read",
            where=f"{path}, up to {where}",
            expected=f"{expected:,} records, by the line ends outside of quotes",
            got=f"{got:,}",
            remedy="if the file is being written, start again when it is complete; otherwise this"
            " is a defect: please report the lines before that one",
        )


def by_line(
    lines: Iterable[str], options: CsvOptions, delimiter: str, columns: int = 0
) -> Iterator[tuple[int, Fields]]:
    """`records` of a file in which each line is a record (`multiline: false`, or no quotes).

    Args:
        columns: their number, where the first line is not the header.
    """
    slow = _Parser(options, delimiter)
    quote = options.quote
    for number, line in enumerate(lines, start=1):
        text = line.rstrip("\r\n")
        if not text:
            continue
        if "\r" in text:
            _, rows = slow.several(text, iter(()), columns)
        elif not quote or quote not in text:
            rows = [text.split(delimiter)]
        else:
            rows = slow.one(text, options)
        for fields in rows:
            columns = columns or len(fields)
            yield number, fields


def _reader(options: CsvOptions, delimiter: str, lines: Iterable[str]) -> Any:
    csv.field_size_limit(2**31 - 1)  # a field may hold a whole document
    quoting = csv.QUOTE_MINIMAL if options.quote else csv.QUOTE_NONE
    return csv.reader(
        lines, delimiter=delimiter, quotechar=options.quote or None, quoting=quoting, strict=True
    )


class _Parser:
    """Parses what `csv.reader` refuses or has other rules for."""

    def __init__(self, options: CsvOptions, delimiter: str) -> None:
        self.quote, self.delimiter = options.quote, delimiter
        self.escape = options.escape or options.quote
        self._opened = False
        cut = re.escape(delimiter)
        self._plain = {
            False: re.compile(f"[^{cut}\n]*"),
            True: re.compile(f"[^{cut}\n\r]*"),
        }
        if self.quote:
            quote, escape = re.escape(self.quote), re.escape(self.escape)
            escaped = (
                f"{escape}[{quote}{escape}]|" if self.escape != self.quote else quote * 2 + "|"
            )
            self._inner = re.compile(f"{escaped}{quote}")
            self._closed = {
                False: re.compile(f"(?:(?!{cut})[ \t\r])*(?={cut}|\n|\\Z)"),
                True: re.compile(f"(?:(?!{cut})[ \t])*(?={cut}|[\r\n]|\\Z)"),
            }

    def one(self, text: str, options: CsvOptions) -> list[Fields]:
        """The record of a line that has quotes and no CR."""
        if options.escape is None:
            try:
                return [next(_reader(options, self.delimiter, [text]))]
            except csv.Error:
                pass
        return [self._record(text, 0, iter(()), cr_ends=False)[0]]

    def several(self, text: str, more: Iterator[str], columns: int) -> tuple[int, list[Fields]]:
        """(how many records end with these lines, the records: more where CRs end some).

        Args:
            more: the lines that follow, for a quoted field that goes on.
            columns: how many a record has; 0: not known.
        """
        if not text.strip("\r\n"):
            return 0, []
        self._opened = False
        fields, at, text = self._record(text, 0, more, cr_ends=False)
        if "\r" not in text.rstrip("\r\n") or (len(fields) == columns and not self._opened):
            return 1, [fields]
        ends = at = 0
        rows = []
        while at < len(text):
            fields, end, text = self._record(text, at, more, cr_ends=True)
            if text[at:end].strip("\r\n"):
                rows.append(fields)
                ends += end == len(text) or text[end - 1] == "\n"
            at = end
        return ends, rows

    def _record(
        self, text: str, at: int, more: Iterator[str], *, cr_ends: bool
    ) -> tuple[Fields, int, str]:
        """(fields, where the next record begins, the text with the lines that were taken)."""
        fields: Fields = []
        while True:
            if self.quote and text.startswith(self.quote, at):
                value, at, text = self._quoted(text, at, more, cr_ends)
            else:
                end = self._plain[cr_ends].match(text, at).end()  # type: ignore[union-attr]
                value, at = text[at:end], end
                self._note(value)
            if text.startswith(self.delimiter, at):
                fields.append(value)
                at += 1
                continue
            if not cr_ends:
                value = value.rstrip("\r")
            fields.append(value)
            while text.startswith("\r", at):
                at += 1
                if cr_ends and not text.startswith(("\r", "\n"), at):
                    return fields, at, text
            return fields, at + text.startswith("\n", at), text

    def _quoted(
        self, text: str, begin: int, more: Iterator[str], cr_ends: bool
    ) -> tuple[str, int, str]:
        """(value, its end, the text) of a field from its opening quote on."""
        parts: list[str] = []
        at = begin + 1
        while True:
            match = self._inner.search(text, at)
            if match is None:
                line = next(more, None)
                if line is None:  # it is not closed: what follows is text
                    return "".join(parts) + text[at:].rstrip("\r\n"), len(text), text
                text += line
                continue
            if len(match.group()) > 1:
                parts += text[at : match.start()], match.group()[1]
                at = match.end()
                continue
            closed = self._closed[cr_ends].match(text, match.end())
            if closed is not None:
                parts.append(text[at : match.start()])
                return "".join(parts), closed.end(), text
            if _BEFORE_CR.match(text, match.end()):  # the field is closed, and a CR ends the record
                self._opened = True
            end = self._plain[cr_ends].match(text, match.end()).end()  # type: ignore[union-attr]
            self._note(text[match.end() : end])
            return text[begin:end], end, text

    def _note(self, unquoted: str) -> None:
        """A quote after a CR opens a field, so that the CR ends a record: a writer who leaves the
        CR of a text unquoted quotes a text that has quotes."""
        if self.quote and f"\r{self.quote}" in unquoted:
            self._opened = True
