"""Exact and near duplicates, and the clusters that must not cross a split.

Exact: by the cleaned text's key. Near: MinHash-LSH; rows that share a bucket are compared by their
signatures, and similar ones joined to connected components.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from etl.minhash import band_keys, link_bucket, signatures
from etl.spark_errors import crossing
from howdah.config_model import DedupOptions
from howdah.errors import ClusterError

_MAX_ROUNDS = 60
_COLLECTED_EDGES = 500_000


@dataclass(frozen=True, kw_only=True)
class Deduplicated:
    """Rows with their fate: `reason`/`detail` for those removed, `cluster` for those kept."""

    rows: DataFrame
    """id, text, label, key, reason, detail, cluster"""
    capped_buckets: int
    """LSH buckets larger than max_bucket_size."""
    capped_rows: int
    """Entries of such buckets that were left out of the comparison there."""
    near_clusters: int
    """Clusters of at least two different texts."""
    largest_cluster: int
    """Different texts of the largest one."""


def deduplicate(rows: DataFrame, options: DedupOptions, temporary: list[DataFrame]) -> Deduplicated:
    """Find duplicates among the rows that passed the gate.

    Args:
        rows: id, text, label, key; each id once.
        options: `data.dedup`.
        temporary: data frames persisted on the way are appended; the caller unpersists them.

    The first of a group by id is kept: the outcome depends on the rows alone, never on their
    partitions. The same text under different labels is rejected whole (label_conflict). Near
    duplicates under different labels are kept once a label, in the same cluster.
    """
    groups = rows.groupBy("key").agg(
        F.min("id").alias("first"),
        (F.min("label") != F.max("label")).alias("conflict"),
        F.concat_ws(", ", F.sort_array(F.collect_set("label"))).alias("labels"),
    )
    judged = rows.join(groups, "key").persist()
    temporary.append(judged)
    unique = judged.where(~F.col("conflict") & (F.col("id") == F.col("first")))
    if options.near:
        links, capped_buckets, capped_rows = _links(unique, options, temporary)
        components = connected_components(links, temporary)
    else:
        spark = rows.sparkSession
        components = spark.createDataFrame([], "id string, cluster string")
        capped_buckets = capped_rows = 0
    sizes = components.groupBy("cluster").count().agg(F.count("*"), F.max("count")).first()
    # (id of a text's first row, cluster, first id of cluster and label)
    survivors = components.join(unique.select("id", "label"), "id").withColumn(
        "survivor", F.min("id").over(Window.partitionBy("cluster", "label"))
    )
    survivors = survivors.select(F.col("id").alias("first"), "cluster", "survivor")
    marked = judged.join(survivors, "first", "left")
    conflict = F.col("conflict")
    exact = (F.col("id") != F.col("first")) & F.lit(options.exact)
    near = F.col("survivor").isNotNull() & (F.col("first") != F.col("survivor"))
    reason = (
        F.when(conflict, "label_conflict")
        .when(exact, "exact_duplicate")
        .when(near, "near_duplicate")
    )
    detail = (
        F.when(conflict, F.concat(F.lit("labels: "), F.col("labels")))
        .when(exact, F.concat(F.lit("same text as "), F.col("first")))
        .when(near, F.concat(F.lit("like "), F.col("survivor")))
    )
    return Deduplicated(
        rows=marked.select(
            "id",
            "text",
            "label",
            "key",
            reason.alias("reason"),
            detail.alias("detail"),
            F.coalesce("cluster", "first").alias("cluster"),
        ),
        capped_buckets=capped_buckets,
        capped_rows=capped_rows,
        near_clusters=sizes[0],
        largest_cluster=sizes[1] or 1,
    )


def _links(
    unique: DataFrame, options: DedupOptions, temporary: list[DataFrame]
) -> tuple[DataFrame, int, int]:
    """Edges (a, b) between near duplicates, and how many buckets and entries were capped."""
    sign = partial(_sign_batches, options=options)
    signed = unique.select("id", "text").mapInArrow(
        crossing(sign), "id string, bands array<bigint>, signature binary"
    )
    signed = signed.persist()
    temporary.append(signed)
    entries = signed.select(
        "id", F.posexplode("bands").alias("band", "bucket")
    )  # the bucket's key covers the band's number
    by_bucket = Window.partitionBy("bucket")
    entries = (
        entries.withColumn("size", F.count("*").over(by_bucket))
        .where(F.col("size") > 1)
        .withColumn("place", F.row_number().over(by_bucket.orderBy("id")))
        .persist()
    )
    temporary.append(entries)
    capped = (
        entries.where(F.col("place") > options.max_bucket_size)
        .agg(F.countDistinct("bucket"), F.count("*"))
        .first()
    )
    candidates = entries.where(F.col("place") <= options.max_bucket_size).select("bucket", "id")
    buckets = (
        candidates.join(signed.select("id", "signature"), "id")
        .groupBy("bucket")
        .agg(F.sort_array(F.collect_list(F.struct("id", "signature"))).alias("members"))
        .select("members.id", "members.signature")
    )
    link = partial(_link_batches, threshold=options.threshold)
    edges = buckets.mapInArrow(crossing(link), "a string, b string").distinct()
    return edges, capped[0], capped[1]


def _sign_batches(
    batches: Iterable[pa.RecordBatch], options: DedupOptions
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        texts = batch.column("text").to_pylist()
        signature = signatures(texts, options.ngram, options.num_permutations)
        keys = band_keys(signature, options.bands)
        offsets = np.arange(0, keys.size + 1, options.bands, dtype=np.int32)
        yield pa.RecordBatch.from_arrays(
            [
                batch.column("id"),
                pa.ListArray.from_arrays(pa.array(offsets), pa.array(keys.reshape(-1))),
                pa.array([row.tobytes() for row in signature], pa.binary()),
            ],
            names=["id", "bands", "signature"],
        )


def _link_batches(batches: Iterable[pa.RecordBatch], threshold: float) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        left: list[str] = []
        right: list[str] = []
        for ids, signed in zip(
            batch.column("id").to_pylist(), batch.column("signature").to_pylist(), strict=True
        ):
            matrix = np.frombuffer(b"".join(signed), dtype=np.uint32).reshape(len(signed), -1)
            for a, b in link_bucket(matrix, threshold):
                left.append(ids[a])
                right.append(ids[b])
        yield pa.RecordBatch.from_arrays(
            [pa.array(left, pa.string()), pa.array(right, pa.string())], names=["a", "b"]
        )


def connected_components(
    edges: DataFrame, temporary: list[DataFrame], collect_up_to: int = _COLLECTED_EDGES
) -> DataFrame:
    """(id, cluster) of every node of the edges (a, b): the cluster is its smallest id.

    Up to `collect_up_to` edges the driver joins them itself: it takes milliseconds, where every
    round in Spark takes a second. More are joined in Spark by `_propagate`.
    """
    edges = edges.persist()
    temporary.append(edges)
    few = edges.limit(collect_up_to + 1).collect()
    if len(few) > collect_up_to:
        return _propagate(edges, temporary)
    parent: dict[str, str] = {}

    def root(node: str) -> str:
        while parent.setdefault(node, node) != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for a, b in few:
        low, high = sorted((root(a), root(b)))
        parent[high] = low
    rows = [(node, root(node)) for node in list(parent)]
    return edges.sparkSession.createDataFrame(rows, "id string, cluster string")


def _propagate(edges: DataFrame, temporary: list[DataFrame]) -> DataFrame:
    """The same by label propagation.

    Each round takes the smallest label among the neighbours and then that label's own label
    (pointer jumping), so that a chain of n needs about log n rounds. Lineage is cut each round.
    """
    both = edges.select(F.col("a").alias("id"), F.col("b").alias("other")).union(
        edges.select(F.col("b"), F.col("a"))
    )
    both = both.persist()
    temporary.append(both)
    labels = both.groupBy("id").agg(F.least(F.col("id"), F.min("other")).alias("cluster"))
    labels = labels.localCheckpoint()
    for _ in range(_MAX_ROUNDS):
        lowest = (
            both.join(labels.withColumnRenamed("id", "other"), "other")
            .groupBy("id")
            .agg(F.min("cluster").alias("seen"))
        )
        stepped = labels.join(lowest, "id").select(
            "id", "cluster", F.least("cluster", "seen").alias("next")
        )
        roots = labels.select(F.col("id").alias("next"), F.col("cluster").alias("root"))
        jumped = stepped.join(roots, "next").select(
            "id", F.least("next", "root").alias("cluster"), F.col("cluster").alias("before")
        )
        jumped = jumped.localCheckpoint()
        changed = jumped.where(F.col("cluster") != F.col("before")).limit(1).count()
        labels = jumped.select("id", "cluster")
        if not changed:
            return labels
    raise ClusterError(
        "the clusters of near duplicates did not settle",
        got=f"{_MAX_ROUNDS} rounds",
        remedy="raise data.dedup.threshold, or switch data.dedup.near off",
    )
