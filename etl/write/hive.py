"""Rejected rows as a Hive table."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import SparkSession

from howdah import storage
from howdah.data.hive_table import replace_partition
from howdah.errors import ConfigError
from howdah.etl.sources.source import is_table
from howdah.etl.write.shards import REJECT_COLUMNS
from howdah.spark.errors import translated
from howdah.spark.paths import spark_path


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
    with translated(f"write the table {table}"):
        paths = [spark_path(storage.join(version, name)) for name in files]
        replace_partition(
            spark,
            spark.read.parquet(*paths) if paths else None,
            table,
            columns=dict.fromkeys(REJECT_COLUMNS, "string"),
            partition={"dataset": hash_},
            what="rejected rows",
        )
