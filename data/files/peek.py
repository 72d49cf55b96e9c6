"""A look at the beginning of a file of rows: its columns and first rows, without Spark or a model.

At most the first MiB of a file is read, by the parsers that read the whole file later
(csv_rows.py, json_rows.py, pyarrow), so that a mistake that shows there costs a second and not the
start of a JVM or the loading of a model.
"""

from __future__ import annotations

import codecs
import io
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from howdah import storage
from howdah.config.data import CsvOptions
from howdah.config.types import too_many
from howdah.data import ids
from howdah.data.files import csv_rows, encodings, everyday, footers, json_rows, quotes, records
from howdah.data.files.opening import head, open_text
from howdah.errors import DataError
from howdah.storage.charsets import ESCAPE, SURROGATES

MOST = 2**20
"""Characters, or bytes, of a file that are looked at."""
_MOST_ROWS = 10_000
_MOST_COLUMNAR_ROWS = 1_000
_NEARLY_ALL = 0.9
"""Share of the rows that must have a separator's number of columns."""
SEPARATORS = (",", ";", "\t", "|")
_TEXT = ("text", "message", "body", "content", "comment", "review", "sentence", "description",
         "tweet", "document")  # fmt: skip
_LABEL = ("label", "category", "class", "target", "topic", "intent", "sentiment", "tag", "type")
_ID = re.compile(r"(?i:(.*[_\- ])?(id|key|uuid|guid))|.+I[dD]")
_WORDS = re.compile(r"[^\W\d_]\s+[^\W\d_]")
_NUMBER = re.compile(r"[-+]?\d+([.,]\d+)?(e[-+]?\d+)?", re.IGNORECASE)
_OFTEN = 10
"""Rows per value from which on a column is a label and no text, where nothing else tells."""
_MOST_LABELS = 100
"""Largest number of different values that look like labels."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The first rows of a file."""

    path: str
    form: str
    """csv, jsonl, parquet, orc or avro."""
    names: list[str]
    """Its columns, of CSV without blanks around them."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    """{column: value}; texts as they are written."""
    whole: bool = False
    """True if the file has no more rows."""
    malformed: list[tuple[int, str]] = field(default_factory=list)
    """(line, what is wrong) of rows that cannot be read."""
    blanks: list[str] = field(default_factory=list)
    """Names of a header as they are written, of those with blanks around them."""
    description: str = ""
    """How it is written: separator, encoding, header."""
    compression: frozenset[str] = frozenset()
    """How the columns of Parquet are compressed, by pyarrow's names."""

    @property
    def stripped(self) -> str | None:
        """The line about such names; None: there are none."""
        names = ", ".join(map(repr, self.blanks))
        line = f"{self.path}: blanks around column names are ignored: {names}"
        return line if names else None

    def texts(self, names: Sequence[str]) -> Iterator[list[str]]:
        """The values of columns that a row has, as texts, row by row."""
        for row in self.rows:
            values = [json_rows.field(row, name) for name in names]
            yield [one for one in map(self._text, values) if one is not None]

    def column(self, name: str, *, lists: bool = False) -> list[str | None]:
        """A column's values as texts; None where a row has none.

        Args:
            lists: an array is a value too, as JSON.
        """
        values = (json_rows.field(row, name) for row in self.rows)
        return [
            _array_text(one) if lists and isinstance(one, list) else self._text(one)
            for one in values
        ]

    @staticmethod
    def _text(value: Any) -> str | None:
        return None if isinstance(value, list | dict) else ids.text(json_rows.scalar(value))


def _array_text(values: list[Any]) -> str:
    """An array as JSON; Parquet's values, which may be dates, become texts first."""
    plain = (one if isinstance(one, list | dict) else ids.text(one) for one in values)
    return json_rows.array_text(list(plain))


def sample(path: str, form: str, options: CsvOptions, root: str | None = None) -> Sample:
    """The first rows of a file.

    Args:
        root: a directory below which names of directories, `day=2026-11-01`, are columns too.
    Raises:
        DataError: it is a file of another format, an unclosed quote, a broken array.
    """
    if form in ("csv", "jsonl"):
        everyday.refuse_content(path)
        one = _csv(path, options) if form == "csv" else _json(path)
    else:
        one = _columnar(path, form)
    constants = records.directories(path, root)
    if not constants:
        return one
    rows = [constants | {k: v for k, v in row.items() if v is not None} for row in one.rows]
    return replace(one, rows=rows, names=list(dict.fromkeys((*one.names, *constants))))


