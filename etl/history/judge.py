"""New rows against the ledger: which are copies of old ones, and which split the others go to.

Old rows are never moved, dropped or renamed. A new row that is like an old one is removed; under
another label it stays in the old one's split, with all of its cluster. A cluster that would have to
go to two splits is rejected (bridges_splits): kept, it would be like rows of both.

Of a bucket with more old rows than near.MAX_BUCKET_SIZE those of held-out splits are all compared.
So a new row that was not compared with all of them was not compared with training rows alone, and
it goes to train. Clusters of the day that are one group, since not all of their rows were compared
with one another, go to one split: where they would have to go to two, those that are like held-out
rows are rejected, and the others go to train.

The part of the same name, where its source has changed, is compared as well. Rows of it that are
still there (same id, same text) keep split and cluster; only the others are judged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from howdah.config.data import DataSection
from howdah.config.splits import TEST, TRAIN, VALIDATION
from howdah.etl.history import ledger
from howdah.etl.history.past import Past
from howdah.etl.rows import leakage, near
from howdah.etl.rows.split import split_column
from howdah.etl.workspace.kept import Kept
from howdah.spark.paths import spark_path


def with_own_ids(rows: DataFrame, past: Past, data: DataSection) -> DataFrame:
    """The rows, those with another id whose id an old row of another part has.

    Ids that are hashes of texts come again with the same text. Under another label such a row is
    kept (data.dedup.conflict: keep), and needs an id of its own: a hash of that id and the part.
    """
    others = past.paths_of_rows(same_part=False)
    if data.columns.id is not None or data.dedup.conflict.policy != "keep" or not others:
        return rows
    spark, true, columns = rows.sparkSession, F.lit(True), rows.columns
    digest = F.sha2(F.concat_ws(":", "id", F.lit(past.part)), 256)
    rows = rows.withColumn("_own", digest.substr(F.lit(1), F.length("id")))
    taken = spark.read.parquet(*map(spark_path, others)).select("id").distinct()
    rows = rows.join(taken.withColumn("_taken", true), "id", "left")
    again = F.col("_taken").isNotNull()
    if old_files := past.paths_of_rows(same_part=True):  # whose other row may have gone since
        old = spark.read.parquet(*map(spark_path, old_files)).select(F.col("id").alias("_own"))
        rows = rows.join(old.distinct().withColumn("_had", true), "_own", "left")
        again = again | F.col("_had").isNotNull()
    row_id = F.when(again, F.col("_own")).otherwise(F.col("id"))
    return rows.withColumn("id", row_id).select(*columns)


@dataclass(kw_only=True)
class Judging:
    """The judgement of one new part; made by `judging_of`."""

    fresh: DataFrame
    """id, text, label, key: to be judged."""
    carried: DataFrame | None
    """Rows of the part's older state, with split and group; reason and detail are null."""
    same_id: DataFrame | None
    """Rows whose id an old row of another part has: rejected, with reason and detail."""
    past: Past
    data: DataSection
    temporary: Kept
    full_buckets: int = field(default=0, init=False)
    """LSH buckets that new rows are in, with more old rows than near.MAX_BUCKET_SIZE."""
    uncompared: int = field(default=0, init=False)
    """New rows that were not compared with all training rows of their buckets."""
    _hits: DataFrame | None = field(default=None, init=False)

    def gone(self, owners: DataFrame) -> DataFrame:
        """id of the rows that old ones stand for. Before the leaders of the day's clusters are
        chosen: a removed row must not be a leader, or rows that are like it alone would go with it.

        Args:
            owners: id, text, label, key: fresh rows, one for each text and label.
        """
        self._hits = self._judged(owners).persist()
        self.temporary.append(self._hits)
        return self._hits.where(F.col("fate").isNotNull()).select("id")

    def place(self, rows: DataFrame) -> DataFrame:
        """The rows with their split, and what is like old rows with its reason.

        Args:
            rows: fresh rows as de-duplicated among themselves, after `gone`: id, text, label, key,
                reason, detail, group, cluster.
        """
        frozen, sizes = self.data.append.frozen, self.data.split
        none = {name: 0.0 for name in frozen if name in (TEST, VALIDATION)}
        sizes = sizes.model_copy(update=none)
        met = rows.join(self._hits, "id", "left").persist()
        self.temporary.append(met)
        clusters = _clusters(met.where(F.col("reason").isNull() & F.col("fate").isNull()), frozen)
        met = met.join(clusters, "cluster", "left")
        reason, fate, out = F.col("reason"), F.col("fate"), F.col("out")
        # Where a cluster goes, nothing is left that its near duplicates are like.
        whole = out.isNotNull() & (reason.isNull() & fate.isNull() | (reason == "near_duplicate"))
        why = (
            F.when(whole, F.col("out_detail"))
            .when(reason.isNotNull(), F.col("detail"))
            .otherwise(F.col("why"))
        )
        reason = F.when(whole, out).otherwise(F.coalesce(reason, fate))
        split = F.coalesce("bound", split_column("group", sizes))
        placed = met.select(
            "id", "text", "label", "key",
            reason.alias("reason"),
            F.when(reason.isNotNull(), why).alias("detail"),
            F.coalesce("joined", "group").alias("group"),
            split.alias("split"),
        )  # fmt: skip
        for more in (self.carried, self.same_id):
            if more is not None:
                placed = placed.unionByName(more, allowMissingColumns=True)
        return placed

    def held_out(self, spark: SparkSession) -> leakage.Old | None:
        """Old rows of validation and test; None: there is none with a signature."""
        paths = self.past.paths_of_rows(same_part=False)
        if not paths or not self.data.dedup.near:
            return None
        rows = spark.read.parquet(*map(spark_path, paths)).where(F.col("split") != TRAIN)
        return leakage.Old(rows=rows.select("id", "split", "signature"), dedup=self.data.dedup)

    def capped(self, progress: Callable[[str], None]) -> dict[str, int]:
        """How much of the past was not compared, for the manifest."""
        if self.full_buckets:
            progress(
                f"{self.full_buckets:,} buckets of near duplicates have more than"
                f" {near.MAX_BUCKET_SIZE:,} old rows: new rows in them were compared with all"
                f" held-out rows, but {self.uncompared:,} not with all training rows:"
                " these go to train"
            )
        return {"full_past_buckets": self.full_buckets, "uncompared_rows": self.uncompared}

    def _judged(self, owners: DataFrame) -> DataFrame:
        """id, fate and why of new rows that old ones stand for, else `splits` of the old rows that
        they are like, `past_cluster` of one of these, and whether there are training rows `beyond`
        that they were not compared with."""
        data, past = self.data, self.past
        shared = {"buckets": past.buckets, "secrets": past.secrets}
        probes = ledger.signed(owners.select("id", "text", "label", "key"), data.dedup).persist()
        self.temporary.append(probes)
        met = beyond = None
        if data.dedup.near:
            paths = past.paths(ledger.BANDS)
            met = ledger.met(probes, paths, most=near.MAX_BUCKET_SIZE, **shared).persist()
            self.temporary.append(met)
            is_beyond = F.col("kind") == ledger.BEYOND
            self.full_buckets, self.uncompared = (
                met.where(is_beyond | (F.col("kind") == ledger.ASKS))
                .agg(F.countDistinct("band"), F.countDistinct(F.when(is_beyond, F.col("id"))))
                .first()
            )
            if self.uncompared:
                beyond = met.where(is_beyond).select("id", F.lit(True).alias("beyond"))
        paths, full = past.paths(ledger.ROWS), bool(self.full_buckets)
        matches = ledger.compared(probes, met, paths, options=data.dedup, full=full, **shared)
        matches = _present(matches, self.carried, past)
        if beyond is None:
            matches = matches.withColumn("beyond", F.lit(False))
        else:
            matches = matches.unionByName(beyond, allowMissingColumns=True)
        same, exact = F.col("label") == F.col("past_label"), F.col("exact")
        first = {
            "exact_same": exact & same,
            "exact_other": exact & ~same,
            "near_same": ~exact & same,
        }
        judged = matches.groupBy("id").agg(
            *(F.min(F.when(is_, F.col("past"))).alias(name) for name, is_ in first.items()),
            F.collect_set("split").alias("splits"),
            F.min("cluster").alias("past_cluster"),
            F.coalesce(F.max("beyond"), F.lit(False)).alias("beyond"),
        )
        fate, why = _fate(data)
        return judged.select(
            "id", fate.alias("fate"), why.alias("why"), "splits", "past_cluster", "beyond"
        )


