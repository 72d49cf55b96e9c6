"""New rows against the ledger: which are copies of old ones, and which split the others go to.

Old rows are never moved, dropped or renamed. A new row that is like an old one is removed; under
another label it stays in the old one's split, with all of its group. A group that would have to go
to two splits is rejected (bridges_splits): kept, it would be like rows of both.

The part of the same name, where its source has changed, is compared as well. Rows of it that are
still there (same id, same text) keep split and cluster; only the others are judged.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from etl.history import ledger
from etl.history.past import Past
from etl.rows.split import split_column
from howdah.config.data import DataSection
from howdah.config.splits import TEST, VALIDATION
from howdah.spark.paths import spark_path


@dataclass(frozen=True, kw_only=True)
class Separated:
    """The rows that passed the gate."""

    fresh: DataFrame
    """id, text, label, key: to be judged."""
    carried: DataFrame | None
    """... of the part's older state, with split, group, and reason and detail, which are null."""
    known: DataFrame | None
    """... whose id an old row of another part has: rejected, with reason and detail."""


def separate(passed: DataFrame, past: Past, data: DataSection) -> Separated:
    """Take out what needs no comparison: rows that are in the dataset by their id.

    Ids that are hashes of texts come again with the same text alone; that is judged by its text.
    """
    spark = passed.sparkSession
    passed = passed.select("id", "text", "label", "key")
    nothing = F.lit(None).cast("string")
    known = carried = None
    others = past.paths_of_rows(own=False) if data.columns.id is not None else []
    if others:
        ids = spark.read.parquet(*map(spark_path, others)).select("id")
        detail = F.lit("an older part has a row of this id").alias("detail")
        known = passed.join(ids, "id", "left_semi").select(
            "*", F.lit("known_id").alias("reason"), detail, F.col("id").alias("group")
        )
        passed = passed.join(ids, "id", "left_anti")
    if own := past.paths_of_rows(own=True):
        old = spark.read.parquet(*map(spark_path, own))
        old = old.select("id", "key", "split", F.col("cluster").alias("group"))
        carried = passed.join(old, ["id", "key"]).select(
            "id", "text", "label", "key", nothing.alias("reason"), nothing.alias("detail"),
            "group", "split",
        )  # fmt: skip
        passed = passed.join(old.select("id", "key"), ["id", "key"], "left_anti")
    return Separated(fresh=passed, carried=carried, known=known)


def place(
    rows: DataFrame,
    separated: Separated,
    past: Past,
    data: DataSection,
    temporary: list[DataFrame],
) -> DataFrame:
    """The rows with their split, and what is like old rows with its reason.

    Args:
        rows: fresh rows as de-duplicated among themselves: id, text, label, key, reason, detail,
            group.
        temporary: data frames persisted on the way are appended; the caller unpersists them.
    """
    sizes = data.split
    if past.parent is None:
        return rows.withColumn("split", split_column("group", sizes))
    frozen = data.append.frozen
    sizes = sizes.model_copy(update={name: 0.0 for name in frozen if name in (TEST, VALIDATION)})
    hits = _hits(rows, separated, past, data, temporary)
    met = rows.join(hits, "id", "left").persist()
    temporary.append(met)
    stay = met.where(F.col("reason").isNull() & F.col("fate").isNull())
    groups = stay.groupBy("group").agg(
        F.array_sort(F.array_distinct(F.flatten(F.collect_list("splits")))).alias("of_group"),
        F.min("cluster").alias("joined"),
    )
    met = met.join(groups.where(F.size("of_group") > 0), "group", "left")
    count = F.coalesce(F.size("of_group"), F.lit(0))
    left = F.col("fate").isNull()
    held = F.arrays_overlap("of_group", F.array(*map(F.lit, frozen))) if frozen else F.lit(False)
    reason = (
        F.when(F.col("reason").isNotNull(), F.col("reason"))
        .when(~left, F.col("fate"))
        .when(count > 1, "bridges_splits")
        .when((count == 1) & held, "held_out_copy")
    )
    said = F.concat(F.lit("like rows of "), F.array_join("of_group", ", "))
    detail = (
        F.when(F.col("reason").isNotNull(), F.col("detail"))
        .when(~left, F.col("why"))
        .when(count > 0, said)
    )
    split = F.when(count == 1, F.col("of_group")[0]).otherwise(split_column("group", sizes))
    placed = met.select(
        "id", "text", "label", "key",
        reason.alias("reason"),
        F.when(reason.isNotNull(), detail).alias("detail"),
        F.coalesce("joined", "group").alias("group"),
        split.alias("split"),
    )  # fmt: skip
    for more in (separated.carried, separated.known):
        if more is not None:
            placed = placed.unionByName(more, allowMissingColumns=True)
    return placed


