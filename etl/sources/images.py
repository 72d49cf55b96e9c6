"""Reading images: a directory <label>/<file>, or a table (Parquet) with a column of files' bytes.

Rows have the bytes of image files; etl/rows/images.py decodes them.
"""

from __future__ import annotations

import re

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType

from howdah import storage
from howdah.config.data import DataSection
from howdah.data.images import MAX_BYTES
from howdah.errors import DataError
from howdah.etl.sources import reading
from howdah.etl.sources.source import Source
from howdah.etl.workspace.scratch import local_table
from howdah.spark.errors import translated
from howdah.spark.paths import spark_path

SCHEMA = "key string, text string, label string, reason string, detail string, image binary"
"""`text` is the file's path below the source; null for rows of a table."""
_BEFORE_PATH = "^[a-z][a-z0-9+.-]*:(//[^/]*)?"
"""Scheme and host of a path, as Spark and Java write it."""


def read(spark: SparkSession, source: Source, data: DataSection) -> DataFrame:
    """The source's rows: SCHEMA.

    Raises:
        DataError: a missing column, a column of another type, an unreadable file.
    """
    with translated(f"read the source {source.name}", DataError):
        if source.kind == "image":
            return _files(spark, source, data)
        return _table(spark, source, data)


# ------------------------------------------------------------------------------------ a directory
def _files(spark: SparkSession, source: Source, data: DataSection) -> DataFrame:
    """A row for each file: its id is its path below the source, its label the directory it is in.

    Files that are empty or too large are not read: they are rejected by their size.
    """
    start = _plain(source.root) + "/" if source.root else _common(source)
    unread = [
        (_plain(entry.path), "empty" if not entry.size else "too_large", f"{entry.size:,} bytes")
        for entry in source.files
        if not 0 < entry.size <= MAX_BYTES
    ]
    reader = spark.read.format("binaryFile")
    if source.root:
        paths = [spark_path(source.root)]
        reader = reader.option("recursiveFileLookup", "true")
    else:
        paths = [spark_path(entry.path) for entry in source.files]
    nothing = F.lit(None).cast("string")
    # The filter on the length is pushed down: Spark does not read the content of other files.
    table = (
        reader.load(paths)
        .where((F.col("length") > 0) & (F.col("length") <= MAX_BYTES))
        .select(
            F.regexp_replace("path", _BEFORE_PATH, "").alias("path"),
            nothing.alias("reason"), nothing.alias("detail"), F.col("content").alias("image"),
        )
    )  # fmt: skip
    if unread:
        sizes = local_table(spark, unread, "path string, reason string, detail string")
        table = table.unionByName(sizes.withColumn("image", F.lit(None).cast("binary")))
    below = F.expr(f"substring(path, {len(start) + 1})")
    parts = F.split("path", "/")
    # A file that lies in the source itself has no directory that could name its label.
    inside = F.instr(below, "/") > 0 if source.root else F.lit(True)
    label = F.when(inside, F.element_at(parts, -2))
    return table.select(
        below.alias("key"), below.alias("text"), label.alias("label"), "reason", "detail", "image",
    )  # fmt: skip


def _plain(path: str) -> str:
    """A path without scheme and host, as the rows' paths are compared.

    >>> _plain("hdfs://nameservice/images/cat/1.png")
    '/images/cat/1.png'
    """
    if storage.is_local(path):
        return storage.local_path(path).rstrip("/")
    return re.sub(_BEFORE_PATH, "", path).rstrip("/")


def _common(source: Source) -> str:
    """The path that the directories above all labels share, with its final slash."""
    above = [storage.parent(storage.parent(_plain(entry.path))) for entry in source.files]
    first, last = min(above).split("/"), max(above).split("/")
    same = 0
    while same < min(len(first), len(last)) and first[same] == last[same]:
        same += 1
    return "/".join(first[:same]).rstrip("/") + "/"


# ---------------------------------------------------------------------------------------- a table
def _table(spark: SparkSession, source: Source, data: DataSection) -> DataFrame:
    columns = data.columns
    table = reading.table(spark, source, data)
    where = f"data.columns.image: {columns.image}"
    image, kind = reading.find(table, source, columns.image, where)
    if not isinstance(kind, BinaryType):
        raise DataError(
            "the column of the images is of another type",
            where=f"{where} in {source.name}",
            expected="binary: the bytes of image files",
            got=kind.simpleString(),
            remedy="name the column with the bytes; of a struct, its field: image.bytes",
        )
    label = reading.key_column(table, source, columns.label, f"data.columns.label: {columns.label}")
    nothing = F.lit(None).cast("string")
    key = reason = nothing
    if columns.id is not None:
        key = reading.key_column(table, source, columns.id, f"data.columns.id: {columns.id}")
        reason = F.when(key.isNull() | (F.trim(key) == ""), "no_id")
    return table.select(
        key.alias("key"), nothing.alias("text"), label.alias("label"), reason.alias("reason"),
        nothing.alias("detail"), image.alias("image"),
    )  # fmt: skip
