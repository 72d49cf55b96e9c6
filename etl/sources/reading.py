"""Read a source into rows (key, text, label, reason, detail), its columns checked first."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import assert_never

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    StringType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from howdah.config.data import CsvOptions, DataSection
from howdah.config.splits import Split
from howdah.data.clean import PAIR
from howdah.data.files import checks, records
from howdah.data.files.quotes import Quotes
from howdah.data.files.records import delimiter_of
from howdah.data.spark import columnar, ids, text_rows
from howdah.data.spark.text_rows import Strays
from howdah.errors import DataError
from howdah.etl.sources import given, hive, jdbc, lake
from howdah.etl.sources.source import COLUMNS, Kind, Source, check_columns, wanted
from howdah.spark.errors import translated

SCHEMA = "key string, text string, label string, reason string, detail string"


def read(
    spark: SparkSession,
    source: Source,
    data: DataSection,
    counted: Mapping[str, Quotes] | None = None,
) -> DataFrame:
    """The source's rows: SCHEMA, and `given.columns`; etl/rows/numbering.py makes ids of keys.

    Args:
        counted: of a CSV source what `check_quotes` has counted.
    Raises:
        DataError: no such table, a missing column, a column of another type, an unreadable file.
    """
    with translated(f"read the source {source.name}", DataError):
        rows = [
            _mapped(table(spark, part, split_data, counted), part, split_data, split)
            for split, part, split_data in given.each(source, data)
        ]
        return functools.reduce(DataFrame.unionByName, rows)


def table(
    spark: SparkSession,
    source: Source,
    data: DataSection,
    counted: Mapping[str, Quotes] | None = None,
) -> DataFrame:
    """The source's own columns; of files, those that are mapped."""
    if source.kind == "csv" or source.kind == "jsonl":
        return _text_files(spark, source, source.kind, data, counted)
    return _TABLES[source.kind](spark, source, data)


# ---------------------------------------------------------------------------------------- files
def check_quotes(spark: SparkSession, source: Source, options: CsvOptions) -> Strays:
    """Refuse CSV files in which an unclosed quote swallows lines; see `text_rows.check_quotes`."""
    with translated(f"read the source {source.name}", DataError):
        files = {
            entry.path: delimiter_of(entry.path, options)
            for part in (source, *source.parts.values())
            for entry in part.files
        }
        return text_rows.check_quotes(spark, files, options)


def _text_files(
    spark: SparkSession,
    source: Source,
    kind: records.TextForm,
    data: DataSection,
    counted: Mapping[str, Quotes] | None,
) -> DataFrame:
    """All mapped columns as text, numbers of JSON as they are written."""
    check_columns(source, data)
    named = data.columns
    texts = frozenset([*named.text, *(named.text_pair or ())])
    columns = text_rows.Columns(
        names=list(dict.fromkeys(name for _, name in wanted(data))),
        texts=texts,
        lists=frozenset([named.label] if data.task == "multi_label" else ()),
    )
    return text_rows.table(
        spark, source.files, kind, columns, data.csv, root=source.root, counted=counted
    )


def _columnar(spark: SparkSession, source: Source, data: DataSection) -> DataFrame:
    """Files that hold their columns' names and types: Parquet, ORC, Avro."""
    types = check_columns(source, data)
    return columnar.load(spark, source.kind, [e.path for e in source.files], source.root, types)


_TABLES: dict[Kind, Callable[[SparkSession, Source, DataSection], DataFrame]] = {
    "parquet": _columnar,
    "orc": _columnar,
    "avro": _columnar,
    "hive": hive.read,
    "jdbc": jdbc.read,
    "iceberg": lake.read,
    "delta": lake.read,
}
"""Kinds of source that are a table with named columns, but for CSV and JSON. The others:
etl/write/adopt.py, etl/sources/images.py."""


