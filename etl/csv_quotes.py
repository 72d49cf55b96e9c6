"""Find quotes that are never closed in CSV files, before anything is read from them.

A quoted field may hold delimiters and line breaks. Where its closing quote is missing, the rows
that follow become part of the field, up to the next quote or to the end of the file. Spark's parser
reports nothing: it reads one long text, or one malformed row. Rows that are lost in this way cannot
be counted among the rejected.

So each file is read once as characters, in a task of its own, by the rules of Spark's parser
(univocity, unescaped quotes: STOP_AT_DELIMITER):

- A quote opens a field only as the field's first character; elsewhere in an unquoted field it is
  an ordinary character.
- It is closed by a quote that only blanks part from the delimiter, the line's or the file's end.
- A quote inside that closes nothing and is not escaped is STRAY: the field then goes on to the next
  delimiter or line break as if unquoted, and keeps its quotes.

An error is a field that has swallowed lines: the file ends inside it, a stray quote comes after a
line break, or it has more line breaks than allowed. Stray quotes within a line lose no row; they
are counted.
"""

from __future__ import annotations

import bz2
import gzip
import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import BinaryIO, TextIO, cast

import pyarrow as pa
from pyspark.sql import SparkSession

from etl.sources import Source
from howdah import storage
from howdah.config_data import CsvOptions
from howdah.errors import ConfigError, DataError
from howdah.spark.errors import crossing

_BLOCK_CHARACTERS = 2**20
_SHOWN_CHARACTERS = 60
_LINE_BREAK = re.compile("\r?\n|\r(?=[^\n])")
_LOOK_AHEAD = 16  # characters behind a quote that decide about it, blanks apart
_MOST_TASKS = 1_000
_FOUND = "path string, line bigint, problem string, begin string, strays bigint, stray_line bigint"
_COMPRESSED = {".gz": gzip.open, ".bz2": bz2.open}
_NOT_READ = (".zst", ".zstd", ".snappy", ".lz4", ".lzo", ".deflate")


@dataclass
class Quotes:
    """What the quotes of one file are like."""

    strays: int = 0
    """Fields with a stray quote that swallowed no line."""
    stray_line: int = 0
    """Line of the first of them (1-based)."""
    line: int = 0
    """Line on which a field begins that swallows lines; 0: there is none."""
    problem: str = ""
    """How that shows."""
    begin: str = ""
    """The beginning of that field."""


@dataclass(frozen=True, kw_only=True)
class Strays:
    """Stray quotes of all files."""

    fields: int = 0
    where: list[str] = field(default_factory=list)
    """"<file>, line <n>" of the first one of some files."""


def check(spark: SparkSession, source: Source, options: CsvOptions, delimiter: str) -> Strays:
    """Read all files of a source once and refuse unclosed quotes.

    Returns:
        stray quotes that lost nothing, for the report.

    Raises:
        DataError: a field swallows lines: the file, the line on which it begins, and how it shows.
        ConfigError: a file's compression is one that only Spark reads.
    """
    if not options.multiline or not options.quote:
        return Strays()
    for entry in source.files:
        if entry.name.lower().endswith(_NOT_READ):
            raise ConfigError(
                "a CSV file of this compression cannot be checked for unclosed quotes",
                where=entry.path,
                expected="no compression, " + ", ".join(_COMPRESSED),
                remedy="set data.csv.multiline: false if no field holds line breaks, or compress"
                " the file in another way",
            )
    files = spark.createDataFrame([(entry.path,) for entry in source.files], "path string")
    work = partial(_check_batches, options=options, delimiter=delimiter)
    tasks = min(len(source.files), _MOST_TASKS)
    rows = files.repartition(tasks).mapInArrow(crossing(work), _FOUND).collect()
    bad = sorted((row["path"], row) for row in rows if row["line"])
    if bad:
        raise _refused([row for _, row in bad], options)
    strays = sorted((row["path"], row["stray_line"]) for row in rows)
    return Strays(
        fields=sum(row["strays"] for row in rows),
        where=[f"{path}, line {line}" for path, line in strays[:5]],
    )


def _refused(bad: list, options: CsvOptions) -> DataError:
    first = bad[0]
    more = "" if len(bad) == 1 else f"; {len(bad) - 1} more files have such a field"
    return DataError(
        "a quoted field swallows the lines after it: its closing quote is missing",
        where=f"{first['path']}, line {first['line']}",
        expected=f"a closing {options.quote} before the delimiter or the end of the line, on this"
        f" line or after at most {options.max_line_breaks:,} line breaks",
        got=f"{first['problem']}; the field begins with {first['begin']!r}{more}",
        remedy="close the quote on that line, or double it where it is part of the text. If quotes"
        " are escaped in this file, set data.csv.escape; if they mean nothing, data.csv.quote: ''."
        " If no field holds line breaks, data.csv.multiline: false reads each line by itself. For"
        " texts of more lines raise data.csv.max_line_breaks",
    )


def _check_batches(
    batches: Iterable[pa.RecordBatch], options: CsvOptions, delimiter: str
) -> Iterator[pa.RecordBatch]:
    """mapInArrow: (path) -> _FOUND, a row for each file with anything to report."""
    schema = pa.schema(
        [
            ("path", pa.string()),
            ("line", pa.int64()),
            ("problem", pa.string()),
            ("begin", pa.string()),
            ("strays", pa.int64()),
            ("stray_line", pa.int64()),
        ]
    )
    for batch in batches:
        found = []
        for path in batch.column("path").to_pylist():
            with storage.open_read(path) as raw, _characters(raw, path, options) as text:
                quotes = scan(text, options, delimiter)
            if quotes.line or quotes.strays:
                found.append({"path": path, **vars(quotes)})
        yield pa.RecordBatch.from_pylist(found, schema)


def _characters(raw: BinaryIO, path: str, options: CsvOptions) -> TextIO:
    opened = next((how for end, how in _COMPRESSED.items() if path.lower().endswith(end)), None)
    plain = cast(BinaryIO, opened(raw, "rb")) if opened else raw
    return io.TextIOWrapper(plain, options.encoding, errors="replace", newline="")


def scan(text: TextIO, options: CsvOptions, delimiter: str) -> Quotes:
    """The quotes of one file, up to the first field that swallows lines.

    Needs memory for two blocks of characters, however long a field is.
    """
    return _Scanner(text, options, delimiter).run()


class _Scanner:
    """A window over the characters: `self.text[self.at:]` is what has not been judged yet."""

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
        # an escaped character, or a quote that is none; then any other character of the same line
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
        """Bring one more block into the window; what was judged leaves it. False at the end."""
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
        """Everything before `to` is judged."""
        self.line += self.text.count("\n", self.at, to)
        self.at = to

    def run(self) -> Quotes:
        """Judge the whole file, or all before the first field that swallows lines."""
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
        """Judge one field from behind its opening quote to behind the quote that ends it."""
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
