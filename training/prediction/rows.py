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
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

import numpy as np

from howdah import storage
from howdah.config.data import Columns, CsvOptions
from howdah.config.tasks import Task
from howdah.data import csv_quotes
from howdah.data.clean import joined
from howdah.errors import AlreadyExists, DataError, NotFound, UsageError
from howdah.storage import commit

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "Outputs", "Prediction", "Row", "as_json", "delimiter_of", "format_of", "open_output",
    "read_rows", "source_files", "spark_format_of",
]  # fmt: skip

_SUFFIXES = {
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
}
_SPARK_SUFFIXES = {".orc": "orc", ".avro": "avro"}
"""What Spark alone reads."""
_SURROGATES = re.compile("[\udc80-\udcff]")
_PARQUET_BATCH_ROWS = 2048


@dataclass(frozen=True)
class Row:
    """A row to classify; `text` is None where there is an `error`."""

    id: str
    text: str | None
    error: str | None = None
    pair: bool = False
    """`text` is two texts, joined (howdah/data/clean.py)."""


@dataclass(frozen=True)
class Prediction:
    """A row's label and scores float32[C] (probabilities by label number), or its error.

    Of several labels, all above 0.5 (or their own thresholds), sorted as the model has them; of a
    regression the number, which the one score is, too. A row that the model's decision rejects has
    scores, no label and no error.
    """

    id: str
    label: str | list[str] | float | None
    scores: np.ndarray | None
    error: str | None = None

    @property
    def rejected(self) -> bool:
        """The label's score is too low (`howdah threshold`)."""
        return self.label is None and self.error is None


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """What a model's predictions have besides id, run id and error, in every format."""

    task: Task
    labels: Sequence[str]

    @property
    def name(self) -> str:
        """The column of what is predicted."""
        return {"single_label": "label", "multi_label": "labels", "regression": "value"}[self.task]

    @property
    def has_scores(self) -> bool:
        """There is a score for each label."""
        return self.task != "regression"

    @property
    def spark(self) -> dict[str, str]:
        """{column: Spark's type}, of all columns but the run's id, in their order."""
        kind = {"single_label": "string", "multi_label": "array<string>", "regression": "float"}
        scores = {"scores": "array<float>"} if self.has_scores else {}
        return {"id": "string", self.name: kind[self.task], **scores, "error": "string"}

    def arrow(self) -> pa.Schema:
        """The columns of a Parquet file."""
        import pyarrow as pa

        kind = {
            "single_label": pa.string(),
            "multi_label": pa.list_(pa.string()),
            "regression": pa.float32(),
        }[self.task]
        scores = [("scores", pa.list_(pa.float32()))] if self.has_scores else []
        fields = [("id", pa.string()), (self.name, kind), *scores]
        return pa.schema([*fields, ("run_id", pa.string()), ("error", pa.string())])

    def columns(self, predictions: Sequence[Prediction], run_id: str) -> pa.RecordBatch:
        """Predictions as a batch of `arrow`."""
        import pyarrow as pa

        schema = self.arrow()
        values = {
            "id": [p.id for p in predictions],
            self.name: [p.label for p in predictions],
            "scores": [p.scores for p in predictions],
            "run_id": [run_id] * len(predictions),
            "error": [p.error for p in predictions],
        }
        arrays = [pa.array(values[field.name], field.type) for field in schema]
        return pa.record_batch(arrays, schema=schema)


# ------------------------------------------------------------------------------------- source
def format_of(path: str) -> str | None:
    """csv, jsonl or parquet by the name's suffix (.gz allowed); None: another one."""
    name = storage.name(path).lower().removesuffix(".gz")
    return next((form for suffix, form in _SUFFIXES.items() if name.endswith(suffix)), None)


