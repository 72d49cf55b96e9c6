"""CSV and JSON lines: a file's records, and what its first lines say of its columns."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Any

from howdah import storage
from howdah.config.data import CsvOptions
from howdah.data.csv_quotes import COMPRESSED
from howdah.data.files.listing import ending, of_each
from howdah.errors import DataError, UsageError
from howdah.storage import Entry

__all__ = [
    "SURROGATES", "alike", "csv_names", "csv_records", "decoded", "delimiter_of", "json_names",
    "json_value", "open_text", "scalars",
]  # fmt: skip

_FIRST_LINE_BYTES = 64 * 2**10
_FIRST_RECORDS = 1_000
_FILES_OF_SCALARS = 8
_LONGEST_LINE = 16 * 2**20

SURROGATES = re.compile("[\udc80-\udcff]")
"""What bytes that are invalid in a file's encoding become."""
_as_written = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)


def delimiter_of(path: str, options: CsvOptions) -> str:
    """Field separator of a CSV file: a tab in a .tsv unless `options` differ from the comma."""
    tabs = ending(storage.name(path)) == ".tsv"
    return "\t" if tabs and options.delimiter == "," else options.delimiter


@contextlib.contextmanager
def open_text(path: str, encoding: str) -> Iterator[io.TextIOWrapper]:
    """The file (.gz allowed) as text; bytes that are invalid in the encoding become lone
    surrogates.

    Raises:
        UsageError: no such character set.
        DataError: the gzip file is incomplete.
    """
    if encoding.lower().replace("_", "-") in ("utf-8", "utf8"):
        encoding = "utf-8-sig"  # spreadsheet programs begin a file with a byte order mark
    with contextlib.ExitStack() as stack:
        file: Any = stack.enter_context(storage.open_read(path))
        if path.lower().endswith(".gz"):
            file = stack.enter_context(gzip.open(file))
        try:
            wrapper = io.TextIOWrapper(
                file, encoding=encoding, errors="surrogateescape", newline=""
            )
        except LookupError:
            raise UsageError("there is no such character set", got=encoding) from None
        try:
            yield stack.enter_context(wrapper)
        except (gzip.BadGzipFile, EOFError) as error:
            raise DataError("the gzip file is incomplete", where=path, got=str(error)) from None


def decoded(line: bytes, encoding: str) -> str:
    """A line as `open_text` has it."""
    return line.decode(encoding, "surrogateescape")


# ---------------------------------------------------------------------------------------- CSV
def csv_records(
    lines: Iterator[str] | io.TextIOWrapper, options: CsvOptions, delimiter: str
) -> Iterator[tuple[int, list[str]]]:
    """(last line from 1, fields) of each record; without `multiline` each line is a record. A blank
    line has no fields."""
    csv.field_size_limit(2**31 - 1)  # a field may hold a whole document
    parse = partial(
        csv.reader,
        delimiter=delimiter,
        quotechar=options.quote or None,
        quoting=csv.QUOTE_MINIMAL if options.quote else csv.QUOTE_NONE,
        escapechar=options.escape,
        doublequote=options.escape is None,
    )
    if options.multiline:
        reader = parse(lines)
        for fields in reader:
            yield reader.line_num, fields
        return
    for number, line in enumerate(lines, start=1):
        yield number, next(parse([line.rstrip("\r\n")]), [])


def csv_names(path: str, options: CsvOptions) -> list[str]:
    """The columns of a CSV file, by its header or `options.names`; none of an empty file.

    Raises:
        UsageError: it has no header, and there are no names.
    """
    if not options.header:
        if not options.names:
            raise UsageError("a CSV without header needs column names", where=path)
        return options.names
    with open_text(path, options.encoding) as text:
        records = csv_records(text, options, delimiter_of(path, options))
        return next((fields for _, fields in records if fields), [])


