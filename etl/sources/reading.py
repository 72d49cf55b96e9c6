"""Read a source into rows (key, text, label, reason, detail), its columns checked first."""

from __future__ import annotations

import codecs
import difflib
import functools
from collections.abc import Callable, Sequence
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
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from etl.sources import given, hive, jdbc, json_numbers, lake
from etl.sources.source import Kind, Source
from howdah.config.data import CsvOptions, DataSection
from howdah.config.splits import Split
from howdah.data.clean import PAIR
from howdah.data.files import footers, lines
from howdah.errors import ConfigError, DataError
from howdah.spark import columnar, csv_quotes, ids
from howdah.spark.csv_quotes import Strays
from howdah.spark.errors import translated
from howdah.spark.paths import spark_path

CORRUPT = "_corrupt_record"
SCHEMA = "key string, text string, label string, reason string, detail string"
_DETAIL = 200


def read(spark: SparkSession, source: Source, data: DataSection) -> DataFrame:
    """The source's rows: SCHEMA, and `given.columns`; etl/rows/numbering.py makes ids of keys.

    Raises:
        DataError: no such table, a missing column, a column of another type, an unreadable file.
    """
    with translated(f"read the source {source.name}", DataError):
        rows = [
            _mapped(_TABLES[part.kind](spark, part, own), part, own, split)
            for split, part, own in given.each(source, data)
        ]
        return functools.reduce(DataFrame.unionByName, rows)


def table(spark: SparkSession, source: Source, data: DataSection) -> DataFrame:
    """The source's own columns."""
    return _TABLES[source.kind](spark, source, data)


# ---------------------------------------------------------------------------------------- CSV
def check_quotes(spark: SparkSession, source: Source, options: CsvOptions) -> Strays:
    """Refuse CSV files in which an unclosed quote swallows lines; see `csv_quotes.check`."""
    _refuse_encoding(options)
    with translated(f"read the source {source.name}", DataError):
        files = {
            entry.path: _delimiter(part, options)
            for part in (source, *source.parts.values())
            for entry in part.files
        }
        return csv_quotes.check(spark, files, options)


def _refuse_encoding(options: CsvOptions) -> None:
    try:
        codecs.lookup(options.encoding)
    except LookupError:
        raise ConfigError(
            "no such character set",
            where="data.csv.encoding",
            got=repr(options.encoding),
            remedy="UTF-8, ISO-8859-1, windows-1252, ...",
        ) from None


def _delimiter(source: Source, options: CsvOptions) -> str:
    found = {lines.delimiter_of(entry.name, options): entry.path for entry in source.files}
    if len(found) > 1:
        raise DataError(
            "the source holds files with tabs and files with commas",
            where=found["\t"],
            expected="one separator for all files, by their names",
            remedy="name one kind of file by a pattern, as *.tsv",
        )
    return next(iter(found), options.delimiter)


def _csv(spark: SparkSession, source: Source, data: DataSection) -> DataFrame:
    options = data.csv
    _refuse_encoding(options)
    delimiter = _delimiter(source, options)
    paths = [spark_path(entry.path) for entry in source.files]

    def reader(header: bool):
        return (
            spark.read.option("header", str(header).lower())
            .option("multiLine", str(options.multiline).lower())
            .option("sep", delimiter)
            .option("quote", options.quote)
            # Spark's own default is a backslash, which eats those of texts; RFC 4180 doubles quotes
            .option("escape", options.escape or options.quote)
            .option("encoding", options.encoding)
            .option("mode", "PERMISSIVE")
            .option("columnNameOfCorruptRecord", CORRUPT)
            # with pruning, a row with too few or too many fields would pass unseen
            .option("columnPruning", "false")
            .option("enforceSchema", "true")
        )

    groups = lines.alike(source.files, options, delimiter)
    first: list[str] = []
    for number, group in enumerate(groups):
        path = group[0].path
        columns = reader(options.header).csv(spark_path(path)).columns  # a Spark job each
        if not number:
            first = columns
        elif columns != first and (options.header or len(columns) != len(first)):
            raise DataError(
                "the CSV files do not have the same columns",
                where=path,
                expected=", ".join(first),
                got=", ".join(columns),
                remedy="give one kind of file, or name them by a narrower pattern",
            )
    names = first
    if not options.header and options.names is not None:
        if len(options.names) != len(first):
            raise DataError(
                "data.csv.names does not fit the file",
                where=source.files[0].path,
                expected=f"{len(options.names)} columns: {', '.join(options.names)}",
                got=f"{len(first)} columns in the first line",
                remedy="name each column once, in order; check data.csv.delimiter",
            )
        names = options.names
    return reader(options.header).schema(_texts(names)).csv(paths)


def _jsonl(spark: SparkSession, source: Source, data: DataSection) -> DataFrame:
    """All mapped columns as text, numbers as they are written.

    Where the first records show that each mapped column holds texts or numbers, it is a text in
    the schema that Spark would infer too: it becomes one as soon as one record has one. Else Spark
    reads all files once more, to find out which columns there are and which of them are objects.
    """
    reader = spark.read.option("primitivesAsString", "true")
    reader = reader.option("columnNameOfCorruptRecord", CORRUPT)
    names = list(dict.fromkeys(name for _, name in wanted(data)))
    if lines.scalars(source.files, names):
        reader = reader.schema(_texts(names))
    paths = [spark_path(entry.path) for entry in source.files]
    old = int(spark.version.partition(".")[0]) < 4
    return reader.json(json_numbers.lines_for(spark, paths) if old else paths)


