"""A Hive table with a partition for each version or run, written from Spark.

Nothing of Spark is imported: callers bring their session's DataFrame.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from howdah.errors import DataError

__all__ = ["quoted", "replace_partition"]


def quoted(table: str) -> str:
    """`database.table` as Spark SQL wants a name that may hold anything.

    >>> quoted("shop.reviews")
    '`shop`.`reviews`'
    """
    return ".".join(f"`{part}`" for part in table.split("."))


def replace_partition(
    spark: Any,
    frame: Any | None,
    table: str,
    *,
    columns: Mapping[str, str],
    key: str,
    value: str,
    what: str,
) -> None:
    """Make a frame's rows one partition of a table; running again leaves one copy of them.

    Args:
        spark: the session.
        frame: a DataFrame that has all of `columns`; None: no row, and no such partition.
        table: made, as Parquet, if it is not there.
        columns: {name: SQL type} of the table, in its order, the partition's column left out.
        key: the partition's column, a string.
        value: of this partition.
        what: what the rows are, for the message.
    Raises:
        DataError: the table is there, and has other columns.
    """
    name = quoted(table)
    declared = ", ".join(f"{column} {type_}" for column, type_ in columns.items())
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {name} ({declared}) PARTITIONED BY ({key} string)"
        " STORED AS PARQUET"
    )
    there = spark.table(table).columns
    if there != [*columns, key]:
        raise DataError(
            f"the table for {what} has other columns",
            where=table,
            expected=", ".join((*columns, key)),
            got=", ".join(there),
            remedy="name another table; it is made if it is not there",
        )
    literal = value.replace("\\", "\\\\").replace("'", "\\'")
    if frame is None:
        spark.sql(f"ALTER TABLE {name} DROP IF EXISTS PARTITION ({key}='{literal}')")
        return
    view = f"howdah_{secrets.token_hex(8)}"
    frame.select(*columns).createOrReplaceTempView(view)
    try:
        spark.sql(
            f"INSERT OVERWRITE TABLE {name} PARTITION ({key}='{literal}')"
            f" SELECT {', '.join(columns)} FROM {view}"
        )
    finally:
        spark.catalog.dropTempView(view)