# -------------------------------------------------------------------------------------------- CSV
def _csv(path: str, options: CsvOptions) -> Sample:
    delimiter = records.delimiter_of(path, options)
    with open_text(path, options.encoding) as text:
        begin = text.read(MOST)
        whole = not text.read(1)
    names = records.csv_names(path, options)
    stripped = [name.strip() for name in names]
    shown = stripped if len(set(stripped)) == len(set(names)) else names
    rows, malformed = [], []
    parsed = _parsed(begin, whole, options, delimiter, path)
    if options.header:
        next(parsed, None)
    for line, fields in itertools.islice(parsed, _MOST_ROWS):
        if len(fields) != len(names):
            malformed.append((line, f"{len(fields)} fields instead of {len(names)}"))
            continue
        rows.append({name: value or None for name, value in zip(shown, fields, strict=True)})
    header = "a header" if options.header else "no header (data.csv.names)"
    mark = " with a byte order mark" if head(path, 3) == codecs.BOM_UTF8 else ""
    return Sample(
        path=path,
        form="csv",
        names=shown,
        rows=rows,
        whole=whole and next(parsed, None) is None,
        malformed=malformed,
        blanks=[name for name in names if name != name.strip()],
        description=f"CSV, separator {delimiter!r}, quote {options.quote or 'none'},"
        f" {options.encoding}{mark}, {header}",
    )


def _parsed(
    begin: str, whole: bool, options: CsvOptions, delimiter: str, path: str
) -> Iterator[tuple[int, list[str]]]:
    if not whole:
        begin = begin[: max(begin.rfind("\n"), begin.rfind("\r")) + 1] or begin
    if not options.multiline or not options.quote:
        carriage = bool(quotes.cr_ends_lines(begin, options, delimiter))
        return csv_rows.by_line(_lines(begin, carriage), options, delimiter)
    counted = quotes.scan(io.StringIO(begin, newline=""), options, delimiter)
    while counted.line and not whole and counted.problem == quotes.ENDS_INSIDE:
        # the MiB ends in a quoted field: leave out the lines from its beginning on
        begin = "".join(list(_lines(begin, counted.carriage))[: counted.line - 1])
        counted = quotes.scan(io.StringIO(begin, newline=""), options, delimiter)
    if counted.line:
        raise quotes.refused([(path, counted)], options)
    lines = _lines(begin, counted.carriage)
    return csv_rows.records(lines, options, delimiter, counted, path)


def _lines(begin: str, carriage: bool) -> io.StringIO:
    return io.StringIO(begin, newline="" if carriage else "\n")


