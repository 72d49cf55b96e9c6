"""Files that Spark reads for predictions: its workers make the rows, with the same functions as one
process (serving/prediction/reading.py).

    CSV, JSON              the workers read the files, or parts of them (data/spark/text_rows.py)
    Parquet, ORC, Avro     Spark reads the mapped columns

Rows without an id get numbers: unique, increasing, with gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from howdah.config.data import Columns, CsvOptions
from howdah.data.files import footers
from howdah.data.files.footers import Kind
from howdah.data.files.listing import files_of
from howdah.data.files.quotes import Quotes
from howdah.data.files.records import delimiter_of
from howdah.data.spark import columnar, ids, text_rows
from howdah.errors import DataError, NotFound
from howdah.serving.prediction import reading
from howdah.serving.prediction.executor import Reader
from howdah.serving.prediction.reading import Rows, mapped, source_files
from howdah.serving.prediction.rows import Row, format_of
from howdah.spark import connectors
from howdah.spark.errors import translated
from howdah.spark.paths import quoted

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Form = Literal["csv", "jsonl"] | Kind

_CHUNK_ROWS = 2048
_PART_BITS = 33
"""Bits of a row's number that count the rows of a part of a file, as in Spark's own numbers."""
_NUMBER = "_howdah_number"


@dataclass(frozen=True, kw_only=True)
class SparkSourceFiles(reading.SourceFiles):
    """The files of a source, of one format."""

    form: Form
    """csv, jsonl, parquet, orc or avro."""


def find(source: str, kind: Kind | None) -> SparkSourceFiles:
    """List the files of a source.

    Args:
        kind: the format, if the source's suffix does not say it.
    Raises:
        NotFound: there are none.
        DataError: they are of several formats.
    """
    form = kind or format_of(source) or _inside(source)
    if form in ("csv", "jsonl"):
        matches = source_files(source)
        return SparkSourceFiles(form=form, entries=matches.entries, root=matches.root)
    root, entries = files_of(source) or (None, [])
    entries = [entry for entry in entries if entry.size]
    if not entries:
        raise NotFound(
            "the source has no files with rows",
            where=source,
            expected="a file, a pattern or a directory",
        )
    return SparkSourceFiles(form=form, entries=entries, root=root)


def _inside(source: str) -> Form:
    """Return the format of a directory's or a pattern's files."""
    _, entries = files_of(source) or (None, [])
    forms = {form for entry in entries if (form := format_of(entry.path))}
    if len(forms) > 1:
        raise DataError(
            "the source has files of several formats, and Spark reads one",
            where=source,
            got=", ".join(sorted(forms)),
            remedy="name the files by a pattern such as DIR/*.csv, or predict without --master",
        )
    return forms.pop() if forms else "parquet"


def check(
    files: SparkSourceFiles,
    columns: Columns,
    options: CsvOptions,
    *,
    id_required: bool,
    progress: Callable[[str], None] = lambda line: None,
) -> None:
    """Call `check_files` for a source."""
    reading.check_files(
        {entry.path: entry for entry in files.entries}, files.form, columns, options,
        source=files.root or files.paths[0], id_required=id_required, root=files.root,
        progress=progress,
    )  # fmt: skip


def read(
    spark: SparkSession, files: SparkSourceFiles, columns: Columns, options: CsvOptions
) -> tuple[DataFrame, Reader]:
    """Return a DataFrame of files that `check` has passed, and the reader of its batches.

    Raises:
        DataError: a CSV file with an unclosed quote.
    """
    with translated("read the source", DataError):
        if files.form == "csv" or files.form == "jsonl":
            counted: Mapping[str, Quotes] = {}
            if files.form == "csv":
                separators = {path: delimiter_of(path, options) for path in files.paths}
                counted = text_rows.check_quotes(spark, separators, options).counted
            frame, tasks = text_rows.numbered(spark, files.entries, files.form, options)
            return frame, _Parts(
                tasks=tasks,
                columns=columns,
                options=options,
                root=files.root,
                counted=counted,
            )
        return _columns(spark, files, columns), _Records(columns=columns)


def table(
    spark: SparkSession, files: SparkSourceFiles, columns: Columns, options: CsvOptions
) -> DataFrame:
    """Return the mapped columns of files that `check` has passed, without unreadable rows."""
    if files.form == "csv" or files.form == "jsonl":
        columns_read = text_rows.Columns(names=mapped(columns))
        read = text_rows.table(
            spark, files.entries, files.form, columns_read, options, root=files.root
        )
        return read.where(read[text_rows.REASON].isNull()).select(*mapped(columns))
    schema = footers.schema(files.paths[0], files.form)
    types = {name: footers.type_of(schema, name) for name in mapped(columns)}
    return columnar.load(spark, files.form, files.paths, files.root, types)


# ------------------------------------------------------------------------------------- text files
@dataclass(frozen=True, kw_only=True)
class _Parts:
    """A reader of batches of task numbers."""

    tasks: text_rows.Tasks
    columns: Columns
    options: CsvOptions
    root: str | None
    counted: Mapping[str, Quotes] = field(default_factory=dict)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[list[Row]]:
        rows = Rows(self.columns)
        for batch in batches:
            for task in batch.column(0).to_pylist():
                for number, part in self.tasks.parts[task]:
                    rows_read = rows.of_part(
                        part, self.options, root=self.root, first=number << _PART_BITS,
                        counted=self.counted.get(part.path),
                    )  # fmt: skip
                    while chunk := list(islice(rows_read, _CHUNK_ROWS)):
                        yield chunk


# ------------------------------------------------------------------------------ Parquet, ORC, Avro
def _columns(spark: SparkSession, files: SparkSourceFiles, columns: Columns) -> DataFrame:
    from pyspark.sql import functions as F

    connectors.require(spark, files.form)
    rows = table(spark, files, columns, CsvOptions())
    selected: list[Any] = [F.monotonically_increasing_id().alias(_NUMBER)]
    for item in rows.schema.fields:
        column = F.col(quoted(item.name))
        spelt = ids.column(column, item.dataType) if item.name == columns.id else None
        selected.append((column if spelt is None else spelt).alias(item.name))
    return rows.select(*selected)


@dataclass(frozen=True, kw_only=True)
class _Records:
    """A reader of batches of the number and the mapped columns."""

    columns: Columns

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[list[Row]]:
        rows = Rows(self.columns)
        for batch in batches:
            yield [
                rows.row([record.get(name) for name in rows.names], record[_NUMBER])
                for record in batch.to_pylist()
            ]
