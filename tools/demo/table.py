"""Put docstrings of installed packages into a partitioned Hive table: the cluster demo's input.

    python -m tools.demo.table DATABASE.TABLE [PACKAGE ...]

Rows are (id, text, label), partitioned by `part`, which stands for the day of real tables. A table
with the same rows is kept, so that a second demo reuses its dataset.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Sequence

from howdah.config.data import SparkOptions
from howdah.spark.session import session
from tools.demo.corpus import command, corpus, identity

PARTITIONS = 4
_DIGEST = "howdah.demo.digest"


def write(table: str, packages: Sequence[str], rows: int) -> bool:
    """Write the table through the configured metastore; False if it has the same rows already."""
    digest = identity(packages, rows)["digest"]
    with session(SparkOptions(master="local[2]", driver_memory="2g"), hive=True) as spark:
        if spark.catalog.tableExists(table):
            properties = spark.sql(f"SHOW TBLPROPERTIES {table}").collect()
            if {row["key"]: row["value"] for row in properties}.get(_DIGEST) == digest:
                return False
        spark.sql(f"CREATE DATABASE IF NOT EXISTS {table.partition('.')[0]}")
        spark.sql(f"DROP TABLE IF EXISTS {table}")
        spark.sql(
            f"CREATE TABLE {table} (id STRING, text STRING, label STRING) "
            "PARTITIONED BY (part STRING) STORED AS PARQUET"
        )
        values = [
            (row_id, text, label, f"p{zlib.crc32(row_id.encode()) % PARTITIONS}")
            for row_id, text, label in corpus(packages, rows)
        ]
        spark.conf.set("hive.exec.dynamic.partition.mode", "nonstrict")
        frame = spark.createDataFrame(values, "id string, text string, label string, part string")
        frame.repartition("part").write.mode("append").insertInto(table)
        # Last: a table without this property is incomplete, and is written again.
        spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('{_DIGEST}'='{digest}')")
    return True


if __name__ == "__main__":
    sys.exit(command(write))