def spark_format_of(path: str) -> str | None:
    """orc or avro by the name's suffix, which Spark alone reads; None: another one."""
    name = storage.name(path).lower()
    return next((form for suffix, form in _SPARK_SUFFIXES.items() if name.endswith(suffix)), None)


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
    required = [
        *columns.text,
        *(columns.text_pair or ()),
        *([columns.id] if columns.id and id_required else []),
    ]
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
    sides = {"text": columns.text, "second text": columns.text_pair}
    texts = []
    for name, of_side in sides.items():
        if of_side is None:
            continue
        parts = [record.get(column) for column in of_side]
        # As Spark's concat_ws, which made the training texts: nulls are skipped.
        present = [part for part in parts if part is not None]
        if not present:
            return Row(row_id, None, f"the {name} is null")
        if wrong := [part for part in present if not isinstance(part, str)]:
            return Row(row_id, None, f"the {name} is {type(wrong[0]).__name__}, not a string")
        texts.append(columns.separator.join(present))
    text = texts[0] if columns.text_pair is None else joined(*texts)
    if _SURROGATES.search(text):
        return Row(row_id, None, "the text is not in the file's encoding")
    return Row(row_id, text, pair=columns.text_pair is not None)


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
        wanted = [
            *columns.text,
            *(columns.text_pair or ()),
            *([columns.id] if columns.id in names else []),
        ]
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
    outputs: Outputs,
    run_id: str,
    *,
    overwrite: bool = False,
    progress: Callable[[str], None] = lambda line: None,
) -> Iterator[_Writer]:
    """A writer of predictions to `path`, which appears whole at the end or not at all.

    Args:
        path: .parquet, .jsonl or .csv, on any storage.
        outputs: what the model predicts.
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
            writer = makers[form](file, outputs, run_id)
            yield writer
            writer.close()
        replaced = staged.publish(path, aside=aside, keep=True)
    if replaced is not None and not commit.discard(replaced):
        progress(f"the output that was replaced could not be removed: {replaced}")


class _ParquetWriter:
    def __init__(self, file: BinaryIO, outputs: Outputs, run_id: str) -> None:
        import pyarrow.parquet as pq

        self._outputs, self._run_id = outputs, run_id
        metadata = {"labels": "\n".join(outputs.labels), "run_id": run_id}
        schema = outputs.arrow().with_metadata(metadata)
        self._writer = pq.ParquetWriter(file, schema, compression="zstd")

    def write(self, predictions: Sequence[Prediction]) -> None:
        batch = self._outputs.columns(predictions, self._run_id)
        self._writer.write_batch(batch.replace_schema_metadata(self._writer.schema.metadata))

    def close(self) -> None:
        self._writer.close()


def as_json(prediction: Prediction, outputs: Outputs, run_id: str) -> str:
    """A prediction as a JSON line: id, label (labels, value), scores by label name unless it is a
    number, run_id, `rejected` of a rejected row, and error if any."""
    value: dict[str, Any] = {"id": prediction.id, outputs.name: prediction.label}
    if outputs.has_scores:
        scores = None
        if prediction.scores is not None:
            pairs = zip(outputs.labels, prediction.scores, strict=True)
            scores = {name: round(float(score), 6) for name, score in pairs}
        value["scores"] = scores
    value["run_id"] = run_id
    if prediction.rejected:
        value["rejected"] = True
    if prediction.error is not None:
        value["error"] = prediction.error
    return json.dumps(value, ensure_ascii=False)


class _JsonWriter:
    def __init__(self, file: BinaryIO, outputs: Outputs, run_id: str) -> None:
        self._file, self._outputs, self._run_id = file, outputs, run_id

    def write(self, predictions: Sequence[Prediction]) -> None:
        lines = [as_json(p, self._outputs, self._run_id) + "\n" for p in predictions]
        # A broken file's id may hold lone surrogates, which UTF-8 cannot encode.
        self._file.write("".join(lines).encode("utf-8", "replace"))

    def close(self) -> None:
        """All rows are written already."""


class _CsvWriter:
    def __init__(self, file: BinaryIO, outputs: Outputs, run_id: str) -> None:
        self._file, self._outputs, self._run_id = file, outputs, run_id
        scored = outputs.labels if outputs.has_scores else ()
        self._count = len(scored)
        self._rows([["id", outputs.name, *(f"score_{name}" for name in scored), "run_id", "error"]])

    def write(self, predictions: Sequence[Prediction]) -> None:
        self._rows(
            [
                p.id,
                self._predicted(p.label),
                *self._scores(p.scores),
                self._run_id,
                p.error,
            ]
            for p in predictions
        )

    def _predicted(self, label: str | list[str] | float | None) -> str | None:
        """CSV has no lists: several labels are a JSON list, as in a source."""
        if label is None or self._outputs.task == "single_label":
            return label
        return json.dumps(label, ensure_ascii=False)

    def _scores(self, scores: np.ndarray | None) -> Sequence[str | None]:
        if scores is None or not self._count:
            return [None] * self._count
        return [f"{score:.6f}" for score in scores]

    def _rows(self, rows) -> None:
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows(rows)
        self._file.write(text.getvalue().encode("utf-8", "replace"))

    def close(self) -> None:
        """All rows are written already."""