# ------------------------------------------------------------------------------------- columns
def _mapped(table: DataFrame, source: Source, data: DataSection, split: Split | None) -> DataFrame:
    """key, text, label, reason, detail, `given.columns` of a table by `data.columns`.

    Args:
        split: that of an official set, whose source this is.
    """
    named = data.columns
    text = _joined(table, source, "text", named.text, named.separator)
    if named.text_pair is not None:
        second = _joined(table, source, "text_pair", named.text_pair, named.separator)
        sides = (F.translate(side, PAIR, " ") for side in (text, second))
        text = F.concat_ws(PAIR, *sides)
    label = _label(table, source, data)
    nothing = F.lit(None).cast("string")
    key = nothing
    reason = detail = nothing
    if named.id is not None:
        key = key_column(table, source, named.id, f"data.columns.id: {named.id}", times=True)
        reason = F.when(key.isNull() | (F.trim(key) == ""), "no_id")
        if split is not None:  # keys are often row numbers, in each source from 0
            key = F.concat(F.lit(f"{split}:"), key)
    more, no_split, why = given.mapped(
        data.split,
        split,
        lambda name, where: find(table, source, name, f"{where}: {name}"),
        lambda name, where: key_column(table, source, name, f"{where}: {name}", times=True),
    )
    detail = F.when(reason.isNull(), why)
    reason = F.coalesce(reason, no_split)
    if text_rows.REASON in table.columns:
        broken = F.col(text_rows.REASON).isNotNull()
        reason = F.when(broken, F.col(text_rows.REASON)).otherwise(reason)
        detail = F.when(broken, F.col(text_rows.DETAIL)).otherwise(detail)
    return table.select(
        key.alias("key"),
        text.alias("text"),
        label.alias("label"),
        reason.alias("reason"),
        detail.alias("detail"),
        *(column.alias(name) for name, column in more.items()),
    )


def find(table: DataFrame, source: Source, name: str, where: str) -> tuple[Column, DataType]:
    """A column of the source, or a field of a struct, and its type; DataError: there is none."""
    column = columnar.find(table, name)
    if column is None:
        internal = (text_rows.REASON, text_rows.DETAIL)
        raise checks.no_column(
            name,
            [c for c in table.columns if c not in internal],
            where=f"{where} in {source.name}",
            remedy=COLUMNS,
        )
    return column


def _joined(
    table: DataFrame, source: Source, key: str, names: Sequence[str], separator: str
) -> Column:
    """The columns of a text as one; empty where all are null."""
    parts = [_text(table, source, name, f"data.columns.{key}: {name}") for name in names]
    return F.concat_ws(separator, *parts)


def _label(table: DataFrame, source: Source, data: DataSection) -> Column:
    """The label's column as text, by the task: `gate.judge` reads it.

    Raises:
        DataError: it is missing, or of a type that no label of the task has.
    """
    name, task = data.columns.label, data.task
    where = f"data.columns.label: {name}"
    if task == "single_label":
        label = key_column(table, source, name, where)
        return _without_point(label, data) if source.kind == "jsonl" else label
    column, kind = find(table, source, name, where)
    text = isinstance(kind, StringType | VarcharType | CharType)
    if task == "multi_label":
        if isinstance(kind, ArrayType) and isinstance(
            kind.elementType, StringType | VarcharType | CharType | IntegralType
        ):
            return F.to_json(column.cast("array<string>"), {"ignoreNullFields": "false"})
        if not text:
            raise _wrong_type(source, where, "array<string>, or a text with separators", kind)
        return column.cast("string")
    if task != "regression":
        assert_never(task)
    if isinstance(kind, IntegralType | DecimalType | FloatType | DoubleType):
        return column.cast("double").cast("string")
    if not text:
        raise _wrong_type(source, where, "a number, or a text that is one", kind)
    return column.cast("string")


def _text(table: DataFrame, source: Source, name: str, where: str) -> Column:
    column, kind = find(table, source, name, where)
    if not isinstance(kind, StringType | VarcharType | CharType):
        raise _wrong_type(source, where, "a text column (string)", kind)
    return column


def key_column(
    table: DataFrame, source: Source, name: str, where: str, *, times: bool = False
) -> Column:
    """A column of names or numbers as text: whole numbers without a point, of any size.

    Args:
        times: dates and times are possible too: ISO 8601, in UTC where the type knows a zone.
    Raises:
        DataError: it is missing, or of another type.
    """
    column, kind = find(table, source, name, where)
    spelt = ids.column(column, kind)
    of_time = isinstance(kind, DateType | TimestampType | TimestampNTZType)
    if spelt is None or (of_time and not times):
        raise _wrong_type(source, where, "a string or a number", kind)
    return spelt


def _without_point(label: Column, data: DataSection) -> Column:
    """JSON's number 1.0 as 1, as in other kinds of source: JSON knows one kind of number.

    Spark reads JSON's numbers and texts as texts, so "1.0" becomes 1 as well; values that
    data.labels lists stay as they are.
    """
    listed = [name.strip() for name in data.labels or ()]
    return F.when(F.trim(label).isin(listed), label).otherwise(
        F.regexp_replace(label, r"^\s*(-?\d+)\.0+\s*$", "$1")
    )


def _wrong_type(source: Source, where: str, expected: str, kind: DataType) -> DataError:
    return DataError(
        "a column is of another type",
        where=f"{where} in {source.name}",
        expected=expected,
        got=kind.simpleString(),
        remedy="map another column, or cast it where the source is made",
    )
