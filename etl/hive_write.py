"""Rejected rows as a Hive table."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import SparkSession

from etl.reading import spark_path
from etl.sources import is_table
from etl.spark_errors import translated
from howdah import storage
from howdah.errors import ConfigError, DataError

_REJECT_COLUMNS = ("id", "text", "label", "reason", "detail")


def write_rejects(
    spark: SparkSession, table: str, hash_: str, version: str, files: Sequence[str]
) -> None:
    """Put a version's rejected rows into the partition `dataset=<hash>` of a Hive table.

    Done before the commit and by replacing the partition: a dataset that exists has its rejects in
    the table, and running again leaves one copy.

    Raises:
        DataError: the table has other columns.
        ConfigError: no table name.
    """
    if not is_table(table):
        raise ConfigError("no table name", where="data.rejects_table", got=repr(table))
    quoted = ".".join(f"`{part}`" for part in table.split("."))
    with translated(f"write the table {table}"):
        columns = ", ".join(f"{name} string" for name in _REJECT_COLUMNS)
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS {quoted} ({columns}) PARTITIONED BY (dataset string)"
            " STORED AS PARQUET"
        )
        there = spark.table(table).columns
        if there != [*_REJECT_COLUMNS, "dataset"]:
            raise DataError(
                "the table for rejected rows has other columns",
                where=f"data.rejects_table {table}",
                expected=", ".join((*_REJECT_COLUMNS, "dataset")),
                got=", ".join(there),
                remedy="name another table; it is made if it is not there",
            )
        paths = [spark_path(storage.join(version, name)) for name in files]
        if not paths:
            spark.sql(f"ALTER TABLE {quoted} DROP IF EXISTS PARTITION (dataset='{hash_}')")
            return
        view = f"howdah_rejects_{hash_}"
        spark.read.parquet(*paths).select(*_REJECT_COLUMNS).createOrReplaceTempView(view)
        try:
            spark.sql(
                f"INSERT OVERWRITE TABLE {quoted} PARTITION (dataset='{hash_}')"
                f" SELECT {', '.join(_REJECT_COLUMNS)} FROM {view}"
            )
        finally:
            spark.catalog.dropTempView(view)