def _texts(names: Sequence[str]) -> StructType:
    """Columns of text, and that of records that cannot be read."""
    schema = StructType()
    for name in (*names, CORRUPT):
        schema = schema.add(name, StringType())
    return schema


def _columnar(spark: SparkSession, source: Source, data: DataSection) -> DataFrame:
    """Files that hold their columns' names and types: Parquet, ORC, Avro."""
    footers.check_alike(source.files, source.kind, wanted(data))
    return columnar.load(spark, source.kind, [e.path for e in source.files], source.root)


def wanted(data: DataSection) -> list[tuple[str, str]]:
    """(the key that names it, its name) of each column that is read."""
    columns, split = data.columns, data.split
    texts = {"text": columns.text, "text_pair": columns.text_pair or []}
    if data.kind == "image":
        texts = {"image": [columns.image]}
    named = {f"columns.{key}": names for key, names in texts.items()}
    named["columns.label"] = [columns.label]
    named["columns.id"] = [columns.id] if columns.id is not None else []
    named["split.column"] = [split.column] if split.column is not None else []
    named["split.group"] = split.group
    named["split.time.column"] = [split.time.column] if split.time.column is not None else []
    return [(f"data.{key}: {name}", name) for key, names in named.items() for name in names]


_TABLES: dict[Kind, Callable[[SparkSession, Source, DataSection], DataFrame]] = {
    "csv": _csv,
    "jsonl": _jsonl,
    "parquet": _columnar,
    "orc": _columnar,
    "avro": _columnar,
    "hive": hive.read,
    "jdbc": jdbc.read,
    "iceberg": lake.read,
    "delta": lake.read,
}
"""Kinds of source that are a table with named columns. The others: etl/write/adopt.py,
etl/sources/images.py."""


# ------------------------------------------------------------------------------------- columns
def _mapped(table: DataFrame, source: Source, data: DataSection, split: Split | None) -> DataFrame:
    """key, text, label, reason, detail, `given.columns` of a table by `data.columns`.

    Args:
        split: that of an official set, whose source this is.
    """
    columns = data.columns
    text = _joined(table, source, "text", columns.text, columns.separator)
    if columns.text_pair is not None:
        second = _joined(table, source, "text_pair", columns.text_pair, columns.separator)
        sides = (F.translate(side, PAIR, " ") for side in (text, second))
        text = F.concat_ws(PAIR, *sides)
    label = _label(table, source, data)
    nothing = F.lit(None).cast("string")
    key = nothing
    reason = detail = nothing
    if columns.id is not None:
        key = _id(table, source, columns.id, f"data.columns.id: {columns.id}")
        reason = F.when(key.isNull() | (F.trim(key) == ""), "no_id")
        if split is not None:  # keys are often row numbers, in each source from 0
            key = F.concat(F.lit(f"{split}:"), key)
    more, no_split, why = given.mapped(
        data.split,
        split,
        lambda name, where: find(table, source, name, f"{where}: {name}"),
        lambda name, where: _id(table, source, name, f"{where}: {name}"),
    )
    detail = F.when(reason.isNull(), why)
    reason = F.coalesce(reason, no_split)
    if CORRUPT in table.columns and isinstance(table.schema[CORRUPT].dataType, StringType):
        broken = F.col(CORRUPT).isNotNull()
        reason = F.when(broken, "malformed").otherwise(reason)
        detail = F.when(broken, F.substring(CORRUPT, 1, _DETAIL)).otherwise(detail)
        # Spark refuses queries over the corrupt column alone; caching is its documented way out.
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
    for item in table.schema.fields:
        if item.name == name:
            return F.col(f"`{name}`"), item.dataType
    inner: DataType = table.schema
    for part in name.split("."):
        found = isinstance(inner, StructType) and part in inner.names
        inner = inner[part].dataType if found else None
    if inner is not None:
        return F.col(name), inner
    there = [c for c in table.columns if c != CORRUPT]
    near = difflib.get_close_matches(name, there, n=1, cutoff=0.5)
    raise DataError(
        f"the source has no column {name!r}",
        where=f"{where} in {source.name}",
        expected=", ".join(there) or "no column at all",
        got=f"{name} (did you mean {near[0]}?)" if near else name,
        remedy="set data.columns.text, .label and .id to columns of the source"
        + ("" if source.kind != "csv" else "; without a header give data.csv.names"),
    )


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


def key_column(table: DataFrame, source: Source, name: str, where: str) -> Column:
    """A column of names or numbers as text: whole numbers without a point, of any size.

    Raises:
        DataError: it is missing, or of another type.
    """
    column, kind = find(table, source, name, where)
    spelt = ids.column(column, kind)
    if spelt is None or isinstance(kind, DateType | TimestampType | TimestampNTZType):
        raise _wrong_type(source, where, "a string or a number", kind)
    return spelt


def _id(table: DataFrame, source: Source, name: str, where: str) -> Column:
    """`key_column`, and dates and times as ISO 8601 (in UTC, where the type knows a zone)."""
    column, kind = find(table, source, name, where)
    spelt = ids.column(column, kind)
    return key_column(table, source, name, where) if spelt is None else spelt


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
