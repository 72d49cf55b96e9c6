"""Files that Spark reads for predictions: its workers make their rows, by the functions
that one process uses (training/prediction/reading.py).

    CSV, fields may hold line breaks    a task reads each file whole
    CSV by lines, JSON lines            Spark divides the files into lines, which the tasks parse
    Parquet, ORC, Avro                  Spark reads the mapped columns

Rows without an id are numbered by Spark: unique, increasing, with gaps.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Literal

from howdah import storage
from howdah.config.data import Columns, CsvOptions
from howdah.data.files import lines
from howdah.data.files.footers import Kind
from howdah.data.files.listing import below
from howdah.errors import DataError, NotFound
from howdah.spark import columnar, connectors, csv_quotes
from howdah.spark.errors import translated
from howdah.spark.paths import spark_path
from training.prediction.executor import Reader
from training.prediction.reading import (
    check_files,
    csv_record,
    csv_rows,
    json_record,
    mapped,
    row_of,
    source_files,
)
from training.prediction.rows import Row, format_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Files", "check", "find", "read"]

Form = Literal["csv", "jsonl"] | Kind

_CHUNK_ROWS = 2048
_FILE_BITS = 33
"""Bits of a row's number that count the rows of a file, as in Spark's own numbers."""
_MOST_TASKS = 1_000
_NUMBER = "_howdah_number"


@dataclass(frozen=True, kw_only=True)
class Files:
    """The files of a source, of one format."""

    form: Form
    """csv, jsonl, parquet, orc or avro."""
    paths: Sequence[str]
    root: str | None = None
    """The directory that they were found below; of Parquet, ORC and Avro."""


def find(source: str, kind: Kind | None) -> Files:
    """The files of a source.

    Args:
        kind: the format, where the source's suffix does not say it.
    Raises:
        NotFound: there are none.
        DataError: they are of several formats.
    """
    form = kind or format_of(source) or _inside(source)
    if form in ("csv", "jsonl"):
        return Files(form=form, paths=source_files(source))
    root = source if storage.is_dir(source) else None
    found = []
    for path in [source] if storage.exists(source) else storage.find(source):
        entry = storage.entry(path)
        found += below(path) if entry.is_dir else [entry]
    if not found:
        raise NotFound(
            "there is nothing to predict",
            where=source,
            expected="a file, a pattern or a directory",
            remedy="check the path",
        )
    return Files(form=form, paths=[entry.path for entry in found if entry.size], root=root)


def _inside(source: str) -> Form:
    """The format of the files in a directory, or of those that a pattern names."""
    if storage.exists(source):
        entries = storage.list_dir(source) if storage.is_dir(source) else []
        names = [entry.name for entry in entries if not entry.name.startswith(("_", "."))]
    else:
        names = storage.find(source)
    forms = {form for name in names if (form := format_of(name))}
    if len(forms) > 1:
        raise DataError(
            "the source has files of several formats",
            where=source,
            expected="one format, where Spark reads it",
            got=", ".join(sorted(forms)),
            remedy="name the files by a pattern such as DIR/*.csv, or predict without --master",
        )
    return forms.pop() if forms else "parquet"


def check(files: Files, columns: Columns, options: CsvOptions, *, id_required: bool) -> None:
    """`check_files` of a source."""
    forms = dict.fromkeys(files.paths, files.form)
    check_files(forms, columns, options, id_required=id_required, root=files.root)


def read(
    spark: SparkSession, files: Files, columns: Columns, options: CsvOptions
) -> tuple[DataFrame, Reader]:
    """A DataFrame of files that `check` has passed, and what makes rows of its batches.

    Raises:
        DataError: a CSV file with an unclosed quote.
    """
    with translated("read the source", DataError):
        if files.form == "csv" and options.multiline:
            separators = {path: lines.delimiter_of(path, options) for path in files.paths}
            csv_quotes.check(spark, separators, options)
            return _whole(spark, files.paths), _Whole(columns=columns, options=options)
        if files.form == "csv" or files.form == "jsonl":
            kinds = _kinds(files, options)
            reader = _Lines(columns=columns, options=options, kinds=list(kinds))
            return _by_line(spark, list(kinds.values())), reader
        return _columns(spark, files.form, files, columns), _Records(columns=columns)


# ----------------------------------------------------------------------- CSV, a file for each task
def _whole(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    rows = spark.createDataFrame(list(enumerate(paths)), "number bigint, path string")
    return rows.repartition(min(len(paths), _MOST_TASKS))


@dataclass(frozen=True, kw_only=True)
class _Whole:
    """Reader of batches of (number of the file, its path)."""

    columns: Columns
    options: CsvOptions

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[list[Row]]:
        for batch in batches:
            for number, path in zip(*batch.to_pydict().values(), strict=True):
                rows = (
                    row_of(record, self.columns, (number << _FILE_BITS) + own)
                    for own, record in enumerate(csv_rows(path, self.options))
                )
                while chunk := list(islice(rows, _CHUNK_ROWS)):
                    yield chunk


# ------------------------------------------------------------------------------------------- lines
_LineKind = tuple[str, tuple[str, ...]]
"""(field separator, names of the columns) of CSV; of JSON lines ("", ())."""


def _kinds(files: Files, options: CsvOptions) -> dict[_LineKind, list[str]]:
    """{kind: paths}."""
    kinds: dict[_LineKind, list[str]] = {}
    for path in files.paths:
        kind: _LineKind = ("", ())
        if files.form == "csv":
            kind = (lines.delimiter_of(path, options), tuple(lines.csv_names(path, options)))
        kinds.setdefault(kind, []).append(path)
    return kinds


def _by_line(spark: SparkSession, kinds: Sequence[Sequence[str]]) -> DataFrame:
    """number, line, the kind's number, and which part of which file it is in: path, offset in
    bytes."""
    from pyspark.sql import functions as F

    parts = [
        spark.read.text([spark_path(path) for path in paths]).select(
            F.col("value").cast("binary").alias("line"),
            F.lit(kind).alias("kind"),
            F.col("_metadata.file_path").alias("path"),
            F.col("_metadata.file_block_start").alias("start"),
        )
        for kind, paths in enumerate(kinds)
    ]
    rows = functools.reduce(lambda one, other: one.unionByName(other), parts)
    return rows.select(F.monotonically_increasing_id().alias(_NUMBER), *rows.columns)


@dataclass(frozen=True, kw_only=True)
class _Lines:
    """Reader of batches of `_by_line`."""

    columns: Columns
    options: CsvOptions
    kinds: Sequence[_LineKind]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[list[Row]]:
        part, header = None, False
        for batch in batches:
            found = []
            for number, line, kind, *of in zip(*batch.to_pydict().values(), strict=True):
                separator, names = self.kinds[kind]
                if not separator:
                    text = lines.decoded(line, "utf-8")
                    record = json_record(text, "") if text.strip() else None
                else:
                    if of != part:  # the first line of a part, in which lines are in their order
                        part, header = of, self.options.header and of[1] == 0
                    text = lines.decoded(line, self.options.encoding)
                    _, fields = next(lines.csv_records(iter([text]), self.options, separator))
                    record = csv_record(fields, names, "") if fields and not header else None
                    header = header and not fields
                if record is not None:
                    found.append(row_of(record, self.columns, number))
            if found:
                yield found


# ------------------------------------------------------------------------------ Parquet, ORC, Avro
def _columns(spark: SparkSession, kind: Kind, files: Files, columns: Columns) -> DataFrame:
    from pyspark.sql import functions as F

    connectors.require(spark, kind)
    table = columnar.load(spark, kind, files.paths, files.root)
    names = [name for name in mapped(columns) if name in table.columns]
    number = F.monotonically_increasing_id().alias(_NUMBER)
    return table.select(number, *(F.col(f"`{name}`") for name in dict.fromkeys(names)))


@dataclass(frozen=True, kw_only=True)
class _Records:
    """Reader of batches of number and the mapped columns."""

    columns: Columns

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[list[Row]]:
        for batch in batches:
            yield [row_of(record, self.columns, record[_NUMBER]) for record in batch.to_pylist()]
