"""Which partitions of a table are asked for: pure decisions on their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from howdah.config.options.partition import canonical, order_of, parse_spec
from howdah.errors import DataError, HowdahError, UsageError
from howdah.spark.hive_catalog import text_of

_NEWEST = 5
"""Partitions that a message lists."""

Spec = dict[str, str]
"""{partition column: value}"""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The partitions that a command asks for."""

    partitions: tuple[str, ...] = ()
    """column=value/column=value each; a column that is left out: every value of it."""
    since: str | None = None
    """column=value: that one and later ones."""
    until: str | None = None
    """column=value: that one and earlier ones."""

    def __post_init__(self) -> None:
        if self.partitions and (self.since or self.until):
            raise UsageError(
                "give --partition, or --since and --until, not both",
                remedy="--since ds=2026-10-01 takes every partition from that one on",
            )
        if not (self.partitions or self.since or self.until):
            raise UsageError(
                "no partition is asked for",
                expected="--partition ds=2026-11-01 (repeatable), or --since ds=2026-10-01",
            )
        for text in self.partitions:
            parse_spec(text, "--partition")
        for option, text in (("--since", self.since), ("--until", self.until)):
            if text is not None and len(parse_spec(text, option)) != 1:
                raise UsageError(
                    "one column is walked", where=option, expected="column=value", got=text
                )


def chosen(
    selection: Selection,
    columns: Sequence[str],
    there: Sequence[Spec],
    *,
    table: str,
    kinds: Mapping[str, str] = MappingProxyType({}),
) -> list[Spec]:
    """The partitions that are asked for, oldest first, each once.

    Args:
        columns: partition columns of the table.
        there: {column: value} of each of its partitions.
        table: for messages.
        kinds: {column: Spark's type}; a column without one is text.
    Raises:
        DataError: a column by which the table is not partitioned, or a partition that is not
            there; `problems` has each.
    """
    ordered = sorted(there, key=lambda one: tuple(map(order_of, one.values())))
    if not selection.partitions:
        return _walked(selection, columns, ordered, table, kinds)
    problems: list[HowdahError] = []
    wanted: list[Spec] = []
    for text in selection.partitions:
        spec = _known(parse_spec(text, "--partition"), columns, "--partition", table)
        requested = _canonical(spec, kinds).items()
        matches = [one for one in ordered if requested <= _canonical(one, kinds).items()]
        if not matches:
            problems.append(_missing(text, "--partition", ordered, table))
        wanted += [one for one in matches if one not in wanted]
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise DataError(f"{len(problems)} partitions are not there", where=table, problems=problems)
    return sorted(wanted, key=ordered.index)


def _walked(
    selection: Selection,
    columns: Sequence[str],
    ordered: Sequence[Spec],
    table: str,
    kinds: Mapping[str, str],
) -> list[Spec]:
    found = list(ordered)
    for option, text in (("--since", selection.since), ("--until", selection.until)):
        if text is None:
            continue
        ((column, value),) = _known(parse_spec(text, option), columns, option, table).items()
        kind = kinds.get(column, "string")
        bound = order_of(canonical(value, kind))
        later = option == "--since"
        found = [
            one
            for one in found
            if (at := order_of(canonical(one[column], kind))) == bound or (at > bound) == later
        ]
    if not found:
        asked = " ".join(filter(None, (selection.since, selection.until)))
        raise _missing(asked, "--since" if selection.since else "--until", ordered, table)
    return found


def _canonical(spec: Spec, kinds: Mapping[str, str]) -> Spec:
    return {c: canonical(value, kinds.get(c, "string")) for c, value in spec.items()}


def _known(spec: dict[str, str], columns: Sequence[str], option: str, table: str) -> dict[str, str]:
    """The spec under the table's own spelling of its columns."""
    by_lower = {column.lower(): column for column in columns}
    unknown = [column for column in spec if column.lower() not in by_lower]
    if unknown:
        raise DataError(
            f"the table is not partitioned by {', '.join(unknown)}",
            where=f"{option} of {table}",
            expected=", ".join(columns) or "no partition column at all",
            got=", ".join(spec),
            remedy="name partition columns",
        )
    return {by_lower[column.lower()]: value for column, value in spec.items()}


def _missing(text: str, option: str, ordered: Sequence[Spec], table: str) -> DataError:
    newest = [text_of(one) for one in ordered[-_NEWEST:]][::-1]
    return DataError(
        "the table has no such partition",
        where=f"{option} of {table}",
        expected=f"one that is there; the newest: {', '.join(newest)}"
        if newest
        else "a partition; the table has none yet",
        got=text,
        remedy="wait for it, or check its spelling; a directory that no statement has added is no"
        f" partition (MSCK REPAIR TABLE {table} adds those)",
    )
