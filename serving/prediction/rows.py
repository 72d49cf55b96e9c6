"""Rows to classify, and predictions: streamed to CSV, JSON lines or Parquet, on any storage."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

import numpy as np

from howdah import storage
from howdah.config.tasks import Task
from howdah.data.files.listing import ending
from howdah.errors import AlreadyExists, UsageError
from howdah.storage import commit

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIXES = {
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
}
_WRITTEN = tuple(suffix for suffix in SUFFIXES if suffix != ".tsv")
"""Suffixes of outputs, which are neither compressed nor divided by tabs."""
TABLE = "table:"
"""Prefix of an output that is a Hive table."""
DECISION = "decision"
"""Key of a Parquet file's metadata: the hash of the decision, "" without one."""
EMPTY = "the text is empty"
"""Error of a row that has no text, or whose text is empty after cleaning."""
NO_KEY = "row "
"""Beginning of the id of a row that has none in the id column."""
_OF_SPARK = re.compile(r"part-\d{5}.*|_SUCCESS|_temporary|\..*\.crc")
"""Names in a directory of Spark's: rows, marker, what an attempt has left, checksums."""
_SPARK_SUFFIXES = {".orc": "orc", ".avro": "avro"}
"""Formats that only Spark reads."""


@dataclass(frozen=True)
class Row:
    """A row to classify; `text` is None if there is an `error`."""

    id: str
    text: str | None
    error: str | None = None
    pair: bool = False
    """True if `text` is two texts, joined (data/clean.py)."""
    has_key: bool = True
    """False if `id` is the row's number."""


@dataclass(frozen=True)
class Prediction:
    """A row's label and scores float32[C] (probabilities by label number), or its error.

    A multi-label model predicts all labels above 0.5 (or their own thresholds), in the model's
    order; a regression a number, which is also the only score. A row that the model's decision
    rejects has scores, but neither a label nor an error.
    """

    id: str
    label: str | list[str] | float | None
    scores: np.ndarray | None
    error: str | None = None

    @property
    def rejected(self) -> bool:
        """True if the label's score is too low (`howdah model threshold`)."""
        return self.label is None and self.error is None


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """The columns of a model's predictions besides id, run id and error, in every format."""

    task: Task
    labels: Sequence[str]
    decision: str | None = None
    """Hash of the model's decision (`howdah model threshold`); None without one."""

    @property
    def name(self) -> str:
        """Name of the predicted column."""
        return {"single_label": "label", "multi_label": "labels", "regression": "value"}[self.task]

    @property
    def has_scores(self) -> bool:
        """True if there is a score for each label."""
        return self.task != "regression"

    @property
    def spark(self) -> dict[str, str]:
        """{column: Spark's type} of all columns except run_id, in their order."""
        kind = {"single_label": "string", "multi_label": "array<string>", "regression": "float"}
        scores = {"scores": "array<float>"} if self.has_scores else {}
        return {"id": "string", self.name: kind[self.task], **scores, "error": "string"}

    def arrow(self) -> pa.Schema:
        """Return the columns of a Parquet file."""
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
        """Return predictions as a batch of the schema `arrow`."""
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
    """Return csv, jsonl or parquet by the suffix before a compression's, or None."""
    return SUFFIXES.get(ending(storage.name(path)))


def spark_format_of(path: str) -> str | None:
    """Return orc or avro, which only Spark reads, by the suffix, or None."""
    return _SPARK_SUFFIXES.get(ending(storage.name(path)))


# ------------------------------------------------------------------------------------- output
def shown(output: str) -> str:
    """Return an output as messages name it: a table, or an absolute path."""
    return output if output.startswith(TABLE) else storage.absolute(output)


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
    """Yield a writer of predictions to `path`, which appears whole at the end or not at all.

    Args:
        path: .parquet, .jsonl or .csv, on any storage.
        outputs: columns of the model's predictions.
        overwrite: replace an existing file, once the new one is whole.
        progress: called with a line.
    Raises:
        UsageError: another suffix.
        AlreadyExists: the file exists.
    """
    form = refuse_output(path, overwrite=overwrite)
    makers = {"parquet": _ParquetWriter, "jsonl": _JsonWriter, "csv": _CsvWriter}
    with (
        staged_output(path, overwrite=overwrite, progress=progress) as staged,
        storage.open_write(staged) as file,
    ):
        writer = makers[form](file, outputs, run_id)
        try:
            yield writer
        except BaseException:
            # else pyarrow's writer would write its footer, when collected, into a closed file
            with contextlib.suppress(Exception):
                writer.close()
            raise
        writer.close()


@contextlib.contextmanager
def staged_output(path: str, *, overwrite: bool, progress: Callable[[str], None]) -> Iterator[str]:
    """Yield the path to write, a file or a directory, which becomes `path` at the end."""
    aside = commit.hidden(path, "old") if overwrite else None
    with commit.stage(commit.hidden(path, "tmp")) as staged:
        yield staged.path
        replaced = staged.publish(path, aside=aside, keep=True)
    if replaced is not None and not commit.discard(replaced):
        progress(f"the replaced output could not be removed: {replaced}")


