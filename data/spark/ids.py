"""Ids and labels in expressions of Spark's, spelt as `howdah.data.ids.text` and
`howdah.data.targets.label_name` spell them."""

from __future__ import annotations

from typing import Any

from howdah.data.targets import BLANKS, UNSEEN


def column(values: Any, kind: Any) -> Any:
    """The ids that a Column of this DataType has, as a Column; None: no key is of such a type.

    Times with a zone are spelt in UTC, in whatever zone the session shows them.
    """
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    plain = (T.StringType, T.VarcharType, T.CharType, T.IntegralType, T.BooleanType, T.DateType)
    if isinstance(kind, plain):
        return values.cast("string")
    if isinstance(kind, T.TimestampNTZType):
        return F.translate(values.cast("string"), " ", "T")
    if isinstance(kind, T.TimestampType):
        zone = F.call_udf("current_timezone")  # PySpark 3.4 has no function for it
        utc = F.to_utc_timestamp(values, zone).cast("string")
        return F.concat(F.translate(utc, " ", "T"), F.lit("Z"))
    if isinstance(kind, T.DecimalType):  # unsigned 64-bit integers of Parquet are such
        if kind.scale <= 0:
            return values.cast("string")
        whole = values == F.floor(values)
        return F.when(whole, F.floor(values).cast("string")).otherwise(values.cast("string"))
    if isinstance(kind, T.FloatType | T.DoubleType):
        # floor() ends at the bounds of 64-bit integers: larger numbers are not equal to theirs
        whole = (values == F.floor(values)) & (F.abs(values) < 2.0**63)
        number = F.when(whole, F.floor(values).cast("string"))
        return F.when(~F.isnan(values), number.otherwise(values.cast("string")))
    return None


def label(values: Any) -> Any:
    """The labels that a Column of texts has, as a Column; Spark's texts have no halves of
    characters."""
    from pyspark.sql import functions as F

    seen = F.regexp_replace(values, f"[{UNSEEN}]+", "")
    return F.call_udf("btrim", seen, F.lit(BLANKS))  # as current_timezone
