"""`data.jdbc` and `data.as_of`: databases, and tables that keep their snapshots."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from typing import Any

from pydantic import Field, model_validator

from howdah.config.types import AnyPath, Query, Section

LAKES = ("iceberg", "delta")
"""Values of `data.format` whose tables keep snapshots."""

TABLE_NAME = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+){0,2}")
"""table, database.table, catalog.database.table"""


class JdbcOptions(Section):
    """How rows come from a PostgreSQL database (`format: jdbc`)."""

    url_file: AnyPath | None = None
    """File of mode 0600 with one line, postgresql://user:password@host:5432/database. null: the
    environment variable HOWDAH_JDBC_URL. So no password is in a configuration, log or ps."""
    partition_column: str | None = None
    """Column of numbers, dates or times by whose ranges several tasks read; null: one task reads
    all, unless `predicates` are given."""
    partitions: int = Field(default=8, ge=1, le=1_000)
    """Tasks, and connections at once, with `partition_column`."""
    predicates: list[Query] = []
    """SQL conditions, one for each task, instead of a column. Rows that fit none are not read, and
    rows that fit several are read as often."""
    fetch_size: int = Field(default=1_000, ge=1)
    """Rows that a task fetches at once."""
    watermark: str | None = None
    """Column that grows with every change (a time of change, a serial number): the source is
    identified by its maximum and the number of rows. null: by a digest of all rows, which reads
    them one time more before and after."""

    @model_validator(mode="after")
    def _one_way_to_divide(self) -> JdbcOptions:
        if self.partition_column is not None and self.predicates:
            raise ValueError("partition_column and predicates divide the rows: give one")
        return self


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
    since = at - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
