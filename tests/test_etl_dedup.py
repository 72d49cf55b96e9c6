"""Duplicates in Spark: planted ones are found, and the outcome knows no partitions."""

import numpy as np
import pytest
from pyspark.sql import functions as F

from etl import dedup
from etl.gate import text_key
from howdah.config_model import DedupOptions

pytestmark = pytest.mark.spark


def _words(seed, count=60):
    random = np.random.default_rng(seed)
    return [f"word{n}" for n in random.integers(0, 100_000, count)]


def _planted():
    """Rows (id, text, label): 30 alone, exact copies, a near pair, a conflict, mixed labels."""
    rows = [(f"alone{n:02d}", " ".join(_words(n)), "ab"[n % 2]) for n in range(30)]
    base = _words(1000)
    near = [*base[:-1], "changed"]
    rows += [("near1", " ".join(base), "a"), ("near2", " ".join(near), "a")]
    rows += [("near3", " ".join(base).upper() + "!", "b")]
    copy = " ".join(_words(2000))
    rows += [("copy1", copy, "a"), ("copy2", copy, "a"), ("copy3", copy, "a")]
    contested = " ".join(_words(3000))
    rows += [("fight1", contested, "a"), ("fight2", contested, "b")]
    return rows


def _frame(spark, rows, partitions):
    table = [(*row, text_key(row[1])) for row in rows]
    frame = spark.createDataFrame(table, "id string, text string, label string, key string")
    return frame.repartition(partitions)


def _fates(spark, rows, options, partitions=3):
    temporary = []
    found = dedup.deduplicate(_frame(spark, rows, partitions), options, temporary)
    fates = {r["id"]: (r["reason"], r["detail"], r["cluster"]) for r in found.rows.collect()}
    for frame in temporary:
        frame.unpersist()
    return fates, found


def test_planted_duplicates_are_found_whatever_the_partitions(spark):
    rows = _planted()
    fates, found = _fates(spark, rows, DedupOptions())
    assert len(fates) == len(rows)
    assert fates["near1"] == (None, None, "near1")
    assert fates["near2"] == ("near_duplicate", "like near1", "near1")
    assert fates["near3"] == (None, None, "near1")  # another label: kept, in the same cluster
    assert fates["copy1"] == (None, None, "copy1")
    assert fates["copy3"] == ("exact_duplicate", "same text as copy1", "copy1")
    assert fates["fight1"][:2] == fates["fight2"][:2] == ("label_conflict", "labels: a, b")
    assert all(fates[f"alone{n:02d}"] == (None, None, f"alone{n:02d}") for n in range(30))
    assert (found.near_clusters, found.largest_cluster, found.capped_rows) == (1, 3, 0)
    again, _ = _fates(spark, rows[::-1], DedupOptions(), partitions=1)
    assert again == fates


def test_each_removal_can_be_switched_off(spark):
    fates, _ = _fates(spark, _planted(), DedupOptions(exact=False, near=False))
    assert fates["near2"] == (None, None, "near2")
    assert fates["copy2"] == (None, None, "copy1")  # kept, but never in another split than copy1
    assert fates["fight1"][0] == "label_conflict"


def test_oversized_buckets_are_capped_and_counted(spark):
    text = _words(1)
    rows = [(f"r{n}", " ".join(text) + "!" * n, "a") for n in range(8)]  # the same words
    options = DedupOptions(max_bucket_size=3)
    fates, found = _fates(spark, rows, options)
    assert (found.capped_buckets, found.capped_rows) == (options.bands, options.bands * 5)
    assert [fates[f"r{n}"][0] for n in range(4)] == [None, "near_duplicate", "near_duplicate", None]


def test_components_agree_in_spark_and_on_the_driver(spark):
    random = np.random.default_rng(7)
    edges = [(f"c{n:03d}", f"c{n + 1:03d}") for n in range(40)]  # a chain
    edges += [(f"s{n:03d}", "s999") for n in range(10)]  # a star whose centre is not the smallest
    edges += [tuple(f"x{v:03d}" for v in pair) for pair in random.integers(0, 40, (30, 2))]
    frame = spark.createDataFrame(edges, "a string, b string")
    kept = []
    here = {tuple(r) for r in dedup.connected_components(frame, kept).collect()}
    there = {tuple(r) for r in dedup.connected_components(frame, kept, collect_up_to=5).collect()}
    assert here == there
    clusters = dict(here)
    assert {clusters[f"c{n:03d}"] for n in range(41)} == {"c000"}
    assert clusters["s999"] == "s000"
    none = spark.createDataFrame([], "a string, b string")
    assert dedup.connected_components(none, kept).agg(F.count("*")).first()[0] == 0
