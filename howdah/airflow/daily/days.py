"""Decisions about a run's day, as pure functions: they use no file, clock or network."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from howdah.airflow.retries import ENDED
from howdah.config.options.partition import order_of, parse, text_of
from howdah.errors import ConfigError

PARTITIONS = "data.partitions"
"""Key of an event's extra "howdah" that names the day."""


@dataclass(frozen=True, kw_only=True)
class Day:
    """The partitions of a run, and the source of their names."""

    partitions: tuple[str, ...]
    by: str
    """"the form", "an event" or "the date"."""

    since: str | None = None
    """Earliest partition that is scored again if its rows have changed; only with a date."""

    @property
    def name(self) -> str:
        """All partitions, for messages and names."""
        return ", ".join(self.partitions)


def of_date(pattern: str, day: datetime) -> str:
    """The partition of a date.

    >>> of_date("ds=%Y-%m-%d", datetime(2026, 11, 1))
    'ds=2026-11-01'
    """
    return day.strftime(pattern)


def since(pattern: str, day: datetime, back: int) -> str | None:
    """The partition `back` days before a date, where `howdah score --since` begins; None: `back` is
    0, or sorting by one column does not put the partitions into the order of their days.

    >>> since("ds=%Y-%m-%d", datetime(2026, 11, 1), 3)
    'ds=2026-10-29'
    >>> since("country=de/ds=%Y%m%d", datetime(2026, 11, 1), 3)
    >>> since("ds=%d.%m.%Y", datetime(2026, 11, 1), 3)
    """
    if back < 1 or len(parse(of_date(pattern, day))) != 1:
        return None
    # Pairs within a month, across its end, across a year's end, from one digit to two.
    shown = [
        next(iter(parse(of_date(pattern, day.replace(year=year, month=month, day=one))).values()))
        for year, month, one in (
            (2025, 9, 9), (2025, 9, 10), (2025, 10, 1), (2025, 12, 31), (2026, 1, 1), (2026, 2, 10)
        )
    ]  # fmt: skip
    if sorted(set(shown), key=order_of) != shown:
        return None
    return of_date(pattern, day - timedelta(days=back))


def of_events(extras: Iterable[Any]) -> list[str]:
    """The distinct partitions that Asset events name, in the order of the events.

    Args:
        extras: each event's extra; under "howdah" it may hold data.partitions.
    Raises:
        ConfigError: data.partitions of an event is not {column: [values]}.
    """
    partitions: list[str] = []
    for extra in extras:
        named = (extra or {}).get("howdah") or {}
        value = named.get(PARTITIONS) if isinstance(named, Mapping) else None
        if not value:
            continue
        if not isinstance(value, Mapping):
            raise ConfigError(
                "data.partitions of an Asset event cannot be read",
                where=f'the event\'s extra, "howdah", {PARTITIONS}',
                expected='{column: [values]}, such as {"ds": ["2026-11-01"]}',
                got=repr(value),
            )
        columns = [(column, values if isinstance(values, list) else [values])
                   for column, values in value.items()]  # fmt: skip
        for row in itertools.product(*(values for _, values in columns)):
            pairs = dict(zip((column for column, _ in columns), map(str, row), strict=True))
            partitions.append(text_of(parse(text_of(pairs))))
    return list(dict.fromkeys(partitions))


def merged(partitions: Sequence[str]) -> dict[str, list[str]]:
    """The partitions as `data.partitions`: {column: [values]}.

    Raises:
        ConfigError: their columns differ, or the values also name further partitions.
    """
    rows = [parse(partition) for partition in partitions]
    columns = list(rows[0])
    if any(list(row) != columns for row in rows):
        got = "; ".join(partitions)
        raise ConfigError("the partitions of one run must have the same columns",
                          where="partition", got=got)  # fmt: skip
    values = {column: list(dict.fromkeys(row[column] for row in rows)) for column in columns}
    if math.prod(map(len, values.values())) != len({text_of(row) for row in rows}):
        raise ConfigError(
            "the partitions of one run may differ in one column only",
            where="partition",
            got="; ".join(partitions),
            remedy="trigger a run for each",
        )
    return values


def cooling(last: datetime | None, now: datetime, hours: float) -> datetime | None:
    """End of the cool-down, in which an alarm does not start a retraining; None: it is over.

    Args:
        last: start of the last retraining; None: this is the first.
    """
    until = last + timedelta(hours=hours) if last is not None else None
    return until if until is not None and now < until else None


def ahead(states: Mapping[str, Mapping[str, Any]], me: str, *, turn: str, last: str) -> list[str]:
    """Runs of a DAG that a run has to wait for, unless they are over.

    These are the runs that have had their turn and not ended, and those that wait for it with a
    smaller id: the ids of a back-fill's runs sort by date.

    Args:
        states: {run id: {task id: state}} of the tasks `turn` and `last`.
        me: id of the run that waits.
    """
    runs = []
    for run, tasks in states.items():
        began, ended = (str(tasks.get(name) or "") in ENDED for name in (turn, last))
        if run != me and not ended and (began or run < me):
            runs.append(run)
    return sorted(runs)
