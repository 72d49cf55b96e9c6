"""How the key of a row is spelt as its id: one spelling in the ETL, predictions, scores and forget.

    text                        as it is
    whole number of any type    without a point: 5, 5.0 and 1E7 are 5, 5 and 10000000
    other number                as Java spells it: 0.5, 1.25E-4; NaN is not an id
    boolean                     true, false
    date                        2026-11-01
    time without a zone         2026-11-01T10:00:00.5
    time with a zone            the same in UTC, with a Z at its end

pandas makes a column of doubles of whole numbers with a gap, and a database's timestamp comes with
or without a zone, by its driver: the id must not depend on which tool wrote the file. `text` spells
a Python value, `texts` an Arrow column; data/spark/ids.py has the same for Spark.
"""

from __future__ import annotations

import datetime
import decimal
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

_PLAIN_FROM, _PLAIN_BELOW = 1e-3, 1e7
"""Between these Java writes a number that is not whole without an exponent."""


def text(value: object) -> str | None:
    """The id that a key is; None: the value is null or NaN, which is not a key.

    >>> [text(one) for one in (5, 5.0, 1e7, 0.5, 1.25e-4, True, " a ", None, float("nan"))]
    ['5', '5', '10000000', '0.5', '1.25E-4', 'true', ' a ', None, None]
    >>> text(datetime.datetime(2026, 11, 1, 10, 0, 0, 500000)), text(datetime.date(2026, 11, 1))
    ('2026-11-01T10:00:00.5', '2026-11-01')
    """
    if value is None:
        return None
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, datetime.datetime):
        return _moment(value)
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return _decimal(value)
    if hasattr(value, "dtype"):  # NumPy's: a float32's shortest digits are others than a float's
        kind = value.dtype.kind
        if kind == "f":
            return _float(float(value), str(value))
        value = value.item()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return _float(value, repr(value))
    return str(value)


def texts(values: pa.Array | pa.ChunkedArray) -> list[str | None]:
    """`text` of each value of an Arrow column; nanoseconds that are not zero are kept."""
    import numpy as np
    import pyarrow as pa

    kind = values.type
    if pa.types.is_dictionary(kind):
        return texts(values.cast(kind.value_type))
    if pa.types.is_float32(kind) or pa.types.is_float16(kind):
        single = np.float32 if pa.types.is_float32(kind) else np.float16
        return [None if one is None else text(single(one)) for one in values.to_pylist()]
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        numbers = values.cast(pa.int64()).to_pylist()
        return [None if one is None else _nanoseconds(one, kind.tz is not None) for one in numbers]
    return [text(one) for one in values.to_pylist()]


def _moment(value: datetime.datetime) -> str:
    zone = "" if value.tzinfo is None else "Z"
    if value.tzinfo is not None:
        value = value.astimezone(datetime.UTC).replace(tzinfo=None)
    spelt = value.isoformat()
    return (spelt.rstrip("0") if "." in spelt else spelt) + zone


def _nanoseconds(since: int, zone: bool) -> str:
    seconds, rest = divmod(since, 10**9)
    at = datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=seconds)
    fraction = f".{rest:09d}".rstrip("0").rstrip(".")
    return at.isoformat() + fraction + ("Z" if zone else "")


def _decimal(value: decimal.Decimal) -> str | None:
    if not value.is_finite():
        return None
    return str(int(value)) if value == value.to_integral_value() else f"{value:f}"


def _float(value: float, shortest: str) -> str | None:
    """Spell a number like Java's Double.toString, except whole numbers of up to 64 bits.

    Args:
        shortest: the number's shortest digits, in Python's spelling.
    """
    if math.isnan(value):
        return None
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == int(value) and abs(value) < 2.0**63:
        return str(int(value))
    sign, digits, exponent = decimal.Decimal(shortest).normalize().as_tuple()
    if _PLAIN_FROM <= abs(value) < _PLAIN_BELOW:
        return f"{decimal.Decimal(shortest):f}"
    figures = "".join(map(str, digits))
    tail = figures[1:] or "0"
    return f"{'-' if sign else ''}{figures[0]}.{tail}E{int(exponent) + len(figures) - 1}"