def _hits(
    rows: DataFrame,
    separated: Separated,
    past: Past,
    data: DataSection,
    temporary: list[DataFrame],
) -> DataFrame:
    """id, fate and why of new rows that old ones stand for, else the splits they must go to, and
    the cluster that they join."""
    alive = rows.where(F.col("reason").isNull()).select("id", "text", "label", "key")
    probes = ledger.signed(alive, data.dedup).persist()
    temporary.append(probes)
    shared = {"buckets": past.buckets, "secrets": past.secrets}
    met = ledger.met(
        probes, past.paths(ledger.BANDS), most=data.dedup.max_bucket_size, **shared
    ).persist()
    temporary.append(met)
    wanted = met.where(F.col("node").isNotNull()).select("id", "node")
    wanted = wanted.unionByName(probes.select("id", "node")).distinct()
    wanted = wanted.join(probes.select("id", "key", "signature"), "id")
    found = ledger.compared(wanted, past.paths(ledger.ROWS), options=data.dedup, **shared)
    found = _present(found, separated, past)
    found = found.join(probes.select("id", "label"), "id")
    same = F.col("label") == F.col("past_label")
    exact = F.col("exact")
    first = {
        "exact_same": exact & same,
        "exact_other": exact & ~same,
        "near_same": ~exact & same,
    }
    judged = found.groupBy("id").agg(
        *(F.min(F.when(is_, F.col("past"))).alias(name) for name, is_ in first.items()),
        F.collect_set("split").alias("splits"),
        F.min("cluster").alias("cluster"),
    )
    loose = met.where(F.col("loose").isNotNull()).groupBy("id")
    loose = loose.agg(F.collect_set("loose").alias("beyond"))
    judged = judged.join(loose, "id", "full")
    fate, why = _fate(data)
    return judged.select(
        "id",
        fate.alias("fate"),
        why.alias("why"),
        F.array_union(F.coalesce("splits", _none()), F.coalesce("beyond", _none())).alias("splits"),
        "cluster",
    )


def _none() -> Column:
    return F.array().cast("array<string>")


def _present(found: DataFrame, separated: Separated, past: Past) -> DataFrame:
    """Without the old rows that the replaced part has no more."""
    if separated.carried is None:
        return found
    here = separated.carried.select(F.col("id").alias("past"), F.lit(True).alias("here"))
    own = F.coalesce(F.col("part") == past.part, F.lit(False))
    found = found.join(here, "past", "left")
    return found.where(~own | F.col("here").isNotNull()).drop("here")


def _fate(data: DataSection) -> tuple[Column, Column]:
    """(reason, detail) of rows that an old row stands for."""
    same, other, near = F.col("exact_same"), F.col("exact_other"), F.col("near_same")
    if data.dedup.conflict.policy == "keep":
        other = F.lit(None).cast("string")
    fate = (
        F.when(same.isNotNull(), "exact_duplicate")
        .when(other.isNotNull(), "label_conflict")
        .when(near.isNotNull(), "near_duplicate")
    )
    why = (
        F.when(same.isNotNull(), F.concat(F.lit("same text as "), same))
        .when(other.isNotNull(), F.concat(F.lit("another label than "), other))
        .when(near.isNotNull(), F.concat(F.lit("like "), near))
    )
    return fate, why
