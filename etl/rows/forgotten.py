"""Rows that were forgotten and come again in the source: left out, and counted.

Of such a row nothing goes on: not its text, not its label, not its id. What is left is a rejected
row with the reason `forgotten`, so that the counts of read, kept and dropped rows agree.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from howdah.data.lineage.forgotten import Forgotten
from howdah.etl.workspace.scratch import local_table

REASON = "forgotten"
_DIGITS = 32


def leave_out(rows: DataFrame, forgotten: Forgotten) -> DataFrame:
    """The rows, of which those whose id is marked have nothing but the reason.

    Args:
        rows: with id, label, reason, detail, and others (text, pixels, token ids).

    A row whose key came again is rejected as it is read, and named `<key>#<number>`: it goes with
    its key. A row that was not rejected is gone by its whole id alone: `page#12` may be its own.
    """
    if not forgotten.ids:
        return rows
    marks = local_table(rows.sparkSession, [(one,) for one in sorted(forgotten.ids)], "mark string")
    marked = rows
    key = F.when(F.col("reason").isNotNull(), F.regexp_replace("id", r"#\d+$", ""))
    for n, row_id in enumerate((F.col("id"), key)):
        mark = F.broadcast(marks.withColumnRenamed("mark", f"_mark{n}"))
        # `howdah.data.lineage.forgotten.hashed`, in Spark
        salted = F.sha2(F.concat(F.lit(forgotten.salt), row_id), 256)
        same = F.substring(salted, 1, _DIGITS) == F.col(f"_mark{n}")
        marked = marked.join(mark, same, "left")
    gone = F.col("_mark0").isNotNull() | F.col("_mark1").isNotNull()
    columns = [
        (
            F.when(gone, F.lit(REASON)).otherwise(F.col(name))
            if name == "reason"
            else F.when(~gone, F.col(name))
        ).alias(name)
        for name in rows.columns
    ]
    return marked.select(*columns)
