"""Reads rows and writes predictions: CSV, JSON lines and Parquet, streamed, on any storage.

A row that cannot be read does not stop the others: its prediction has a null label and an error.
pyarrow's CSV and JSON readers are not used: they stop at the first such row (a broken line, another
type than the block's first, invalid UTF-8) without its line number, and parse a text that looks
like a date as a date.
"""

from __future__ import annotations

import contextlib
import csv
import difflib
import gzip
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, Protocol

import numpy as np

from howdah import storage
from howdah.config.data import Columns, CsvOptions
from howdah.data import csv_quotes
from howdah.errors import AlreadyExists, DataError, NotFound, UsageError
from howdah.storage import commit

__all__ = [
    "Prediction", "Row", "as_json", "delimiter_of", "format_of", "open_output", "read_rows",
    "source_files",
]  # fmt: skip

_SUFFIXES = {
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
}
_SURROGATES = re.compile("[\udc80-\udcff]")
_PARQUET_BATCH_ROWS = 2048


@dataclass(frozen=True)
class Row:
    """A row to classify; `text` is None where there is an `error`."""

    id: str
    text: str | None
    error: str | None = None


@dataclass(frozen=True)
class Prediction:
    """A row's label and scores float32[C] (probabilities by label number), or its error."""

    id: str
    label: str | None
    scores: np.ndarray | None
    error: str | None = None


# ------------------------------------------------------------------------------------- source
def format_of(path: str) -> str | None:
    """csv, jsonl or parquet by the name's suffix (.gz allowed); None: another one."""
    name = storage.name(path).lower().removesuffix(".gz")
    return next((form for suffix, form in _SUFFIXES.items() if name.endswith(suffix)), None)


def delimiter_of(path: str, options: CsvOptions) -> str:
    """Field separator of a CSV file: a tab in a .tsv unless `options` differ from the comma."""
    tabs = storage.name(path).lower().removesuffix(".gz").endswith(".tsv")
    return "\t" if tabs and options.delimiter == "," else options.delimiter


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
        DataError: a column is missing, or a file does not have its suffix's format.
    """
    number = 0
    required = [*columns.text, *([columns.id] if columns.id and id_required else [])]
    for path in files:
        form = format_of(path)
        if form is None:
            raise DataError(
                "the format of the source is not known",
                where=path,
                expected=", ".join(_SUFFIXES) + " (.gz allowed but for .parquet)",
                got=storage.name(path),
            )
        readers = {"csv": _csv_rows, "jsonl": _json_rows, "parquet": _parquet_rows}
        for record in readers[form](path, columns, required, csv_options or CsvOptions()):
            yield _row(record, columns, number)
            number += 1


Record = Mapping[str, Any] | str
"""A row's fields by name, or the reason why it cannot be read."""


def _row(record: Record, columns: Columns, number: int) -> Row:
    if isinstance(record, str):
        return Row(str(number), None, record)
    key = record.get(columns.id) if columns.id else None
    row_id = str(number) if key is None else str(key)
    parts = [record.get(name) for name in columns.text]
    # As Spark's concat_ws, which made the training texts: nulls are skipped.
    present = [part for part in parts if part is not None]
    if not present:
        return Row(row_id, None, "the text is null")
    if wrong := [part for part in present if not isinstance(part, str)]:
        return Row(row_id, None, f"the text is {type(wrong[0]).__name__}, not a string")
    text = columns.separator.join(present)
    if _SURROGATES.search(text):
        return Row(row_id, None, "the text is not in the file's encoding")
    return Row(row_id, text)


@contextlib.contextmanager
def _open_text(path: str, encoding: str) -> Iterator[io.TextIOWrapper]:
    """The file as text; bytes that are invalid in the encoding become lone surrogates."""
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


def _csv_rows(
    path: str, columns: Columns, required: Sequence[str], options: CsvOptions
) -> Iterator[Record]:
    csv.field_size_limit(2**31 - 1)  # a field may hold a whole document
    with _open_text(path, options.encoding) as text:
        if options.multiline and options.quote:
            # Before the first row: rows inside an unclosed quote would be lost silently.
            quotes = csv_quotes.scan_file(path, options, delimiter_of(path, options))
            if quotes.line:
                raise csv_quotes.refused([(path, quotes)], options)
        records = _csv_records(text, path, options)
        names = next(records, (0, []))[1] if options.header else options.names
        if not names:
            if options.header:
                return  # an empty file has no rows
            raise UsageError("a CSV without header needs column names", where=path)
        _require(required, names, path)
        for line, fields in records:
            if not fields:
                continue  # a blank line
            if len(fields) != len(names):
                yield f"line {line}: {len(fields)} fields instead of {len(names)}"
            else:
                yield dict(zip(names, fields, strict=True))


def _csv_records(
    text: io.TextIOWrapper, path: str, options: CsvOptions
) -> Iterator[tuple[int, list[str]]]:
    """(last line from 1, fields) of each record; without `multiline` each line is a record."""
    parse = partial(
        csv.reader,
        delimiter=delimiter_of(path, options),
        quotechar=options.quote or None,
        quoting=csv.QUOTE_MINIMAL if options.quote else csv.QUOTE_NONE,
        escapechar=options.escape,
        doublequote=options.escape is None,
    )
    if options.multiline:
        reader = parse(text)
        for fields in reader:
            yield reader.line_num, fields
        return
    for number, line in enumerate(text, start=1):
        yield number, next(parse([line.rstrip("\r\n")]), [])


