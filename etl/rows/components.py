"""Connected components of very many edges, with bounded memory in the driver.

Nodes are 64-bit integers. Up to a number of edges the driver finds the components with numpy. More
edges are contracted in Spark first: in each round every node is replaced by one of its neighbours
or itself, whichever has the lowest hash of that round (Bögeholz, Brand, Todor, "In-database
connected component analysis", ICDE 2020). In expectation a round leaves at most two thirds of the
nodes, for every graph; a long chain keeps a third. Rounds end as soon as the driver can take what
is left, and then the replacements are followed back.

Each round's result lies in Parquet files (`Scratch`), not in the executors: a lost executor costs
no round. A frame read from Parquet has a plan of one step with the files' true sizes. A local
checkpoint keeps the estimated size of the plan that it cuts off, and the estimate is multiplied in
each round (SPARK-39834), until the driver does nothing but multiply.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from howdah.errors import ClusterError
from howdah.etl.workspace.kept import Kept
from howdah.etl.workspace.scratch import Scratch, local_table

if TYPE_CHECKING:
    import pandas as pd

DRIVER_EDGES = 2_000_000
"""Distinct edges that the driver joins itself, about 100 bytes each: 200 MB of the 4 GB that it has
by default. More are contracted on the executors first, with the same result."""
_MOST_ROUNDS = 120  # for 1e9 nodes the chance of needing more is below 1e9 * (2/3) ** 120 = 1e-12
_LABELS = "node bigint, root bigint"
_FEW = 100_000  # nodes or edges; a file for them, or a count of them, would cost more than it saves


def roots(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Components of the edges (a[k], b[k]), joined by hooking roots.

    In each round every root is hooked to the lowest root that it has an edge to, if that one is
    lower, and all paths are shortened to length one. Edges inside a component are dropped.

    Args:
        a, b: int64[E], the ends of E edges.

    Returns:
        (nodes int64[N] ascending, root int64[N]): the root is the component's smallest node.

    >>> roots(np.array([5, 7]), np.array([3, 8]))
    (array([3, 5, 7, 8]), array([3, 3, 7, 7]))
    """
    nodes = np.unique(np.concatenate((a, b)))
    low = np.searchsorted(nodes, a).astype(np.int32 if len(nodes) < 2**31 else np.int64)
    high = np.searchsorted(nodes, b).astype(low.dtype)
    parent = np.arange(len(nodes), dtype=low.dtype)
    while True:
        low, high = parent[low], parent[high]
        apart = low != high
        low, high = low[apart], high[apart]
        if not len(low):
            return nodes, nodes[parent]
        low, high = np.minimum(low, high), np.maximum(low, high)
        np.minimum.at(parent, high, low)
        while True:
            shorter = parent[parent]
            if np.array_equal(shorter, parent):
                break
            parent = shorter


def connected_components(
    edges: DataFrame,
    scratch: Scratch,
    temporary: Kept,
    *,
    progress: Callable[[str], None] = lambda line: None,
) -> DataFrame:
    """(node, root) of every node that has an edge to another: equal roots, same component.

    Args:
        edges: (a bigint, b bigint), in any direction and any number of times.
        scratch: takes what rounds leave, where there are more than DRIVER_EDGES.
        progress: gets a line for each round.

    Raises:
        ClusterError: rounds do not end (a defect; see _MOST_ROUNDS).
    """
    edges = _distinct(edges).persist()
    temporary.append(edges)
    few = min(_FEW, DRIVER_EDGES)
    first = edges.limit(few + 1).toPandas()  # by Arrow: 16 bytes an edge
    if len(first) <= few:
        return _by_driver(edges.sparkSession, first, scratch)
    count = edges.count()
    if count <= DRIVER_EDGES:
        return _by_driver(edges.sparkSession, edges.toPandas(), scratch)
    return _by_rounds(edges, count, scratch, progress)


def _distinct(edges: DataFrame) -> DataFrame:
    low, high = F.least("a", "b").alias("a"), F.greatest("a", "b").alias("b")
    return edges.where(F.col("a") != F.col("b")).select(low, high).distinct()


def _by_driver(spark: SparkSession, edges: pd.DataFrame, scratch: Scratch) -> DataFrame:
    nodes, root = roots(edges["a"].to_numpy(), edges["b"].to_numpy())
    if len(nodes) <= _FEW:
        return local_table(spark, list(zip(nodes.tolist(), root.tolist(), strict=True)), _LABELS)
    roots_table = pa.table({"node": nodes, "root": root})
    return scratch.put(spark, roots_table, scratch.path("components") + "/roots")


def _by_rounds(
    edges: DataFrame, count: int, scratch: Scratch, progress: Callable[[str], None]
) -> DataFrame:
    directory = scratch.path("components")
    held, edges = edges, scratch.keep(edges, f"{directory}/edges-000")
    held.unpersist()
    replaced: list[DataFrame] = []
    while count > DRIVER_EDGES:
        number = len(replaced) + 1
        progress(f"joining near duplicates, round {number}: {count:,} edges are left")
        if number > _MOST_ROUNDS:
            raise ClusterError(
                "the clusters of near duplicates could not all be joined",
                got=f"{count:,} edges left",
                remedy="report this as a defect; data.dedup.near: false avoids this step",
            )
        step = scratch.keep(_replacements(edges, number), f"{directory}/nodes-{number:03d}")
        edges = scratch.keep(_contracted(edges, step), f"{directory}/edges-{number:03d}")
        scratch.drop(f"{directory}/edges-{number - 1:03d}")
        replaced.append(step)
        count = edges.count()
    labels = _by_driver(edges.sparkSession, edges.toPandas(), scratch)
    for number in range(len(replaced), 0, -1):
        ends = labels.select(F.col("node").alias("next"), F.col("root").alias("end"))
        # where a round's node has no edge any more, it is itself the root of what it stands for
        followed = replaced[number - 1].join(ends, "next", "left")
        labels = followed.select("node", F.coalesce("end", "next").alias("root"))
        labels = scratch.keep(labels, f"{directory}/roots-{number:03d}")
        if number < len(replaced):
            scratch.drop(f"{directory}/roots-{number + 1:03d}")
        scratch.drop(f"{directory}/nodes-{number:03d}")
    return labels


def _replacements(edges: DataFrame, number: int) -> DataFrame:
    """(node, next): of each node and its neighbours the one with the round's lowest hash."""
    both = edges.unionByName(edges.select(F.col("b").alias("a"), F.col("a").alias("b")))
    both = both.withColumn("hash", F.xxhash64(F.lit(number), "b"))
    lowest = both.groupBy("a").agg(
        F.min_by("b", "hash").alias("neighbour"), F.min("hash").alias("hash")
    )
    node = F.xxhash64(F.lit(number), "a")
    best = F.when(node < F.col("hash"), F.col("a")).otherwise(F.col("neighbour"))
    return lowest.select(F.col("a").alias("node"), best.alias("next"))


def _contracted(edges: DataFrame, step: DataFrame) -> DataFrame:
    """The edges between what stands for their ends."""
    first = step.select(F.col("node").alias("a"), F.col("next").alias("first"))
    second = step.select(F.col("node").alias("b"), F.col("next").alias("second"))
    moved = edges.join(first, "a").join(second, "b")
    return _distinct(moved.select(F.col("first").alias("a"), F.col("second").alias("b")))