def judging_of(passed: DataFrame, past: Past, data: DataSection, temporary: Kept) -> Judging:
    """Take out what needs no comparison: rows that are in the dataset by their id.

    Ids that are hashes of texts come again with the same text alone; that is judged by its text.

    Args:
        passed: id, text, label, key of the rows that passed the gate.
    """
    spark = passed.sparkSession
    passed = passed.select("id", "text", "label", "key")
    nothing = F.lit(None).cast("string")
    same_id = carried = None
    others = past.paths_of_rows(same_part=False) if data.columns.id is not None else []
    if others:
        ids = spark.read.parquet(*map(spark_path, others)).select("id")
        detail = F.lit("an older part has a row of this id").alias("detail")
        same_id = passed.join(ids, "id", "left_semi").select(
            "*", F.lit("known_id").alias("reason"), detail, F.col("id").alias("group")
        )
        passed = passed.join(ids, "id", "left_anti")
    if old_files := past.paths_of_rows(same_part=True):
        old = spark.read.parquet(*map(spark_path, old_files))
        old = old.select("id", "key", "split", F.col("cluster").alias("group"))
        carried = passed.join(old, ["id", "key"]).select(
            "id", "text", "label", "key", nothing.alias("reason"), nothing.alias("detail"),
            "group", "split",
        )  # fmt: skip
        passed = passed.join(old.select("id", "key"), ["id", "key"], "left_anti")
    return Judging(
        fresh=passed, carried=carried, same_id=same_id, past=past, data=data, temporary=temporary
    )


