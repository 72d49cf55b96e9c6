"""Read files that hold their columns' names and types with Spark: Parquet, ORC, Avro."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from howdah import storage
from howdah.data.files import footers
from howdah.data.files.footers import Kind
from howdah.errors import DataError
from howdah.spark.paths import quoted, spark_path

_PATTERN = set("*?[]{}\\")


def load(
    spark: Any,
    kind: Kind,
    paths: Sequence[str],
    root: str | None,
    columns: Mapping[str, Any],
) -> Any:
    """A DataFrame of the columns, fields of structs by their whole names (`a.b`).

    Of Parquet Spark gets a schema of these columns alone: others may be of types that it does not
    know. Times in nanoseconds, which it does not know either, become texts as in data/ids.py.

    Args:
        spark: the SparkSession.
        paths: of files that `checks.check` has passed.
        root: the directory that they were found below, if they were; the names of directories are
            columns of texts.
        columns: {column: its pyarrow type, or None where no file has it}.
    Raises:
        DataError: a name that Hadoop cannot read.
    """
    refuse_names(paths)
    reader = spark.read.format(kind)
    if root:
        reader = reader.option("basePath", spark_path(root, pattern=False))
    if kind == "avro":
        reader = reader.option("ignoreExtension", "true")
    nanoseconds: dict[str, bool] = {}
    nothing: list[str] = []
    if kind == "parquet":
        schema, nanoseconds, nothing = _schema(columns, footers.schema(paths[0], kind).names)
        if schema is not None:
            reader = reader.schema(schema)
    if nanoseconds:  # Spark asks for it again when it reads the rows
        spark.conf.set("spark.sql.legacy.parquet.nanosAsLong", "true")
    # label=01 in a directory's name is a text: as a number it would be 1
    with _set(spark, "spark.sql.sources.partitionColumnTypeInference.enabled", "false"):
        table = reader.load([spark_path(path) for path in paths])
    return _flat(table, columns, nanoseconds, nothing)


def _flat(
    table: Any, kinds: Mapping[str, Any], nanoseconds: Mapping[str, bool], nothing: Sequence[str]
) -> Any:
    from pyspark.sql import functions as F

    columns = []
    for name in kinds:
        column = find(table, name)
        if name in nothing:
            columns.append(F.lit(None).cast("string").alias(name))
        elif column is not None and name in nanoseconds:
            columns.append(_nanoseconds_text(column[0], zone=nanoseconds[name]).alias(name))
        elif column is not None:
            columns.append(column[0].alias(name))
    return table.select(*columns)


@contextlib.contextmanager
def _set(spark: Any, name: str, value: str) -> Iterator[None]:
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, before)


def find(table: Any, name: str) -> tuple[Any, Any] | None:
    """A column of a table, or a field of a struct (`a.b`), and its type; None: there is none."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    for item in table.schema.fields:
        if item.name == name:
            return F.col(quoted(name)), item.dataType
    inner: Any = table.schema
    parts = []
    for part in name.split("."):
        if not isinstance(inner, StructType) or part not in inner.names:
            return None
        inner = inner[part].dataType
        parts.append(quoted(part))
    return F.col(".".join(parts)), inner


def refuse_names(paths: Sequence[str]) -> None:
    """Raise DataError for files that Spark would not find under their names."""
    listed: dict[str, list[str]] = {}
    for path in paths:
        name, parent = storage.name(path), storage.parent(path)
        wrong = None
        if name.startswith(("_", ".")):
            wrong = "Spark passes over files whose names begin with '_' or '.'"
        elif ":" in name:
            wrong = "Hadoop's file names have no colon"
        elif set(name) & _PATTERN:  # is looked up as a pattern, among all names of the directory
            if parent not in listed:
                listed[parent] = [entry.name for entry in storage.list_dir(parent)]
            if neighbour := next((sibling for sibling in listed[parent] if ":" in sibling), None):
                wrong = f"Hadoop's file names have no colon, as {neighbour!r} beside it has"
        if wrong is not None:
            raise DataError(
                "Spark cannot read a file of this name",
                where=path,
                got=wrong,
                remedy="rename the file, or copy it into a directory of its own",
            )


# ----------------------------------------------------------------------------------------- Parquet
def _schema(
    columns: Mapping[str, Any], names: Sequence[str]
) -> tuple[Any, dict[str, bool], list[str]]:
    """(Spark's schema, or None where a type is not known; {column in nanoseconds: whether in a
    zone}; columns of nothing but nulls)."""
    import pyarrow as pa

    tree: dict[str, Any] = {}
    nanoseconds: dict[str, bool] = {}
    nothing: list[str] = []
    for name, kind in columns.items():
        if kind is None:
            continue
        if pa.types.is_null(kind):
            nothing.append(name)
            continue
        if pa.types.is_timestamp(kind) and kind.unit == "ns":
            nanoseconds[name] = kind.tz is not None
        of_spark = _spark_type(kind)
        if of_spark is None:
            return None, nanoseconds, nothing
        inner = tree
        *above, last = [name] if name in names else name.split(".")
        for part in above:
            inner = inner.setdefault(part, {})
        inner[last] = of_spark
    return _struct(tree), nanoseconds, nothing


def _struct(tree: Mapping[str, Any]) -> Any:
    from pyspark.sql.types import StructType

    schema = StructType()
    for name, kind in tree.items():
        schema = schema.add(name, _struct(kind) if isinstance(kind, dict) else kind)
    return schema


def _spark_type(kind: Any) -> Any:
    """Spark's type of a Parquet column that pyarrow has as `kind`; None: it has none here."""
    import pyarrow as pa
    from pyspark.sql import types as T

    types = pa.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_string(kind) or types.is_large_string(kind) or str(kind) == "string_view":
        return T.StringType()
    if types.is_list(kind) or types.is_large_list(kind):
        inner = _spark_type(kind.value_type)
        return None if inner is None else T.ArrayType(inner)
    if types.is_timestamp(kind):
        if kind.unit == "ns":
            return T.LongType()
        return T.TimestampNTZType() if kind.tz is None else T.TimestampType()
    if types.is_decimal128(kind):
        return T.DecimalType(kind.precision, kind.scale)
    simple = {
        pa.binary(): T.BinaryType(), pa.large_binary(): T.BinaryType(), pa.bool_(): T.BooleanType(),
        pa.int8(): T.ByteType(), pa.int16(): T.ShortType(), pa.int32(): T.IntegerType(),
        pa.int64(): T.LongType(), pa.uint8(): T.ShortType(), pa.uint16(): T.IntegerType(),
        pa.uint32(): T.LongType(), pa.uint64(): T.DecimalType(20, 0), pa.float32(): T.FloatType(),
        pa.float64(): T.DoubleType(), pa.date32(): T.DateType(),
    }  # fmt: skip
    return simple.get(kind)


def _nanoseconds_text(column: Any, *, zone: bool) -> Any:
    """A time in nanoseconds since 1970 as an id (data/ids.py)."""
    from pyspark.sql import functions as F

    billion = F.lit(10**9)
    rest = F.pmod(column, billion)
    second = F.call_udf("div", column - rest, billion)
    text = F.date_format(F.timestamp_seconds(second), "yyyy-MM-dd'T'HH:mm:ss")
    part = F.regexp_replace(F.lpad(rest.cast("string"), 9, "0"), "0+$", "")
    text = F.when(rest == 0, text).otherwise(F.concat(text, F.lit("."), part))
    return F.concat(text, F.lit("Z")) if zone else text
