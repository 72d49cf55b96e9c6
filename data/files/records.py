"""The one reader of users' rows in text files, of a whole file or of a part of it.

ETL, `howdah predict`, `howdah drift` and joined labels read by it, in one process and in Spark's
workers, so that a row has the same texts, id and error wherever it is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Literal
from urllib.parse import unquote

from howdah import storage
from howdah.config.data import CsvOptions
from howdah.config.options.partition import NULL
from howdah.data.files import csv_rows, json_rows, quotes
from howdah.data.files.listing import ending
from howdah.data.files.opening import LineCount, compression_of, open_text
from howdah.data.files.quotes import Quotes
from howdah.errors import DataError, UsageError
from howdah.storage.charsets import lines_are_bytes

TextForm = Literal["csv", "jsonl"]
Row = tuple[int, Sequence[Any], str | None, str]
"""(line from 1, or 0 where it is not known; the values of the columns that are read; why the row
cannot be read; the row as it is written)."""

_HEAD_CHARACTERS = 2**16


@dataclass(frozen=True, kw_only=True)
class Part:
    """A file of text, or those of its lines that begin in a range of its bytes."""

    path: str
    form: TextForm
    start: int = 0
    end: int | None = None
    """Byte offset behind the part; None: the file's end."""


def delimiter_of(path: str, options: CsvOptions) -> str:
    """Field separator of a CSV file: a tab in a .tsv unless `options` differ from the comma.

    A comma that is set cannot be told from the default: configurations are written whole for jobs.
    """
    tabs = ending(storage.name(path)) == ".tsv"
    return "\t" if tabs and options.delimiter == "," else options.delimiter


def tsv_of_commas(path: str, names: Sequence[str], options: CsvOptions) -> str | None:
    """What to do with a .tsv whose header has commas and no tab; None: it is another file."""
    commas = options.header and len(names) == 1 and "," in names[0]
    if not commas or delimiter_of(path, options) != "\t" or options.delimiter != ",":
        return None
    return "a .tsv is divided by tabs, and this header has commas and no tab: name the file .csv"


def divisible(path: str, form: TextForm, options: CsvOptions) -> bool:
    """True if a file can be read in parts, because each line is a record."""
    if compression_of(path) is not None:
        return False
    if form == "jsonl":
        return True
    one_line = not options.multiline or not options.quote
    return one_line and lines_are_bytes(options.encoding)


def parts(path: str, form: TextForm, size: int, options: CsvOptions, most: int) -> list[Part]:
    """A file's parts of at most `most` bytes; the whole file if it cannot be divided."""
    if size <= most or not divisible(path, form, options):
        return [Part(path=path, form=form)]
    starts = range(0, size, most)
    return [Part(path=path, form=form, start=at, end=min(at + most, size)) for at in starts]


def read(
    part: Part,
    columns: Sequence[str],
    options: CsvOptions,
    *,
    root: str | None = None,
    counted: Quotes | None = None,
) -> Iterator[Row]:
    """The rows of a part.

    Args:
        columns: names of columns; of JSON, `a.b` is a field of an object as well.
        options: how CSV is read.
        root: a directory below which names of directories, `day=2026-11-01`, are columns too.
        counted: the records of a CSV file that was scanned before; None: it is scanned first.
    Raises:
        DataError: an unclosed quote, a broken array of JSON, a damaged file; or not all that was
            counted was read.
    """
    constants = directories(part.path, root)
    if part.form == "csv":
        return _csv(part, columns, options, constants, counted)
    return _json(part, columns, constants)


# -------------------------------------------------------------------------------------------- CSV
def _csv(
    part: Part,
    columns: Sequence[str],
    options: CsvOptions,
    constants: Mapping[str, str | None],
    counted: Quotes | None,
) -> Iterator[Row]:
    path, delimiter = part.path, delimiter_of(part.path, options)
    names = csv_names(path, options)
    at = positions(names, columns, path)
    from_path = [constants.get(name) for name in columns]
    indices = [i for i in at if i is not None]
    take = itemgetter(*indices) if len(indices) == len(at) > 1 else None
    header, count = options.header, len(names)
    for line, fields in _csv_records(part, options, delimiter, count, counted):
        if header and part.start == 0:
            header = False
            continue
        problem, shown = None, ""
        if len(fields) != count:
            problem = f"{len(fields)} fields instead of {count}"
            shown = delimiter.join(fields)
            fields += [""] * (count - len(fields))
        if take is not None:  # the quick way, for most files
            values: Sequence[Any] = take(fields)
            if "" in values:
                values = [value or None for value in values]
        else:
            values = [
                value if i is None else fields[i] or None
                for i, value in zip(at, from_path, strict=True)
            ]
        yield line, values, problem, shown


