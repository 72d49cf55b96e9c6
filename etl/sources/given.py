"""What a source says of its rows' splits: a column, sources of their own, groups, times.

Rows get up to three more columns, and only those that `data.split` asks for (`columns`):

    given   string, the split that the data names; null: none
    groups  array<string>, "<column>=<value>" of each column of data.split.group that has a value
    moment  double, `options.split.moment` of the row's time
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    CharType,
    DataType,
    DateType,
    NumericType,
    StringType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from howdah.config.data import DataSection
from howdah.config.options.split import SplitOptions, SplitTime, is_number
from howdah.config.splits import Split
from howdah.errors import ConfigError
from howdah.etl.sources import hive, jdbc, lake
from howdah.etl.sources import source as sources
from howdah.etl.sources.source import Source, data_of, with_parts

GIVEN, GROUPS, MOMENT = "given", "groups", "moment"
BAD_SPLIT, BAD_TIME = "bad_split", "bad_time"
_DETAIL = 200

Find = Callable[[str, str], tuple[Column, DataType]]
"""(column's name, the key that names it) -> the column and its type."""
Key = Callable[[str, str], Column]
"""The same, as text."""


def columns(options: SplitOptions) -> dict[str, str]:
    """{column: Spark type} that rows have beside `reading.SCHEMA`."""
    kinds = {
        GIVEN: ("string", bool(options.given)),
        GROUPS: ("array<string>", bool(options.group)),
        MOMENT: ("double", options.time.column is not None),
    }
    return {name: kind for name, (kind, mapped) in kinds.items() if mapped}


# --------------------------------------------------------------------------------- sources
def resolve(data: DataSection) -> Source:
    """`source.resolve`, with the sources of the official sets as `parts`.

    Raises:
        ConfigError: they are of another kind of file.
    """
    return with_parts(sources.resolve(data), data, sources.resolve)


def resolved(spark: SparkSession, source: Source, data: DataSection) -> Source:
    """The source with its present state as identity, of the parts too, where Spark alone finds it.

    Raises:
        DataError: there is no such table, or it cannot be read.
    """
    resolve_one = _RESOLVED[source.kind]
    bare = replace(source, parts={})
    return with_parts(
        resolve_one(spark, bare, data),
        data,
        lambda split_data: resolve_one(spark, sources.resolve(split_data), split_data),
    )


_RESOLVED: dict[sources.Kind, Callable[[SparkSession, Source, DataSection], Source]] = {
    "hive": hive.resolved,
    "jdbc": jdbc.resolved,
    "iceberg": lake.resolved,
    "delta": lake.resolved,
}
"""Kinds of source whose state Spark knows."""


def pinned(source: Source) -> bool:
    """Whether what is read cannot change: a snapshot."""
    return source.kind in lake.KINDS


def by_spark(source: Source) -> bool:
    """Whether Spark must be asked for the source's state."""
    return source.kind in _RESOLVED


def each(source: Source, data: DataSection) -> Iterator[tuple[Split | None, Source, DataSection]]:
    """The source and its parts."""
    yield None, source, data
    for split, part in source.parts.items():
        yield split, part, data_of(data, split)


# --------------------------------------------------------------------------------- columns
def mapped(
    options: SplitOptions, split: Split | None, find: Find, key: Key
) -> tuple[dict[str, Column], Column, Column]:
    """(the columns, the reason why a row's split cannot be known, its detail).

    Args:
        split: of all rows, where a source of its own gives it.
    """
    nothing = F.lit(None).cast("string")
    made: dict[str, Column] = {}
    reason, detail = nothing, nothing
    if options.column is not None:
        value = F.trim(key(options.column, "data.split.column"))
        made[GIVEN], unknown = _split_of(value, options)
        reason = F.when(unknown, BAD_SPLIT)
        shown = F.when(value != "", F.substring(value, 1, _DETAIL))
        detail = F.when(unknown, F.coalesce(shown, F.lit("no split")))
    elif options.given:
        made[GIVEN] = nothing if split is None else F.lit(split)
    if options.group:
        values = [_group(name, key(name, "data.split.group")) for name in options.group]
        made[GROUPS] = F.filter(F.array(*values), lambda value: value.isNotNull())
    if options.time.column is not None:
        column, kind = find(options.time.column, "data.split.time.column")
        _refuse_other_cuts(options.time, kind)
        made[MOMENT] = _moment(column, kind)
        reason = F.when(made[MOMENT].isNull(), BAD_TIME)
        shown = F.substring(column.cast("string"), 1, _DETAIL)
        detail = F.when(made[MOMENT].isNull(), F.coalesce(shown, F.lit("no time")))
    return made, reason, detail


def _split_of(value: Column, options: SplitOptions) -> tuple[Column, Column]:
    """(the split that a value names, true where it names none)."""
    split = F.lit(None).cast("string")
    for word, name in options.words.items():
        split = F.when(F.lower(value) == word, name).otherwise(split)
    return split, split.isNull()


def _group(name: str, value: Column) -> Column:
    return F.when(F.trim(value) != "", F.concat(F.lit(f"{name}="), value))


def _moment(column: Column, kind: DataType) -> Column:
    """`options.split.moment` in Spark; null where a value is neither number nor date.

    Functions that PySpark 3.4 lacks are called by their names.
    """
    if isinstance(kind, NumericType):
        number = column.cast("double")
        return F.when(~F.isnan(number), number)
    if isinstance(kind, DateType | TimestampType | TimestampNTZType):  # in the session's zone, UTC
        return F.call_udf("unix_micros", column.cast("timestamp")).cast("double")
    if isinstance(kind, StringType | VarcharType | CharType):
        text = F.trim(column)
        number = F.when(text.rlike(r"^[-+]?\d+(\.\d+)?([eE][-+]?\d+)?$"), text)
        at = F.call_udf("try_to_timestamp", F.when(number.isNull(), text))
        at = F.call_udf("unix_micros", at)
        return F.coalesce(number.cast("double"), at.cast("double"))
    raise ConfigError(
        "a column is of another type",
        where="data.split.time.column",
        expected="a date, a time, a number, or a text with one of them",
        got=kind.simpleString(),
    )


def _refuse_other_cuts(time: SplitTime, kind: DataType) -> None:
    """A date as the cut of a column of numbers would send all rows to one side."""
    if isinstance(kind, StringType | VarcharType | CharType):
        return  # each text is a number or a date by itself
    for key, cut in time.cuts.items():
        if is_number(cut) != isinstance(kind, NumericType):
            raise ConfigError(
                "a cut point must have the type of its column",
                where=f"data.split.time.{key}",
                expected="a number" if isinstance(kind, NumericType) else "a date or time",
                got=f"{cut!r}; column {time.column} is {kind.simpleString()}",
            )
