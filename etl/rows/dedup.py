"""Exact and near duplicates, and the groups that must not cross a split.

Exact: by the cleaned text's key. Near: by `etl/rows/near.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from etl.rows import near
from etl.workspace.scratch import Scratch
from howdah.config.data import DedupOptions


@dataclass(frozen=True, kw_only=True)
class Deduplicated:
    """Rows with their fate: `reason`/`detail` for those removed, `group` for those kept."""

    rows: DataFrame
    """id, text, label, key, reason, detail, group"""
    near_clusters: int
    """Clusters of at least two different texts."""
    largest_cluster: int
    """Different texts of the largest one."""
    capped_buckets: int
    """LSH buckets with more different signatures than max_bucket_size."""
    capped_entries: int
    """Members beyond that, which were not all compared: each bucket's are one group."""
    largest_group: int
    """Different texts of the largest group that goes to one split as a whole."""


def deduplicate(
    rows: DataFrame,
    options: DedupOptions,
    scratch: Scratch,
    temporary: list[DataFrame],
    *,
    driver_edges: int,
    progress: Callable[[str], None] = lambda line: None,
) -> Deduplicated:
    """Find duplicates among the rows that passed the gate.

    Args:
        rows: id, text, label, key; each id once.
        options: `data.dedup`.
        scratch: for intermediate data.
        temporary: data frames persisted on the way are appended; the caller unpersists them.
        driver_edges: edges between near duplicates that the driver joins by itself.
        progress: gets a line where joining them takes rounds.

    The first of a cluster by id is kept: the outcome depends on the rows alone, never on their
    partitions. The same text under different labels is rejected whole (label_conflict). Near
    duplicates under different labels are kept once a label, in the same group.
    """
    # Windows, not joins with aggregates: a join would hold the plan of its rows twice, and Spark
    # writes the plan of each action, with those of all cached frames in it, as text.
    same = Window.partitionBy("key")
    judged = rows.select(
        "*",
        F.min("id").over(same).alias("first"),
        (F.min("label").over(same) != F.max("label").over(same)).alias("conflict"),
        F.concat_ws(", ", F.sort_array(F.collect_set("label").over(same))).alias("labels"),
    ).persist()
    temporary.append(judged)
    unique = judged.where(~F.col("conflict") & (F.col("id") == F.col("first")))
    if options.near:
        found = near.find(
            unique, options, scratch, temporary, driver_edges=driver_edges, progress=progress
        )
    else:
        found = near.none(unique)
    alike = found.rows
    clusters, largest = _sizes(alike, "cluster")
    largest_group = _sizes(alike, "group")[1] if found.capped_buckets else largest
    # (id of a text's first row, cluster, group, label), then the first id of cluster and label
    labelled = alike.join(unique.select("id", "label"), "id")
    survivor = F.min("id").over(Window.partitionBy("cluster", "label")).alias("survivor")
    survivors = labelled.select(F.col("id").alias("first"), "group", survivor)
    marked = judged.join(survivors, "first", "left")
    conflict = F.col("conflict")
    exact = (F.col("id") != F.col("first")) & F.lit(options.exact)
    like = F.col("survivor").isNotNull() & (F.col("first") != F.col("survivor"))
    reason = (
        F.when(conflict, "label_conflict")
        .when(exact, "exact_duplicate")
        .when(like, "near_duplicate")
    )
    detail = (
        F.when(conflict, F.concat(F.lit("labels: "), F.col("labels")))
        .when(exact, F.concat(F.lit("same text as "), F.col("first")))
        .when(like, F.concat(F.lit("like "), F.col("survivor")))
    )
    return Deduplicated(
        rows=marked.select(
            "id",
            "text",
            "label",
            "key",
            reason.alias("reason"),
            detail.alias("detail"),
            F.coalesce("group", "first").alias("group"),
        ),
        near_clusters=clusters,
        largest_cluster=largest,
        capped_buckets=found.capped_buckets,
        capped_entries=found.capped_entries,
        largest_group=largest_group,
    )


def _sizes(alike: DataFrame, column: str) -> tuple[int, int]:
    """How many of the sets named in a column have two members or more, and the largest's size."""
    sizes = alike.groupBy(column).count().where(F.col("count") > 1)
    count, most = sizes.agg(F.count("*"), F.max("count")).first()
    return count, most or 1