def _clusters(stay: DataFrame, frozen: list[str]) -> DataFrame:
    """cluster, the split that it is `bound` to (null: none), the cluster of old rows that it has
    `joined`, and the reason to leave it `out` with its `out_detail`.

    Args:
        stay: rows that no other row stands for.
    """
    clusters = stay.groupBy("cluster").agg(
        F.min("group").alias("group"),
        F.array_sort(F.array_distinct(F.flatten(F.collect_list("splits")))).alias("like"),
        F.coalesce(F.max("beyond"), F.lit(False)).alias("beyond"),
        F.min("past_cluster").alias("past_cluster"),
    )
    train = F.array(F.lit(TRAIN))
    to = F.when(F.col("beyond"), F.array_union("like", train)).otherwise(F.col("like"))
    held = F.arrays_overlap("like", F.array(*map(F.lit, frozen))) if frozen else F.lit(False)
    clusters = clusters.select(
        "*",
        to.alias("to"),
        F.when(F.size(to) > 1, "bridges_splits").when(held, "held_out_copy").alias("alone"),
    )
    trains = F.array_contains("to", TRAIN)
    groups = (
        clusters.where(F.col("alone").isNull())
        .groupBy("group")
        .agg(
            F.array_distinct(F.flatten(F.collect_set("to"))).alias("of_group"),
            F.min("past_cluster").alias("first"),
            F.min(F.when(trains, F.col("past_cluster"))).alias("first_in_train"),
        )
    )
    several = F.coalesce(F.size("of_group"), F.lit(0)) > 1
    out = F.coalesce("alone", F.when(several & (F.size("to") > 0) & ~trains, "bridges_splits"))
    uncompared = F.lit(", and in a bucket with training rows that it was not compared with")
    in_group = F.lit(", and in a bucket of the part that was too large to compare all its rows")
    return clusters.join(groups, "group", "left").select(
        "cluster",
        F.when(several, TRAIN).otherwise(F.get("of_group", F.lit(0))).alias("bound"),
        F.when(several, F.col("first_in_train")).otherwise(F.col("first")).alias("joined"),
        out.alias("out"),
        F.concat(
            F.lit("like rows of "),
            F.array_join("like", ", "),
            F.when(F.col("beyond") & ~F.array_contains("like", TRAIN), uncompared)
            .when(F.col("alone").isNull(), in_group)
            .otherwise(F.lit("")),
        ).alias("out_detail"),
    )


def _present(matches: DataFrame, carried: DataFrame | None, past: Past) -> DataFrame:
    """The matches, less those with old rows that the replaced part no longer has."""
    if carried is None:
        return matches
    here = carried.select(F.col("id").alias("past"), F.lit(True).alias("here"))
    of_part = F.coalesce(F.col("part") == past.part, F.lit(False))
    matches = matches.join(here, "past", "left")
    return matches.where(~of_part | F.col("here").isNotNull()).drop("here")


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