def _csv_records(
    part: Part, options: CsvOptions, delimiter: str, columns: int, counted: Quotes | None
) -> Iterator[tuple[int, list[str]]]:
    path = part.path
    if options.multiline and options.quote:
        if counted is None:
            counted = quotes.scan_file(path, options, delimiter)
            if counted.line:
                raise quotes.refused([(path, counted)], options)
        newline = "" if counted.carriage else "\n"
        with open_text(path, options.encoding, newline=newline) as text:
            yield from csv_rows.records(text, options, delimiter, counted, path)
        return
    if _carriage(path, options, delimiter):
        if part.start == 0:
            with open_text(path, options.encoding) as text:
                yield from csv_rows.by_line(text, options, delimiter, columns)
        return
    count = LineCount() if lines_are_bytes(options.encoding) else None
    bounds = None if part.end is None else (part.start, part.end)
    with open_text(path, options.encoding, newline="\n", part=bounds, count=count) as text:
        lines = text if count is None else count.each(text)
        for line, fields in csv_rows.by_line(lines, options, delimiter, columns):
            yield (line if part.start == 0 else 0), fields
    if count is not None:
        count.require(path)


def _carriage(path: str, options: CsvOptions, delimiter: str) -> bool:
    """True if each CR ends a line, in a file in which each line is a record."""
    with open_text(path, options.encoding) as text:
        return bool(quotes.cr_ends_lines(text.read(_HEAD_CHARACTERS), options, delimiter))


def csv_names(path: str, options: CsvOptions) -> list[str]:
    """The columns of a CSV file, by its header or `options.names`; none of an empty file.

    Raises:
        UsageError: it has no header, and there are no names.
        DataError: the names do not fit its first record.
    """
    if not options.header and not options.names:
        raise UsageError(
            "a CSV without header needs column names",
            where=path,
            remedy="set data.csv.names, or data.csv.header: true",
        )
    delimiter = delimiter_of(path, options)
    with open_text(path, options.encoding) as text:
        begin = text.read(_HEAD_CHARACTERS)
        carriage = quotes.cr_ends_lines(begin, options, delimiter)
    with open_text(path, options.encoding, newline="" if carriage else "\n") as text:
        first = csv_rows.first(text, options, delimiter)
    if options.header:
        return first
    names = options.names or []
    if first and len(first) != len(names):
        raise DataError(
            "data.csv.names does not fit the file",
            where=path,
            expected=f"{len(names)} columns: {', '.join(names)}",
            got=f"{len(first)} columns in the first line",
            remedy="name each column once, in order; check data.csv.delimiter",
        )
    return names


def positions(names: Sequence[str], columns: Sequence[str], path: str) -> list[int | None]:
    """Position of each column among the names; None: it is missing.

    Blanks around a name of a header do not count, unless two names differ in them alone.

    Raises:
        DataError: the header has one of the columns twice.
    """
    stripped = [name.strip() for name in names]
    indices: list[int | None] = []
    for name in columns:
        hits = [i for i, header_name in enumerate(names) if header_name == name]
        hits = hits or [i for i, header_name in enumerate(stripped) if header_name == name]
        if len(hits) > 1:
            raise DataError(
                f"the header names the column {name!r} {len(hits)} times",
                where=path,
                got=", ".join(names),
                remedy="rename one of them",
            )
        indices.append(hits[0] if hits else None)
    return indices


# ------------------------------------------------------------------------------------------- JSON
def _json(part: Part, columns: Sequence[str], constants: Mapping[str, str | None]) -> Iterator[Row]:
    from_path, field = [constants.get(name) for name in columns], json_rows.field
    nothing = [None] * len(columns)
    for line, value, problem, shown in _json_values(part):
        if problem is not None:
            yield line, nothing, problem, shown.strip()
            continue
        values = [value[name] if name in value else field(value, name) for name in columns]
        if True in values or False in values:
            values = [json_rows.scalar(one) for one in values]
        if constants:
            values = [
                constant if one is None else one
                for one, constant in zip(values, from_path, strict=True)
            ]
        yield line, values, None, ""


def _json_values(part: Part) -> Iterator[tuple[int, Any, str | None, str]]:
    path = part.path
    if json_rows.is_array(path):
        if part.start == 0:
            with open_text(path, "UTF-8", newline="\n") as text:
                yield from json_rows.of_array(text, path)
        return
    bounds = None if part.end is None else (part.start, part.end)
    count = LineCount()
    with open_text(path, "UTF-8", newline="\n", part=bounds, count=count) as text:
        for line, value, problem, shown in json_rows.lines(count.each(text)):
            yield (line if part.start == 0 else 0), value, problem, shown
    count.require(path)


# ------------------------------------------------------------------------------------ directories
def directories(path: str, root: str | None) -> dict[str, str | None]:
    """{column: value} of the directories between a file and `root`, as Hive and Spark name them.

    >>> directories("/in/day=2026-11-01/a%3Db=x%2Fy/part-0", "/in")
    {'day': '2026-11-01', 'a=b': 'x/y'}
    """
    if root is None:
        return {}
    below = path.removeprefix(root.rstrip("/") + "/").split("/")[:-1]
    values: dict[str, str | None] = {}
    for name, equals, value in (part.partition("=") for part in below):
        if equals and name:
            values[unquote(name)] = None if value == NULL else unquote(value)
    return values
