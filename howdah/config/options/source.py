"""`data.jdbc` and `data.as_of`: databases, and tables that keep their snapshots."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from typing import Any

from howdah.config.types import AnyPath, Rare, Section

LAKES = ("iceberg", "delta")
"""Values of `data.format` whose tables keep snapshots."""

TABLE_NAME = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+){0,2}")
"""table, database.table, catalog.database.table"""


class JdbcOptions(Section):
    """How rows come from a PostgreSQL database (`format: jdbc`)."""

    url_file: Rare[AnyPath | None] = None
    """File of mode 0600 with one line, postgresql://user:password@host:5432/database, so that no
    password is in a configuration, log or process list. null: the environment variable
    HOWDAH_JDBC_URL."""
    partition_column: Rare[str | None] = None
    """Column of numbers, dates or times by whose ranges eight tasks read. null: one task reads
    all rows."""
    watermark: Rare[str | None] = None
    """Column that grows with every change, such as a time of change or a serial number. The source
    is identified by its maximum and the number of rows. null: it is identified by a digest of all
    rows, which reads them once more before and after."""


def check_as_of(value: Any) -> Any:
    """`data.as_of` as a whole number, or as ISO 8601 text; YAML reads times itself.

    >>> check_as_of("12"), check_as_of("2026-11-01"), check_as_of(None)
    (12, '2026-11-01', None)
    """
    if isinstance(value, datetime | date):
        value = value.isoformat()
    if isinstance(value, str):
        if re.fullmatch(r"\d+", value.strip()):
            return int(value)
        try:
            datetime.fromisoformat(value)
        except ValueError:
            raise ValueError(
                f"as_of is a snapshot's id, a version or a time such as 2026-11-01T06:00:00Z; got"
                f" {value!r}"
            ) from None
    if isinstance(value, bool) or (isinstance(value, int) and value < 0):
        raise ValueError(f"as_of is a snapshot's id, a version or a time; got {value!r}")
    return value


def moment_of(text: str) -> int:
    """Microseconds since 1970 of an ISO 8601 time, in UTC where it names no zone.

    >>> moment_of("1970-01-01T00:00:01"), moment_of("1970-01-01T01:00:00+01:00")
    (1000000, 0)
    """
    at = datetime.fromisoformat(text)
    at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
