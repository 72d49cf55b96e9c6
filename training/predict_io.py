"""Rows to predict in, predictions out: CSV, JSON lines and Parquet, streamed, on any storage.

A row that cannot be read does not stop the others: it comes out with a null label and its error.
"""

from __future__ import annotations

import contextlib
import csv
import difflib
import gzip
import io
import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

import numpy as np

from howdah import storage
from howdah.config_data import Columns, CsvOptions
from howdah.errors import AlreadyExists, DataError, NotFound, UsageError
from howdah.replace import put_in_place

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
    """A row to classify; `text` is None where `error` says why."""

    id: str
    text: str | None
    error: str | None = None


@dataclass(frozen=True)
class Prediction:
    """What came of a row: label and scores (probabilities by label number), or an error."""

    id: str
    label: str | None
    scores: np.ndarray | None
    error: str | None = None


# ------------------------------------------------------------------------------------- source
def format_of(path: str) -> str | None:
    """csv, jsonl or parquet by the end of the name (.gz allowed); None: none of them."""
    name = storage.name(path).lower().removesuffix(".gz")
    return next((form for suffix, form in _SUFFIXES.items() if name.endswith(suffix)), None)


def delimiter_of(path: str, options: CsvOptions) -> str:
    """Field separator of a CSV file: a tab in a .tsv, unless another than the comma was given."""
    tabs = storage.name(path).lower().removesuffix(".gz").endswith(".tsv")
    return "\t" if tabs and options.delimiter == "," else options.delimiter


def source_files(source: str) -> list[str]:
    """The files that a source means: itself, what a pattern matches, or a directory's, by name.

    Raises:
        NotFound: there is none.
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
        columns: text column(s) and id column; without one the id is the row's number from 0.
        csv_options: how CSV is read.
        id_required: refuse a source without the id column, rather than number its rows.
    Raises:
        DataError: a column is missing, or a file is not what its name says.
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
    # As Spark's concat_ws, which made the training texts: what is null is left out.
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
    """The file as text; bytes that are none in the encoding become lone surrogates."""
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
            raise DataError("the file is not whole gzip", where=path, got=str(error)) from None


def _csv_rows(
    path: str, columns: Columns, required: Sequence[str], options: CsvOptions
) -> Iterator[Record]:
    csv.field_size_limit(2**31 - 1)  # a document in a field is no error
    delimiter = delimiter_of(path, options)
    with _open_text(path, options.encoding) as text:
        reader = csv.reader(
            text,
            delimiter=delimiter,
            quotechar=options.quote,
            escapechar=options.escape,
            doublequote=options.escape is None,
        )
        names = next(reader, []) if options.header else options.names
        if not names:
            if options.header:
                return  # an empty file has no rows
            raise UsageError("a CSV without header needs column names", where=path)
        _require(required, names, path)
        for fields in reader:
            if not fields:
                continue  # a blank line
            if len(fields) != len(names):
                yield f"line {reader.line_num}: {len(fields)} fields instead of {len(names)}"
            else:
                yield dict(zip(names, fields, strict=True))


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
            # A key may be left out of a row, but not of the first: that is a wrong column name.
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
        overwrite: replace a file that is there, once the new one is whole.
        progress: takes a line.
    Raises:
        UsageError: another ending.
        AlreadyExists: the file is there.
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
    directory = storage.parent(path)
    temp = storage.join(directory, f".tmp-{storage.name(path)}.{secrets.token_hex(4)}")
    try:
        with storage.open_write(temp) as file:
            writer = makers[form](file, labels, run_id)
            yield writer
            writer.close()
    except BaseException:
        storage.remove(temp)
        raise
    left = put_in_place(temp, path, overwrite=overwrite, keep=True)
    if left is not None:
        progress(f"the output that was replaced could not be removed: {left}")


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
    """One prediction as a JSON line: id, label, scores by label name, run_id, and error if any."""
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
        # An id may hold what no UTF-8 can (a lone surrogate of a broken file).
        self._file.write("".join(lines).encode("utf-8", "replace"))

    def close(self) -> None:
        """Nothing is held back."""


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
        """Nothing is held back."""
