"""Reads rows from files: CSV, JSON lines and Parquet, streamed, on any storage.

Spark's workers read the same files by the same functions (training/prediction/files.py), so that a
row has one text, and one error, whichever process classifies it.

A row that cannot be read does not stop the others: its prediction has a null label and an error.
pyarrow's CSV and JSON readers are not used: they stop at the first such row (a broken line, another
type than the block's first, invalid UTF-8) without its line number, and parse a text that looks
like a date as a date.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from howdah import storage
from howdah.config.data import Columns, CsvOptions
from howdah.data import csv_quotes
from howdah.data.clean import joined
from howdah.data.files import footers, lines
from howdah.data.files.listing import of_each
from howdah.errors import DataError, NotFound
from training.prediction.rows import SUFFIXES, Row, format_of

__all__ = [
    "Record", "check_files", "choose_columns", "csv_record", "csv_rows", "json_record", "mapped",
    "read_rows", "row_of", "source_files",
]  # fmt: skip

_PARQUET_BATCH_ROWS = 2048

Record = Mapping[str, Any] | str
"""A row's fields by name, or the reason why it cannot be read."""


def source_files(source: str) -> list[str]:
    """The files of a source: itself, a pattern's matches, or a directory's files, sorted by name.

    Raises:
        NotFound: there are none.
    """
    if storage.exists(source) and storage.is_dir(source):
        entries = storage.list_dir(source)
        found = [e.path for e in entries if not e.is_dir and format_of(e.path) is not None]
    else:
        found = storage.find(source)
    if not found:
        raise NotFound(
            "there is nothing to predict",
            where=source,
            expected="a file, a pattern or a directory of .csv, .jsonl or .parquet files",
            remedy="check the path; a table needs --master",
        )
    return found


# --------------------------------------------------------------------------- columns of the files
def choose_columns(
    trained: Columns, text_columns: Sequence[str] | None, id_column: str | None
) -> Columns:
    """The training data's column mapping with the caller's columns in place of its own."""
    changes: dict = {"id": id_column if id_column is not None else trained.id}
    if text_columns:
        changes["text"] = list(text_columns)
    return trained.model_copy(update=changes)


def mapped(columns: Columns) -> list[str]:
    """Names of the columns that are read."""
    return [*columns.text, *(columns.text_pair or ()), *([columns.id] if columns.id else [])]


def check_files(
    forms: Mapping[str, str],
    columns: Columns,
    options: CsvOptions,
    *,
    id_required: bool,
    root: str | None = None,
) -> None:
    """Refuse files that do not have the mapped columns, by their headers and first records.

    Each CSV file must have the columns of the text in its header, in any order; of JSON lines the
    first record; Parquet, ORC and Avro files in one type each, those of the text as texts. The
    column of the id all files have, or none.

    Args:
        forms: {path: csv, jsonl, parquet, orc or avro}.
        root: a directory below which names of directories, `day=2026-11-01`, are columns too.
    Raises:
        DataError: the column and the file; or a file is not of its format.
    """
    texts = [*columns.text, *(columns.text_pair or ())]
    required = mapped(columns) if id_required else texts
    keyed: dict[bool, str] = {}
    found = of_each(list(forms), lambda path: _names(path, forms[path], options))
    for path, names in zip(forms, found, strict=True):
        if names:
            names = [*names, *_in_directories(path, root)]
            _require(required, names, path)
            if forms[path] != "jsonl":  # a record may lack a key
                keyed.setdefault(columns.id in names, path)
    if len(keyed) > 1:
        raise DataError(
            "some files have the column of the id, others have not",
            where=keyed[False],
            expected=f"column {columns.id!r}, as in {keyed[True]}",
            remedy="predict them one after the other, or name them by a narrower pattern",
        )
    wanted = [(f"column {name}", name) for name in mapped(columns)]
    for kind in get_args(footers.Kind):
        own = [storage.entry(path) for path, form in forms.items() if form == kind]
        types = footers.check_alike(own, kind, wanted) if own else []
        for (where, name), found_type in zip(wanted, types, strict=bool(own)):
            if name in texts and found_type is not None and not footers.is_text(found_type):
                raise DataError(
                    "a column is of another type",
                    where=f"{where} in {own[0].path}",
                    expected="a text column (string)",
                    got=str(found_type),
                    remedy="name another column, or cast it where the file is made",
                )


def _names(path: str, form: str, options: CsvOptions) -> Sequence[str] | None:
    """Of a file's columns; none where it has no row, or no record that says it."""
    if form == "csv":
        return lines.csv_names(path, options)
    if form == "jsonl":
        return lines.json_names(path)
    return footers.schema(path, form).names


def _in_directories(path: str, root: str | None) -> list[str]:
    """Columns that the names of the directories between a file and `root` give."""
    if root is None:
        return []
    below = path.removeprefix(root.rstrip("/") + "/").split("/")[:-1]
    return [part.partition("=")[0] for part in below if "=" in part]