def alike(files: Sequence[Entry], options: CsvOptions, delimiter: str) -> list[list[Entry]]:
    """The CSV files in groups, in each of which all have the same columns for certain.

    With a header: those with the same first line. Without: those whose first lines have the same
    number of fields. A file that cannot be judged by one line is alone: one with line breaks in its
    first fields, whose first line is empty or very long, or in a compression that only Spark reads.
    """
    if len(files) == 1:
        return [list(files)]
    lines = of_each(files, lambda entry: _first_line(entry, options.encoding))
    groups: dict[Any, list[Entry]] = {}
    for number, (entry, line) in enumerate(zip(files, lines, strict=True)):
        judged = _judged(line, options, delimiter)
        groups.setdefault(("unsure", number) if judged is None else judged, []).append(entry)
    return list(groups.values())


def _first_line(entry: Entry, encoding: str) -> str | None:
    """Without its end; None where it is not to be had."""
    name = entry.name.lower()
    opened = next((how for end, how in COMPRESSED.items() if name.endswith(end)), None)
    try:
        with storage.open_read(entry.path) as raw:
            if opened is None:
                begin = raw.read(_FIRST_LINE_BYTES)
            else:
                with opened(raw) as file:
                    begin = file.read(_FIRST_LINE_BYTES)
        text = begin.decode(encoding, "ignore")  # the last character may be cut
    except (OSError, EOFError, LookupError, zlib.error):
        return None  # Spark's own message names the file
    line = re.split("[\r\n]", text, maxsplit=1)
    if len(line) == 1 and len(begin) == _FIRST_LINE_BYTES:
        return None
    return line[0].removeprefix("\ufeff")


def _judged(line: str | None, options: CsvOptions, delimiter: str) -> str | int | None:
    """What must be the same for the same columns; None: that is not known."""
    if not line or not line.strip() or (options.quote and line.count(options.quote) % 2):
        return None
    if options.header:
        return line
    if options.escape or len(delimiter) != 1 or len(options.quote) > 1:
        return None
    quoting = csv.QUOTE_MINIMAL if options.quote else csv.QUOTE_NONE
    fields = csv.reader(
        [line], delimiter=delimiter, quotechar=options.quote or None, quoting=quoting
    )
    return len(next(fields))


# --------------------------------------------------------------------------------- JSON lines
def json_value(line: str) -> Any:
    """What a line of JSON says, numbers as the text that is written: 1.10 is "1.10".

    Raises:
        ValueError: it is no JSON.
    """
    return _as_written.decode(line)


def json_names(path: str) -> list[str] | None:
    """The keys of a file's first record; None: it is not among its first 1,000 lines, none of them
    above 16 MiB."""
    return next((list(record) for record in _first_records(path)), None)


def scalars(files: Sequence[Entry], wanted: Collection[str]) -> bool:
    """Whether each of the keys holds a text, a number or a truth value in some record among the
    first ones of some files. False: that is not known."""
    missing = set(wanted)
    for entry in files[:_FILES_OF_SCALARS]:
        try:
            for record in _first_records(entry.path):
                missing -= {name for name in missing if _is_scalar(record.get(name))}
                if not missing:
                    return True
        except (OSError, EOFError, zlib.error, DataError):
            return False  # Spark's own message names the file
    return not missing


def _is_scalar(value: Any) -> bool:
    """Numbers are texts here; Spark reads no record that is not in UTF-8."""
    return isinstance(value, bool) or (isinstance(value, str) and not SURROGATES.search(value))


def _first_records(path: str) -> Iterator[dict[str, Any]]:
    """The objects among the first lines of a file, up to one that is very long."""
    with open_text(path, "utf-8") as text:
        for _ in range(_FIRST_RECORDS):
            line = text.readline(_LONGEST_LINE)
            with contextlib.suppress(ValueError):
                value = json_value(line)
                if isinstance(value, dict):
                    yield value
            if not line or len(line) == _LONGEST_LINE:
                return
