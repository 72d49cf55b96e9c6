"""Iceberg and Delta tables: a snapshot is chosen when the ETL begins, and that one alone is read.

The snapshot is the source's identity: what is written to the table meanwhile changes nothing, and
a later run with a newer snapshot makes another version of the dataset.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, assert_never

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from howdah import storage
from howdah.config.data import DataSection
from howdah.config.options.source import LAKES, moment_of
from howdah.errors import DataError
from howdah.etl.sources.source import Source, is_table
from howdah.spark.errors import translated

KINDS = frozenset(LAKES)


def resolved(spark: SparkSession, source: Source, data: DataSection) -> Source:
    """The source with the snapshot that `data.as_of` names as `identity`.

    Raises:
        DataError: no such table, or no such snapshot in it.
    """
    with translated(f"read the table {source.name}", DataError):
        history = _history(spark, source)
        snapshots = history
        if isinstance(data.as_of, int):
            snapshots = history.where(F.col("number") == data.as_of)
        elif data.as_of is not None:
            snapshots = history.where(F.col("micros") <= moment_of(data.as_of))
        # Iceberg's numbers are random; Delta's versions may have the same time
        snapshot = snapshots.orderBy(F.desc("micros"), F.desc("number")).first()
        if snapshot is None:
            raise _no_snapshot(source, data, history)
        identity: dict[str, Any] = {"table": source.name, "snapshot": snapshot["number"]}
        if (table_id := _table_id(spark, source)) is not None:
            identity["id"] = table_id
        pinned = replace(source, identity=identity)
        frame = read(spark, pinned, data)
        identity["schema"] = [[f.name, f.dataType.simpleString()] for f in frame.schema.fields]
        return pinned


def read(spark: SparkSession, source: Source, data: DataSection) -> DataFrame:
    """The rows of the snapshot in the source's identity."""
    snapshot = str(source.identity["snapshot"])
    if source.kind == "iceberg":
        return spark.read.format("iceberg").option("snapshot-id", snapshot).load(_name(source))
    if source.kind == "delta":
        reader = spark.read.option("versionAsOf", snapshot)
        if is_table(source.name):
            return reader.table(source.name)
        return reader.format("delta").load(_name(source))
    assert_never(source.kind)


def _name(source: Source) -> str:
    """A table's name, or the URI of its directory."""
    if is_table(source.name) or not storage.is_local(source.name):
        return source.name
    return "file://" + storage.local_path(source.name)


def _history(spark: SparkSession, source: Source) -> DataFrame:
    """(number, micros): each snapshot of the table, and when it became the current one."""
    if source.kind == "iceberg":
        metadata = f"{_name(source)}{'.' if is_table(source.name) else '#'}history"
        table = spark.read.format("iceberg").load(metadata)
        # one that was rolled back, or is a branch's, was never in this table's line
        table = table.where("is_current_ancestor")
        number, at = F.col("snapshot_id"), F.col("made_current_at")
    elif source.kind == "delta":
        table = spark.sql(f"DESCRIBE HISTORY {_in_sql(source)}")
        number, at = F.col("version"), F.col("timestamp")
    else:
        assert_never(source.kind)
    # By its name here and below: PySpark 3.4 has no function for it.
    return table.select(number.alias("number"), F.call_udf("unix_micros", at).alias("micros"))


def _table_id(spark: SparkSession, source: Source) -> str | None:
    """What tells a Delta table from another one made in its place; Iceberg's snapshots do."""
    if source.kind != "delta":
        return None
    row: Row = spark.sql(f"DESCRIBE DETAIL {_in_sql(source)}").select("id").first()
    return row["id"]


def _in_sql(source: Source) -> str:
    if is_table(source.name):
        return source.name
    return "delta.`" + _name(source).replace("`", "``") + "`"


def _no_snapshot(source: Source, data: DataSection, history: DataFrame) -> DataError:
    first, last = history.agg(F.min("micros"), F.max("micros")).first()
    seen = "no snapshot at all: the table is empty"
    if first is not None:
        newest = history.orderBy(F.desc("micros"), F.desc("number")).first()
        ends = [F.call_udf("timestamp_micros", F.lit(at)).cast("string") for at in (first, last)]
        oldest, latest = history.select(*ends).first()
        seen = f"{history.count()} from {oldest} to {latest} UTC, the newest {newest['number']}"
    return DataError(
        "the table has no such snapshot",
        where=f"data.as_of of {source.name}",
        expected="the newest" if data.as_of is None else str(data.as_of),
        got=seen,
        remedy="give a snapshot that the table still keeps, a later time, or leave as_of out",
    )
