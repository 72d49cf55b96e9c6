"""Bring together the rows that could have one id, in an order of their own."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from etl.rows.numbering import GROUP
from etl.sources import given


def gathered(rows: DataFrame, *, content: str = "text") -> DataFrame:
    """The rows with `GROUP`, those of a group together and in an order that only they decide.

    Rows that differ in nothing that they are ordered by are the same row. Those that the source's
    reader has rejected come last, so that they take no key from others.

    Args:
        rows: key, the content, label, reason, detail and `given.columns`.
        content: the column that is hashed where there is no key.
    """
    nothing = F.lit("") if content == "text" else F.lit("").cast("binary")
    digest = F.sha2(F.coalesce(content, nothing), 256)
    rows = rows.withColumn("_digest", digest).withColumn(GROUP, F.coalesce("key", "_digest"))
    order = [F.col("reason").isNotNull(), "_digest", "label", *given.only(rows), "reason", "detail"]
    return rows.repartition(GROUP).sortWithinPartitions(GROUP, *order).drop("_digest")