def sniffed(path: str, options: CsvOptions) -> CsvOptions:
    """The options with the separator and the encoding that a file's beginning shows.

    The separator is the one that gives most columns to nearly all rows, and to the header if one
    does: others are inside texts.
    """
    encoding = encodings.sniffed(head(path, MOST)) or options.encoding
    options = options.model_copy(update={"encoding": encoding})
    best, best_fit = options.delimiter, (False, 1)
    for delimiter in dict.fromkeys((options.delimiter, *SEPARATORS)):
        attempt = options.model_copy(update={"delimiter": delimiter})
        try:
            with open_text(path, encoding) as text:
                begin = text.read(MOST // 16)
                whole = not text.read(1)
            separator = records.delimiter_of(path, attempt)
            parsed = _parsed(begin, whole, attempt, separator, path)
            lengths = [len(fields) for _, fields in parsed]
            counts = Counter(lengths)
        except DataError:
            continue
        columns, rows = counts.most_common(1)[0] if counts else (0, 0)
        fit = (not options.header or columns in lengths[:1], columns)
        if columns > 1 and fit > best_fit and rows >= _NEARLY_ALL * counts.total():
            best, best_fit = delimiter, fit
    return options.model_copy(update={"delimiter": best})


def options_that_fit(path: str, names: Sequence[str], options: CsvOptions) -> dict[str, str]:
    """{key of data.csv: value} with which a file's header has these columns; {}: none do."""
    encoding = encodings.sniffed(head(path, MOST)) or options.encoding
    for other in dict.fromkeys((options.encoding, encoding)):
        for delimiter in SEPARATORS:
            update = {"delimiter": delimiter, "encoding": other}
            try:
                header = records.csv_names(path, options.model_copy(update=update))
            except DataError:
                continue
            if {*names} <= {name.strip() for name in header}:
                return {k: v for k, v in update.items() if v != getattr(options, k)}
    return {}


# ------------------------------------------------------------------------------------------- JSON
def _json(path: str) -> Sample:
    with open_text(path, "UTF-8", newline="\n") as text:
        begin = text.read(MOST)
        whole = not text.read(1)
    array = json_rows.is_array(path)
    if not array and not whole:
        begin = begin[: begin.rfind("\n") + 1] or begin
    rows: list[dict[str, Any]] = []
    malformed = []
    lines = io.StringIO(begin, newline="\n")
    each = json_rows.of_array(lines, path) if array else json_rows.lines(lines)
    try:
        for line, value, problem, _ in itertools.islice(each, _MOST_ROWS):
            if problem is not None:
                malformed.append((line, problem))
            else:
                rows.append(value)
        whole = whole and next(each, None) is None
    except DataError:  # an array that goes on after the MiB
        if whole:
            raise
    names = list(dict.fromkeys(name for row in rows for name in row))
    return Sample(
        path=path,
        form="jsonl",
        names=names,
        rows=rows,
        whole=whole,
        malformed=malformed,
        description="JSON, " + ("one array of objects" if array else "one object per line"),
    )


# ------------------------------------------------------------------------------ Parquet, ORC, Avro
def _columnar(path: str, form: Any) -> Sample:
    schema = footers.schema(path, form)
    rows: list[dict[str, Any]] = []
    compression: frozenset[str] = frozenset()
    whole = False
    if form == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        large = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_map)
        names = [one.name for one in schema if not any(test(one.type) for test in large)]
        with storage.open_read(path) as file, footers.readable(path, form):
            parquet = pq.ParquetFile(file, buffer_size=MOST // 16, pre_buffer=False)
            batch = next(parquet.iter_batches(_MOST_COLUMNAR_ROWS, columns=names), None)
            whole = parquet.metadata.num_rows == (0 if batch is None else batch.num_rows)
            compression = footers.compression(parquet)
        rows = [] if batch is None else _of_batch(batch)
    return Sample(
        path=path,
        form=form,
        names=list(schema.names),
        rows=rows,
        whole=whole,
        description=footers.TITLES[form],
        compression=compression,
    )


def _of_batch(batch: Any) -> list[dict[str, Any]]:
    import pyarrow as pa

    columns = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            nested = pa.types.is_nested(column.type)
            columns[name] = column.to_pylist() if nested else ids.texts(column)
        except (ArithmeticError, LookupError, ValueError):
            columns[name] = _foreign(column)
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def _foreign(column: Any) -> list[str | None]:
    """A column with values that Python's types lack, as Spark would have it: bytes that are not
    UTF-8, a time in the year 10000, a zone that is not known here. Nulls where Arrow has no text
    of them either."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        return _foreign(column.cast(kind.value_type))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        values = column.cast(pa.large_binary()).to_pylist()
        return [None if one is None else one.decode("utf-8", ESCAPE) for one in values]
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp(kind.unit))
    try:
        return column.cast(pa.string()).to_pylist()
    except pa.ArrowException:
        return [None] * len(column)


# --------------------------------------------------------------------------------------- judging
def undecodable(one: Sample, names: Sequence[str]) -> int:
    """Number of rows whose texts have bytes that are not in the file's encoding."""
    return sum(any(map(SURROGATES.search, values)) for values in one.texts(names))


def refuse_encoding(one: Sample, names: Sequence[str], most: float, encoding: str) -> None:
    """Refuse a file where more than a share of the rows is in another character set, and CSV of
    UTF-8 that is read as anything else: every row decodes then, some into nonsense.

    Args:
        encoding: the one in which CSV is read.
    Raises:
        DataError: with the character set in which all of them decode.
    """
    if one.form not in ("csv", "jsonl"):
        return
    count, rows, other = undecodable(one, names), len(one.rows), None
    if too_many(count, rows, most):
        other = encodings.sniffed(head(one.path, MOST))
    elif one.form == "csv" and not encodings.is_unicode(encoding):
        count = sum(not "".join(values).isascii() for values in one.texts(names))
        if count and encodings.sniffed(head(one.path, MOST)) == "UTF-8":
            other = "UTF-8"
    if other is not None:
        raise encodings.refused(one.path, count, rows, one.form, other, encoding)


# --------------------------------------------------------------------------------------- columns
def guessed(sample: Sample) -> dict[str, str]:
    """{text, label, id: column} of a file, by the columns' names and values.

    The text is the longest column, the label one of few values; without any such one, or an id,
    they are left out. A name that a header has twice is none.

    Raises:
        DataError: no column has a text, or a .tsv has commas.
    """
    commas = records.tsv_of_commas(sample.path, sample.names, CsvOptions())
    if sample.form == "csv" and commas is not None:
        raise DataError(
            "the source has one column",
            where=sample.path,
            expected="columns divided by tabs",
            got=sample.names[0],
            remedy=commas,
        )
    names = [name for name in sample.names if sample.names.count(name) == 1]
    values = {name: sample.column(name) for name in (*_inside(sample), *names)}
    lengths = {}
    for name, column in values.items():
        present = [len(one) for one in column if one]
        lengths[name] = sum(present) / len(column) if present else 0.0
    longest = max(lengths, key=lambda name: lengths[name], default="")
    if not longest or not lengths[longest]:
        raise DataError(
            "the source has no text", where=sample.path,
            got=f"columns {', '.join(sample.names)}" if sample.names else "no column",
            remedy="name a file of rows with a column of texts: CSV, JSON lines or Parquet",
        )  # fmt: skip
    named = [name for name in _by_name(values, _TEXT) if lengths[name] >= lengths[longest] / 2]
    text = next(iter(named), longest)
    read = sample.rows[0] if sample.form == "parquet" else sample.names
    unread = _by_name([name for name in sample.names if name not in read], _TEXT)
    if unread and not named and not any(" " in one.strip() for one in values[text] if one):
        raise DataError(
            f"the column {unread[0]!r} has bytes, and no other column looks like texts",
            where=sample.path,
            expected="a column of texts (string)",
            remedy="write it as a string: in Spark CAST(... AS STRING), in pandas"
            ' .str.decode("utf-8")',
        )
    if _is_label(text, values[text]):
        others = [name for name in values if name != text and _is_prose(values[name])]
        text = max(others, key=lambda name: lengths[name], default="")
    columns = {"text": text} if text else {}
    few = [name for name in values if name != text and _repeats(values[name])]
    if few:
        columns["label"] = next(iter(_by_name(few, _LABEL)), few[-1])
    for name in names:
        column = values[name]
        distinct = None not in column and len(set(column)) == len(column)
        if name not in columns.values() and _ID.fullmatch(name) and distinct:
            columns["id"] = name
            break
    return columns


def numeric(sample: Sample, but: Iterable[str]) -> list[str]:
    """The columns of numbers, other than `but`, that may be targets of a regression."""
    others = [name for name in dict.fromkeys(sample.names) if name not in set(but)]
    columns = {name: [one for one in sample.column(name) if one] for name in others}
    return [
        name
        for name, present in columns.items()
        if present and not _ID.fullmatch(name) and all(map(_NUMBER.fullmatch, present))
    ]


def _inside(sample: Sample) -> list[str]:
    """Fields of objects, as `a.b`, that are read like columns."""
    return list(dict.fromkeys(
        f"{name}.{key}" for row in sample.rows for name, value in row.items()
        if isinstance(value, dict) for key, inner in value.items() if isinstance(inner, str)
    ))  # fmt: skip


def _is_label(name: str, column: Sequence[str | None]) -> bool:
    """True if a column is named like a label and repeats, or repeats few short values often."""
    present, word = [one for one in column if one], name.strip().lower()
    often = len(present) >= _OFTEN * len(set(present)) and not _is_prose(column)
    return _repeats(column) and word not in _TEXT and (often or word in _LABEL)


def _is_prose(column: Sequence[str | None]) -> bool:
    """True if most values have several words."""
    several = sum(bool(_WORDS.search(one)) for one in column if one)
    return several > len(column) // 2


def _by_name(names: Iterable[str], usual: Sequence[str]) -> list[str]:
    """The columns with usual names, the most usual first."""
    return [name for word in usual for name in names if name.strip().lower() == word]


def _repeats(column: Sequence[str | None]) -> bool:
    """True if a column's values look like labels."""
    present = [one.strip() for one in column if one]
    distinct = len(set(present))
    return 2 <= distinct <= min(_MOST_LABELS, max(2, len(present) // 2))