def refuse_output(path: str, *, overwrite: bool) -> str:
    """Return the format of an output by its name.

    Raises:
        UsageError: another suffix.
        AlreadyExists: the file exists, and is not to be replaced.
    """
    if not path.rstrip("/").lower().endswith(_WRITTEN):  # with Spark it is a directory
        raise UsageError(
            "the format of the output is not known",
            where=storage.absolute(path),
            expected="a name that ends in .parquet, .jsonl or .csv",
            remedy="spreadsheet programs open a .csv" if ".xls" in path.lower() else None,
        )
    refuse_existing(path, overwrite=overwrite)
    return format_of(path)


def refuse_source(output: str, files: Iterable[str]) -> None:
    """Raise UsageError if the output would replace a file of the source."""
    target = _real(output)
    for path in files:
        source = _real(path)
        if source == target or source.startswith(f"{target}/"):
            raise UsageError(
                "the output would replace its own source",
                where=storage.absolute(output),
                got=f"source {storage.absolute(path)}",
                remedy="give the output another name",
            )


def _real(path: str) -> str:
    """The one name of a file: without links and `..`, of a local file."""
    return (
        os.path.realpath(storage.local_path(path))
        if storage.is_local(path)
        else storage.absolute(path).rstrip("/")
    )


def refuse_existing(output: str, *, overwrite: bool) -> None:
    """Raise AlreadyExists if the output exists and is not to be replaced, or has files of others.

    A directory is replaced only if Spark has written it: part files, and what it hides.
    """
    if not storage.exists(output):
        return
    if not overwrite:
        raise AlreadyExists(
            "the output exists already",
            where=storage.absolute(output),
            remedy="give another name, or replace it by --overwrite",
        )
    entries = storage.list_dir(output) if storage.is_dir(output) else []
    others = [one.name for one in entries if not _OF_SPARK.fullmatch(one.name)]
    if others:
        raise AlreadyExists(
            "the output is a directory with other files than predictions",
            where=storage.absolute(output),
            got=", ".join(sorted(others)[:3]),
            remedy="give another name",
        )


class _ParquetWriter:
    def __init__(self, file: BinaryIO, outputs: Outputs, run_id: str) -> None:
        import pyarrow.parquet as pq

        self._outputs, self._run_id = outputs, run_id
        metadata = {"labels": "\n".join(outputs.labels), "run_id": run_id}
        metadata[DECISION] = outputs.decision or ""
        schema = outputs.arrow().with_metadata(metadata)
        self._writer = pq.ParquetWriter(file, schema, compression="zstd")

    def write(self, predictions: Sequence[Prediction]) -> None:
        batch = self._outputs.columns(predictions, self._run_id)
        self._writer.write_batch(batch.replace_schema_metadata(self._writer.schema.metadata))

    def close(self) -> None:
        self._writer.close()


def as_json(prediction: Prediction, outputs: Outputs, run_id: str) -> str:
    """Return a prediction as a JSON line.

    It has id, label (labels, value), scores by label name except for a regression, run_id,
    `rejected` for a rejected row, and error if there is one.
    """
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
        self._file.write("".join(lines).encode())

    def close(self) -> None:
        """Do nothing, since all rows are written already."""


class _CsvWriter:
    def __init__(self, file: BinaryIO, outputs: Outputs, run_id: str) -> None:
        self._file, self._outputs, self._run_id = file, outputs, run_id
        scored = outputs.labels if outputs.has_scores else ()
        self._count = len(scored)
        self._rows([["id", outputs.name, *(f"score_{name}" for name in scored), "run_id", "error"]])

    def write(self, predictions: Sequence[Prediction]) -> None:
        self._rows(
            [p.id, self._predicted(p.label), *self._scores(p.scores), self._run_id, p.error]
            for p in predictions
        )

    def _predicted(self, label: str | list[str] | float | None) -> str | None:
        """Return the predicted cell; CSV has no lists, so that several labels are a JSON list."""
        if label is None or self._outputs.task == "single_label":
            return label
        return json.dumps(label, ensure_ascii=False)

    def _scores(self, scores: np.ndarray | None) -> Sequence[str | None]:
        if scores is None or not self._count:
            return [None] * self._count
        return [f"{score:.6f}" for score in scores]

    def _rows(self, rows) -> None:
        text = io.StringIO(newline="")
        # Python's QUOTE_MINIMAL leaves a CR unquoted, which other readers take for a line's end
        plain = csv.writer(text, lineterminator="\n")
        quoted = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
        for row in rows:
            has_cr = any("\r" in cell for cell in row if isinstance(cell, str))
            (quoted if has_cr else plain).writerow(row)
        self._file.write(text.getvalue().encode())

    def close(self) -> None:
        """Do nothing, since all rows are written already."""
