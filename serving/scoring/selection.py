"""The choice of a table's partitions by their names. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from howdah.config.options.partition import canonical, order_of, parse_spec, text_of
from howdah.errors import DataError, HowdahError, UsageError

_NEWEST = 5
"""Number of partitions that a message lists."""

Spec = dict[str, str]
"""{partition column: value}."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The partitions that a command selects."""

    partitions: tuple[str, ...] = ()
    """column=value/column=value each; an omitted column selects all its values."""
    since: str | None = None
    """column=value: this partition and later ones."""
    until: str | None = None
    """column=value: this partition and earlier ones."""

    def __post_init__(self) -> None:
        if self.partitions and (self.since or self.until):
            raise UsageError(
                "give either --partition, or --since and --until",
                remedy="--since ds=2026-10-01 takes every partition from that one on",
            )
        if not (self.partitions or self.since or self.until):
            raise UsageError(
                "no partition is selected",
                expected="--partition ds=2026-11-01 (repeatable), or --since ds=2026-10-01",
            )
        for text in self.partitions:
            parse_spec(text, "--partition")
        for option, text in (("--since", self.since), ("--until", self.until)):
            if text is not None and len(parse_spec(text, option)) != 1:
                raise UsageError(
                    "not a value of one column", where=option, expected="column=value", got=text
                )


def chosen(
    selection: Selection,
    columns: Sequence[str],
    partitions: Sequence[Spec],
    *,
    table: str,
    kinds: Mapping[str, str] = MappingProxyType({}),
) -> list[Spec]:
    """Return the selected partitions, oldest first, each once.

    Args:
        columns: partition columns of the table.
        partitions: {column: value} of each of its partitions.
        table: named in messages.
        kinds: {column: Spark's type}; a column without one is text.
    Raises:
        DataError: the table is not partitioned by a column, or lacks a partition; `problems` has
            each.
    """
    ordered = sorted(partitions, key=lambda one: tuple(map(order_of, one.values())))
    if not selection.partitions:
        return _walked(selection, columns, ordered, table, kinds)
    problems: list[HowdahError] = []
    values = [_canonical(one, kinds).items() for one in ordered]
    selected: set[int] = set()
    for text in selection.partitions:
        spec = _spelt(parse_spec(text, "--partition"), columns, "--partition", table)
        requested = _canonical(spec, kinds).items()
        matches = [number for number, items in enumerate(values) if requested <= items]
        if not matches:
            problems.append(_missing(text, "--partition", ordered, table))
        selected.update(matches)
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise DataError(f"{len(problems)} partitions do not exist", where=table, problems=problems)
    return [ordered[number] for number in sorted(selected)]


def _walked(
    selection: Selection,
    columns: Sequence[str],
    ordered: Sequence[Spec],
    table: str,
    kinds: Mapping[str, str],
) -> list[Spec]:
    selected = list(ordered)
    for option, text in (("--since", selection.since), ("--until", selection.until)):
        if text is None:
            continue
        ((column, value),) = _spelt(parse_spec(text, option), columns, option, table).items()
        kind = kinds.get(column, "string")
        bound = order_of(canonical(value, kind))
        later = option == "--since"
        selected = [
            one
            for one in selected
            if (at := order_of(canonical(one[column], kind))) == bound or (at > bound) == later
        ]
    if not selected:
        bounds = " ".join(filter(None, (selection.since, selection.until)))
        raise _missing(bounds, "--since" if selection.since else "--until", ordered, table)
    return selected


def _canonical(spec: Spec, kinds: Mapping[str, str]) -> Spec:
    return {c: canonical(value, kinds.get(c, "string")) for c, value in spec.items()}


def _spelt(spec: dict[str, str], columns: Sequence[str], option: str, table: str) -> dict[str, str]:
    """Return the spec with the table's spelling of its columns."""
    by_lower = {column.lower(): column for column in columns}
    unknown = [column for column in spec if column.lower() not in by_lower]
    if unknown:
        raise DataError(
            f"the table is not partitioned by {', '.join(unknown)}",
            where=f"{option} of {table}",
            expected=", ".join(columns) or "no partition column",
        )
    return {by_lower[column.lower()]: value for column, value in spec.items()}


def _missing(text: str, option: str, ordered: Sequence[Spec], table: str) -> DataError:
    newest = [text_of(one) for one in ordered[-_NEWEST:]][::-1]
    return DataError(
        "the table has no such partition",
        where=f"{option} of {table}",
        expected=f"an existing one; the newest: {', '.join(newest)}"
        if newest
        else "a partition; the table has none yet",
        got=text,
        remedy=f"MSCK REPAIR TABLE {table} adds directories that no statement has added",
    )
