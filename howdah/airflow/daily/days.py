"""Which day a run is for, and what follows: pure decisions, of no file, clock or network."""

from __future__ import annotations

import itertools
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
    """The partitions that a run is for, and who named them."""

    partitions: tuple[str, ...]
    by: str
    """"the form", "an event" or "the date"."""

    since: str | None = None
    """For a date: the earliest partition that is scored again if its rows have changed."""

    @property
    def name(self) -> str:
        """All of them, for messages and names."""
        return ", ".join(self.partitions)


def of_date(pattern: str, day: datetime) -> str:
    """The partition of a date.

    >>> of_date("ds=%Y-%m-%d", datetime(2026, 11, 1))
    'ds=2026-11-01'
    """
    return day.strftime(pattern)


def since(pattern: str, day: datetime, back: int) -> str | None:
    """The partition so many days before a date, from which on `howdah score --since` walks; None:
    `back` is 0, or the partitions are not in their order by one column.

    >>> since("ds=%Y-%m-%d", datetime(2026, 11, 1), 3)
    'ds=2026-10-29'
    >>> since("country=de/ds=%Y%m%d", datetime(2026, 11, 1), 3)
    >>> since("ds=%d.%m.%Y", datetime(2026, 11, 1), 3)
    """
    if back < 1 or len(parse(of_date(pattern, day))) != 1:
        return None
    # Within a month, over its end, over a year's end, from one digit to two.
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
    """The partitions that Asset events name, in their order, each once.

    Args:
        extras: each event's extra; under "howdah" it may hold data.partitions.
    Raises:
        ConfigError: data.partitions of an event has another form.
    """
    found: list[str] = []
    for extra in extras:
        named = (extra or {}).get("howdah") or {}
        given = named.get(PARTITIONS) if isinstance(named, Mapping) else None
        if not given:
            continue
        if not isinstance(given, Mapping):
            raise ConfigError(
                "an Asset's event names no partition",
                where=f'the event\'s extra, "howdah", {PARTITIONS}',
                expected='{column: [values]}, such as {"ds": ["2026-11-01"]}',
                got=repr(given),
            )
        columns = [(column, values if isinstance(values, list) else [values])
                   for column, values in given.items()]  # fmt: skip
        for row in itertools.product(*(values for _, values in columns)):
            pairs = dict(zip((column for column, _ in columns), map(str, row), strict=True))
            found.append(text_of(parse(text_of(pairs))))
    return list(dict.fromkeys(found))


def merged(partitions: Sequence[str]) -> dict[str, list[str]]:
    """The same as `data.partitions`: {column: [values]}.

    Raises:
        ConfigError: together they name more than these partitions, or have other columns.
    """
    rows = [parse(partition) for partition in partitions]
    columns = list(rows[0])
    if any(list(row) != columns for row in rows):
        raise ConfigError(
            "the partitions of one run have other columns", where="partition",
            expected=", ".join(columns), got="; ".join(partitions),
        )  # fmt: skip
    values = {column: list(dict.fromkeys(row[column] for row in rows)) for column in columns}
    if len(list(itertools.product(*values.values()))) != len({text_of(row) for row in rows}):
        raise ConfigError(
            "one run cannot append just these partitions", where="partition",
            expected="partitions that differ in one column", got="; ".join(partitions),
            remedy="trigger a run for each",
        )  # fmt: skip
    return values


def cooling(last: datetime | None, now: datetime, hours: float) -> datetime | None:
    """Until when no alarm starts a retraining; None: it may start.

    Args:
        last: when the last one began; None: there was none.
    """
    until = last + timedelta(hours=hours) if last is not None else None
    return until if until is not None and now < until else None


def ahead(states: Mapping[str, Mapping[str, Any]], me: str, *, turn: str, last: str) -> list[str]:
    """Runs of a DAG that a run has to wait for, unless they are over.

    Those that have had their turn and not ended, and of those that wait for it the ones with a
    lesser id: the ids of a back-fill's runs have their dates in order.

    Args:
        states: {run id: {task id: state}} of the tasks `turn` and `last`.
        me: the run's own id.
    """
    found = []
    for run, tasks in states.items():
        began, ended = (str(tasks.get(name) or "") in ENDED for name in (turn, last))
        if run != me and not ended and (began or run < me):
            found.append(run)
    return sorted(found)