def _json_rows(
    path: str, columns: Columns, required: Sequence[str], options: CsvOptions
) -> Iterator[Record]:
    checked = False
    with _open_text(path, "utf-8") as text:
        for line_number, line in enumerate(text, start=1):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except ValueError as error:
                yield f"line {line_number}: not JSON ({error})"
                continue
            if not isinstance(value, dict):
                yield f"line {line_number}: {type(value).__name__} instead of an object"
                continue
            # A row may lack a key, but the first one must not: the column's name is then wrong.
            if not checked:
                _require(required, list(value), path)
                checked = True
            yield value


def _parquet_rows(
    path: str, columns: Columns, required: Sequence[str], options: CsvOptions
) -> Iterator[Record]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with storage.open_read(path) as file:
        try:
            parquet = pq.ParquetFile(file)
        except pa.ArrowInvalid as error:
            raise DataError("the file is not Parquet", where=path, got=str(error)) from None
        names = parquet.schema_arrow.names
        _require(required, names, path)
        wanted = [*columns.text, *([columns.id] if columns.id in names else [])]
        for batch in parquet.iter_batches(_PARQUET_BATCH_ROWS, columns=wanted):
            yield from batch.to_pylist()


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


# ------------------------------------------------------------------------------------- output
class _Writer(Protocol):
    def write(self, predictions: Sequence[Prediction]) -> None: ...

    def close(self) -> None: ...


@contextlib.contextmanager
def open_output(
    path: str,
    labels: Sequence[str],
    run_id: str,
    *,
    overwrite: bool = False,
    progress: Callable[[str], None] = lambda line: None,
) -> Iterator[_Writer]:
    """A writer of predictions to `path`, which appears whole at the end or not at all.

    Args:
        path: .parquet, .jsonl or .csv, on any storage.
        labels: label names by number.
        overwrite: replace an existing file, once the new one is whole.
        progress: called with a line.
    Raises:
        UsageError: another suffix.
        AlreadyExists: the file exists.
    """
    form = format_of(path)
    makers = {"parquet": _ParquetWriter, "jsonl": _JsonWriter, "csv": _CsvWriter}
    if form is None or path.lower().endswith((".gz", ".tsv")):
        raise UsageError(
            "the format of the output is not known",
            where=path,
            expected="a name that ends in .parquet, .jsonl or .csv",
        )
    if storage.exists(path) and not overwrite:
        raise AlreadyExists(
            "the output is there already", where=path, remedy="give another name, or remove it"
        )
    aside = commit.hidden(path, "old") if overwrite else None
    with commit.stage(commit.hidden(path, "tmp")) as staged:
        with storage.open_write(staged.path) as file:
            writer = makers[form](file, labels, run_id)
            yield writer
            writer.close()
        replaced = staged.publish(path, aside=aside, keep=True)
    if replaced is not None and not commit.discard(replaced):
        progress(f"the output that was replaced could not be removed: {replaced}")


class _ParquetWriter:
    def __init__(self, file: BinaryIO, labels: Sequence[str], run_id: str) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._pa, self._run_id = pa, run_id
        fields = [
            ("id", pa.string()),
            ("label", pa.string()),
            ("scores", pa.list_(pa.float32())),
            ("run_id", pa.string()),
            ("error", pa.string()),
        ]
        metadata = {"labels": "\n".join(labels), "run_id": run_id}
        self._schema = pa.schema(fields, metadata=metadata)
        self._writer = pq.ParquetWriter(file, self._schema, compression="zstd")

    def write(self, predictions: Sequence[Prediction]) -> None:
        columns = [
            [p.id for p in predictions],
            [p.label for p in predictions],
            [p.scores for p in predictions],
            [self._run_id] * len(predictions),
            [p.error for p in predictions],
        ]
        arrays = [
            self._pa.array(column, field.type)
            for column, field in zip(columns, self._schema, strict=True)
        ]
        self._writer.write_batch(self._pa.record_batch(arrays, schema=self._schema))

    def close(self) -> None:
        self._writer.close()


def as_json(prediction: Prediction, labels: Sequence[str], run_id: str) -> str:
    """A prediction as a JSON line: id, label, scores by label name, run_id, and error if any."""
    scores = None
    if prediction.scores is not None:
        pairs = zip(labels, prediction.scores, strict=True)
        scores = {name: round(float(score), 6) for name, score in pairs}
    value = {"id": prediction.id, "label": prediction.label, "scores": scores, "run_id": run_id}
    if prediction.error is not None:
        value["error"] = prediction.error
    return json.dumps(value, ensure_ascii=False)


class _JsonWriter:
    def __init__(self, file: BinaryIO, labels: Sequence[str], run_id: str) -> None:
        self._file, self._labels, self._run_id = file, labels, run_id

    def write(self, predictions: Sequence[Prediction]) -> None:
        lines = [as_json(p, self._labels, self._run_id) + "\n" for p in predictions]
        # A broken file's id may hold lone surrogates, which UTF-8 cannot encode.
        self._file.write("".join(lines).encode("utf-8", "replace"))

    def close(self) -> None:
        """All rows are written already."""


class _CsvWriter:
    def __init__(self, file: BinaryIO, labels: Sequence[str], run_id: str) -> None:
        self._file, self._run_id, self._count = file, run_id, len(labels)
        self._rows([["id", "label", *(f"score_{name}" for name in labels), "run_id", "error"]])

    def write(self, predictions: Sequence[Prediction]) -> None:
        self._rows(
            [
                p.id,
                p.label,
                *([None] * self._count if p.scores is None else (f"{s:.6f}" for s in p.scores)),
                self._run_id,
                p.error,
            ]
            for p in predictions
        )

    def _rows(self, rows) -> None:
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows(rows)
        self._file.write(text.getvalue().encode("utf-8", "replace"))

    def close(self) -> None:
        """All rows are written already."""