def _require(required: Sequence[str], names: Sequence[str], path: str) -> None:
    for name in required:
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            raise DataError(
                f"the source has no column {name!r}",
                where=path,
                expected=f"columns {', '.join(required)}",
                got=f"columns {', '.join(map(str, names))}",
                remedy=(f"did you mean {close[0]}? " if close else "")
                + "--text-column and --id-column name them",
            )


# ------------------------------------------------------------------------------------------- rows
def read_rows(
    files: Sequence[str],
    columns: Columns,
    *,
    csv_options: CsvOptions | None = None,
    id_required: bool = True,
) -> Iterator[Row]:
    """The rows of the files in order.

    Args:
        columns: text column(s) and id column; without an id column it is the row's number from 0.
        csv_options: how CSV is read.
        id_required: refuse a source without the id column, rather than number its rows.
    Raises:
        DataError: see `check_files`; a file is damaged.
    """
    options = csv_options or CsvOptions()
    forms = {path: format_of(path) for path in files}
    if unknown := [path for path, form in forms.items() if form is None]:
        raise DataError(
            "the format of the source is not known",
            where=unknown[0],
            expected=", ".join(SUFFIXES) + " (.gz allowed but for .parquet)",
            got=storage.name(unknown[0]),
        )
    check_files(
        {path: form for path, form in forms.items() if form}, columns, options,
        id_required=id_required,
    )  # fmt: skip
    number = 0
    for path in files:
        for record in _records(path, columns, options):
            yield row_of(record, columns, number)
            number += 1


def _records(path: str, columns: Columns, options: CsvOptions) -> Iterator[Record]:
    form = format_of(path)
    if form == "csv":
        if options.multiline and options.quote:
            # Before the first row: rows inside an unclosed quote would be lost silently.
            quotes = csv_quotes.scan_file(path, options, lines.delimiter_of(path, options))
            if quotes.line:
                raise csv_quotes.refused([(path, quotes)], options)
        yield from csv_rows(path, options)
    elif form == "jsonl":
        with lines.open_text(path, "utf-8") as text:
            for number, line in enumerate(text, start=1):
                if line.strip():
                    yield json_record(line, f"line {number}: ")
    else:
        yield from _parquet_rows(path, columns)


def row_of(record: Record, columns: Columns, number: int) -> Row:
    """A record as the row to classify.

    Args:
        number: its id, where the record has none.
    """
    if isinstance(record, str):
        return Row(str(number), None, record)
    key = record.get(columns.id) if columns.id else None
    row_id = str(number) if key is None else str(_as_text(key))
    sides = {"text": columns.text, "second text": columns.text_pair}
    texts = []
    for name, of_side in sides.items():
        if of_side is None:
            continue
        parts = [_as_text(record.get(column)) for column in of_side]
        # As Spark's concat_ws, which made the training texts: nulls are skipped.
        present = [part for part in parts if part is not None]
        if not present:
            return Row(row_id, None, f"the {name} is null")
        if wrong := [part for part in present if not isinstance(part, str)]:
            return Row(row_id, None, f"the {name} is {type(wrong[0]).__name__}, not a string")
        texts.append(columns.separator.join(present))
    text = texts[0] if columns.text_pair is None else joined(*texts)
    if lines.SURROGATES.search(text):
        return Row(row_id, None, "the text is not in the file's encoding")
    return Row(row_id, text, pair=columns.text_pair is not None)


def _as_text(value: Any) -> Any:
    """JSON's true as the ETL has it; its numbers are texts already (`lines.json_value`)."""
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else value


def csv_rows(path: str, options: CsvOptions) -> Iterator[Record]:
    """The records of a CSV file, whose quotes have been checked; an empty file has none."""
    with lines.open_text(path, options.encoding) as text:
        names = None if options.header else options.names
        for line, fields in lines.csv_records(text, options, lines.delimiter_of(path, options)):
            if not fields:
                continue  # a blank line
            if names is None:
                names = fields
            else:
                yield csv_record(fields, names, f"line {line}: ")


def csv_record(fields: Sequence[str], names: Sequence[str], where: str) -> Record:
    """A record of a CSV file.

    Args:
        where: begins the reason why it cannot be read: the line, where that is known.
    """
    if len(fields) != len(names):
        return f"{where}{len(fields)} fields instead of {len(names)}"
    return dict(zip(names, fields, strict=True))


def json_record(line: str, where: str) -> Record:
    """A line of JSON that is not blank; `where` as for `csv_record`."""
    try:
        value = lines.json_value(line)
    except ValueError as error:
        return f"{where}not JSON ({error})"
    if not isinstance(value, dict):
        return f"{where}{type(value).__name__} instead of an object"
    return value


def _parquet_rows(path: str, columns: Columns) -> Iterator[Record]:
    import pyarrow.parquet as pq

    with storage.open_read(path) as file:
        with footers.readable(path, "parquet"):
            parquet = pq.ParquetFile(file)
            wanted = [name for name in mapped(columns) if name in parquet.schema_arrow.names]
            batches = parquet.iter_batches(_PARQUET_BATCH_ROWS, columns=wanted)
        while True:
            with footers.readable(path, "parquet"):
                rows = next((batch.to_pylist() for batch in batches), None)
            if rows is None:
                return
            yield from rows
