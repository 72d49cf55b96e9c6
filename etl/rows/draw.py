"""Draw splits of a given size, or of each class its share, in whole units.

A unit is what must stay together: a cluster of duplicates, or what `etl/rows/units.py` joins. Units
are ordered by a hash of their names, and the first of them that have as many rows as wanted are
test, those after them validation. Rows are counted inside buckets of the hash, on top of the rows
of the buckets before, so that no task sorts a whole class: the way of `etl/write/shards.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

import numpy as np
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from howdah.config.options.split import SplitOptions
from howdah.config.splits import TEST, TRAIN, VALIDATION, Split
from howdah.config.tasks import Task
from howdah.errors import DataError
from howdah.etl.sources.given import GIVEN
from howdah.etl.workspace.kept import Kept
from howdah.etl.workspace.scratch import local_table

ROWS_PER_BUCKET = 50_000
_HEX_DIGITS = 24
_BINS = 4_096
_FARTHEST = 1e300
"""Moments beyond this, infinite ones too, are one moment."""
_TENTHS = [n / 10 for n in range(1, 10)]
_SAMPLED = 100_000
"""Rows whose targets the driver takes in, to find the tenths."""


@dataclass(frozen=True, kw_only=True)
class Stratum:
    """Units that are divided among themselves: those of a class, or all."""

    goals: Mapping[Split, float]
    """{test, validation: rows}, of the splits that are drawn."""
    units: int
    fills: bool
    """Each split gets a unit, where there are as many."""

    @property
    def limit(self) -> int:
        """Rows from which a unit comes after all smaller ones: it would fill a small split."""
        return math.ceil(max([1.0, *self.goals.values()]))

    @property
    def first(self) -> list[Split]:
        """Splits of the first units."""
        splits = [*self.goals, TRAIN]
        return splits if self.fills and self.units >= len(splits) else []


def goals_of(
    sizes: Mapping[Split, float], strata: Mapping[int, int], total: int
) -> dict[int, dict[Split, float]]:
    """{stratum: {split: rows}}; a size is a fraction below 1, or rows of all strata together.

    >>> goals_of({"test": 30, "validation": 0.1}, {0: 100, 1: 200}, 300)[1]
    {'test': 20.0, 'validation': 20.0}
    """
    share = {split: size if size < 1 else size / total for split, size in sizes.items()}
    return {n: {split: part * rows for split, part in share.items()} for n, rows in strata.items()}


def draw(
    rows: DataFrame,
    options: SplitOptions,
    drawn: list[Split],
    temporary: Kept,
    *,
    task: Task = "single_label",
) -> DataFrame:
    """`rows` with the column `split`.

    Args:
        rows: label, reason, group, and `given` where the data gives splits. Of rows with a reason
            the split means nothing.
        drawn: splits that the data does not give: test, validation or both.
        task: what labels are: each label of a set counts as a class, of targets each tenth.

    Raises:
        DataError: more rows are asked for than there are.
    """
    given_split = F.col(GIVEN) if GIVEN in rows.columns else F.lit(None).cast("string")
    open_ = rows.where(F.col("reason").isNull() & (given_split.isNull() | (given_split == TRAIN)))
    units = _units(open_, options, task).persist()
    temporary.append(units)
    totals = units.groupBy("stratum").agg(F.sum("rows").alias("rows"), F.count("*").alias("units"))
    counts = {r["stratum"]: (r["rows"], r["units"]) for r in totals.collect()}
    total = sum(of for of, _ in counts.values())
    sizes = {split: getattr(options, split) for split in (TEST, VALIDATION) if split in drawn}
    sizes = {split: size for split, size in sizes.items() if size}
    refuse_too_few(sizes, total)
    goals = goals_of(sizes, {stratum: of for stratum, (of, _) in counts.items()}, total)
    strata = {
        stratum: Stratum(
            units=number,
            goals=goals[stratum],
            fills=options.stratify is not None and of >= options.stratify,
        )
        for stratum, (of, number) in counts.items()
    }
    if not strata:
        return rows.withColumn("split", F.coalesce(given_split, F.lit(TRAIN)))
    assigned = _assigned(_ranked(units, strata), strata)
    split = F.when(given_split.isin(TEST, VALIDATION), given_split).otherwise(
        F.coalesce(F.col("drawn"), F.lit(TRAIN))
    )
    return rows.join(assigned, "group", "left").withColumn("split", split).drop("drawn")


def refuse_too_few(sizes: Mapping[Split, float], total: int) -> None:
    """Raise if nothing would be left for train.

    Args:
        sizes: {split: a fraction below 1, or rows}.

    Raises:
        DataError: with the sizes and the rows.
    """
    needed = sum(size if size >= 1 else size * total for size in sizes.values())
    if total and needed >= total:
        shown = ", ".join(f"{split} {size:,}" for split, size in sizes.items())
        raise DataError(
            "validation and test take all rows",
            where="data.split." + " and data.split.".join(sizes),
            expected=f"fewer than the {total:,} rows to divide",
            got=shown,
        )


def _units(rows: DataFrame, options: SplitOptions, task: Task = "single_label") -> DataFrame:
    """(group, order, rows, stratum) of each unit: a stratum for the class that is rarest in it."""
    units = rows.groupBy("group").agg(F.count("*").alias("rows"))
    if options.stratify is None:
        units = units.withColumn("stratum", F.lit(0))
    else:
        classes = _classes(rows.select("group", "label"), task)
        counts = {r["label"]: r["count"] for r in classes.groupBy("label").count().collect()}
        rare = sorted(counts, key=lambda label: (counts[label], label))
        numbers = local_table(
            rows.sparkSession,
            [(label, n) for n, label in enumerate(rare)],
            "label string, number int",
        )
        strata = classes.join(F.broadcast(numbers), "label").groupBy("group")
        units = units.join(strata.agg(F.min("number").alias("stratum")), "group", "left")
        # of rows without any label
        units = units.withColumn("stratum", F.coalesce("stratum", F.lit(len(rare))))
    order = F.sha2(F.concat(F.lit(f"{options.seed}:"), F.col("group")), 256)
    return units.withColumn("order", F.substring(order, 1, _HEX_DIGITS))


def _classes(rows: DataFrame, task: Task) -> DataFrame:
    """(group, label) of each class that a row counts for."""
    if task == "single_label":
        return rows
    if task == "multi_label":
        return rows.withColumn("label", F.explode(F.from_json("label", "array<string>")))
    if task != "regression":
        assert_never(task)
    target = F.col("label").cast("double")
    tenth = F.lit(0)
    for bound in _tenths(rows.select("group", target.alias("target"))):
        tenth = tenth + (target > bound).cast("int")
    return rows.withColumn("label", tenth.cast("string"))


def _tenths(rows: DataFrame) -> list[float]:
    """Bounds between the tenths of the targets: of all rows, or of a sample of `_SAMPLED`.

    The sample is of the rows whose hashes are the least, and exact: Spark's approximate quantiles
    are others with another number of partitions, and rows near a bound went to another split.

    Args:
        rows: (group, target).
    """
    least = rows.withColumn("hash", F.xxhash64("group", "target"))
    sample = least.orderBy("hash", "group", "target").limit(_SAMPLED).select("target")
    targets = np.sort(sample.toPandas()["target"].to_numpy())
    if not len(targets):
        return []
    return np.unique(np.quantile(targets, _TENTHS, method="inverted_cdf")).tolist()


def bucket_digits(units: int) -> int:
    """Hex digits of the hash that name a bucket, so that it has some ROWS_PER_BUCKET units or rows.

    >>> bucket_digits(50_000), bucket_digits(50_001), bucket_digits(100_000_000)
    (0, 1, 3)
    """
    return max(0, math.ceil(math.log(max(1.0, units / ROWS_PER_BUCKET), 16)))


def _ranked(units: DataFrame, strata: Mapping[int, Stratum]) -> DataFrame:
    """The units with `start`, the rows before them in their stratum, and `place`, the units."""
    spark = units.sparkSession
    table = [(n, one.limit, bucket_digits(one.units)) for n, one in strata.items()]
    table = F.broadcast(local_table(spark, table, "stratum int, most bigint, digits int"))
    placed = units.join(table, "stratum").select(
        "group",
        "rows",
        "stratum",
        "order",
        (F.col("rows") > F.col("most")).alias("large"),
        F.expr("substring(order, 1, digits)").alias("bucket"),
    )
    keys = ["stratum", "large", "bucket"]
    counts = placed.groupBy(*keys).agg(F.sum("rows").alias("rows"), F.count("*").alias("units"))
    before: dict[int, tuple[int, int]] = {}
    offsets = []
    for *key, rows, number in sorted(tuple(r) for r in counts.collect()):
        start, place = before.get(key[0], (0, 0))
        offsets.append((*key, start, place))
        before[key[0]] = (start + rows, place + number)
    schema = "stratum int, large boolean, bucket string, rows_before bigint, units_before bigint"
    inside = Window.partitionBy(*keys).orderBy("order", "group")
    earlier = inside.rowsBetween(Window.unboundedPreceding, -1)
    ranked = placed.select(
        "*",
        F.coalesce(F.sum("rows").over(earlier), F.lit(0)).alias("inside"),
        (F.row_number().over(inside) - 1).alias("number"),
    ).join(F.broadcast(local_table(spark, offsets, schema)), keys)
    return ranked.select(
        "group",
        "rows",
        "stratum",
        (F.col("rows_before") + F.col("inside")).alias("start"),
        (F.col("units_before") + F.col("number")).alias("place"),
    )


def _assigned(ranked: DataFrame, strata: Mapping[int, Stratum]) -> DataFrame:
    """(group, drawn) of the ranked units."""
    firsts: dict[int, dict[int, int]] = {}
    if any(one.first for one in strata.values()):
        few = ranked.where(F.col("place") < 3).select("stratum", "place", "rows")
        for row in few.collect():
            firsts.setdefault(row["stratum"], {})[row["place"]] = row["rows"]
    table = [
        (number, one.first, *ends(one, firsts.get(number, {}))) for number, one in strata.items()
    ]
    schema = "stratum int, first array<string>, taken bigint, test_end double, end double"
    table = F.broadcast(local_table(ranked.sparkSession, table, schema))
    rows = ranked.join(table, "stratum")
    middle = F.col("start") - F.col("taken") + F.col("rows") / 2
    place = F.col("place").cast("int")
    drawn = (
        F.when(place < F.size("first"), F.get("first", place))
        .when(middle < F.col("test_end"), TEST)
        .when(middle < F.col("end"), VALIDATION)
        .otherwise(TRAIN)
    )
    return rows.select("group", drawn.alias("drawn"))


def ends(stratum: Stratum, rows: Mapping[int, int]) -> tuple[int, float, float]:
    """(rows of the units that are assigned first, where test ends after them, where validation
    does): a split gets the units whose middle lies in its part.

    Args:
        rows: {place: rows} of the first units.
    """
    taken = {split: rows[place] for place, split in enumerate(stratum.first)}
    test = max(0.0, stratum.goals.get(TEST, 0.0) - taken.get(TEST, 0))
    validation = max(0.0, stratum.goals.get(VALIDATION, 0.0) - taken.get(VALIDATION, 0))
    return sum(taken.values()), test, test + validation


# --------------------------------------------------------------------------------- by time
def newest(rows: DataFrame, column: str, count: float) -> float | None:
    """The moment from which on rows are the newest `count`, or as near as whole moments come.

    Args:
        rows: the rows to choose from; at least one is taken if there is any.
        column: a column of numbers.
        count: rows.

    Exact, with `_BINS` counts at once on the driver. None: there are no rows.
    """
    newer, after = 0, None
    # Infinite moments would make bins of infinite width, which do not come to an end.
    moment = F.least(F.greatest(F.col(column), F.lit(-_FARTHEST)), F.lit(_FARTHEST))
    rows = rows.select(moment.alias(column))
    low, high = rows.agg(F.min(column), F.max(column)).first()
    while low is not None and low < high:
        width = (high - low) / _BINS
        number = F.least(F.floor((F.col(column) - low) / width), F.lit(_BINS - 1))
        inside = rows.where((F.col(column) >= low) & (F.col(column) <= high))
        bins = inside.groupBy(number.alias("bin")).agg(
            F.count("*").alias("n"), F.min(column).alias("low"), F.max(column).alias("high")
        )
        for row in sorted(bins.collect(), key=lambda one: -one["bin"]):
            if newer + row["n"] >= count:
                break
            newer, after = newer + row["n"], row["low"]
        else:
            return after  # fewer rows than asked for
        low, high = row["low"], row["high"]
    if low is None or after is None:
        return low
    whole = rows.where(F.col(column) == low).count()
    return low if newer + whole - count < count - newer else after
