"""Rows to shards: no task does the work of many, and none decides by its label or split alone."""

import contextlib
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from howdah.config.data import DataSection
from howdah.config.loader import from_dict
from howdah.data.images import ImageEncoder
from howdah.errors import DataError
from howdah.etl import build, counting
from howdah.etl.rows import draw, labels
from howdah.etl.sources import given as official
from howdah.etl.write import shards
from howdah.etl.write.shards import SplitSize
from tests.support.models.images import png, write_processor

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("count", [1, 2, 7, 280, 1_000])
def test_keys_fall_on_their_partitions(spark, count):
    keys = shards.partition_keys(count).tolist()
    frame = spark.createDataFrame([(n, key) for n, key in enumerate(keys)], "n int, key int")
    spread = frame.repartition(count, "key").select("n", F.spark_partition_id().alias("at"))
    assert all(row["n"] == row["at"] for row in spread.collect())


def test_each_task_writes_one_shard(spark):
    sizes = {"train": 43, "validation": 5, "test": 6}
    plan = {name: SplitSize(rows=4 * n, tokens=n, shards=n) for name, n in sizes.items()}
    rows = [
        (split, n % size.shards, n, size.shards, f"{split}{n}", 0, b"")
        for split, size in plan.items()
        for n in range(size.rows)
    ]
    placed = spark.createDataFrame(
        rows,
        "split string, shard int, rank bigint, shards int, id string, label int, ids binary",
    )
    spread = shards.spread(placed, plan)
    assert spread.rdd.getNumPartitions() == 54 and spread.columns == placed.columns
    at = spread.select("split", "shard", F.spark_partition_id().alias("at")).distinct().collect()
    assert len(at) == 54 and len({row["at"] for row in at}) == 54


def _encoded(spark):
    random = np.random.default_rng(1)
    rows = [
        (f"r{n:04d}", "train" if n % 5 else "test", int(random.choice(3, p=[0.7, 0.2, 0.1])),
         b"", 3)
        for n in range(1_500)
    ]  # fmt: skip
    return spark.createDataFrame(rows, shards.ENCODED)


@pytest.mark.parametrize("how", ["downsample", "upsample"])
def test_balance_and_place_need_no_task_for_a_class_or_split(spark, monkeypatch, how):
    monkeypatch.setattr(draw, "ROWS_PER_BUCKET", 20)
    encoded = _encoded(spark).cache()
    train = encoded.where("split = 'train'").groupBy("label").count().collect()
    counts = {row["label"]: row["count"] for row in train}
    balanced = shards.balance(encoded, how, 1.0, counts, seed=3)
    class_counts = balanced.where("split = 'train'").groupBy("label").count().collect()
    rows_per_class = min(counts.values()) if how == "downsample" else max(counts.values())
    assert {row["count"] for row in class_counts} == {rows_per_class} and len(class_counts) == 3
    ids = [row["id"] for row in balanced.collect()]
    assert len(ids) == len(set(ids))
    plan = {"train": SplitSize(rows=3 * rows_per_class, tokens=1, shards=4),
            "test": SplitSize(rows=300, tokens=1, shards=1)}  # fmt: skip
    for frame in (balanced, shards.place(balanced, plan, seed=3)):
        text = frame._jdf.queryExecution().optimizedPlan().toString()
        windows = re.findall(r"Window \[.*?\], \[(.*?)\], \[", text)
        keys = [{name.split("#")[0] for name in window.split(", ")} for window in windows]
        assert keys and all(names in ({"label", "bucket"}, {"split", "bucket"}) for names in keys)
    # the same rows whatever the buckets and partitions
    monkeypatch.setattr(draw, "ROWS_PER_BUCKET", 10**6)
    whole = shards.balance(encoded.repartition(5), how, 1.0, counts, seed=3)
    assert sorted(row["id"] for row in whole.collect()) == sorted(ids)
    encoded.unpersist()


def _gated(spark, rows):
    columns = "id string, reason string, label string, breaks int"
    return spark.createDataFrame(
        [(f"r{n}", reason, label, 0) for n, (reason, label) in enumerate(rows)], columns
    )


def test_a_column_of_texts_for_labels_is_refused_without_collecting_it(spark, monkeypatch):
    monkeypatch.setattr(labels, "MOST_LABELS", 50)
    monkeypatch.setattr(counting, "_MOST_COUNTED", 200)
    gated = _gated(spark, [(None, f"some text {n}") for n in range(1_000)])
    with pytest.raises(DataError, match="too many values to be one") as caught:
        counting.at_gate(gated, DataSection())
    assert "'some text 0', 'some text 999'" in caught.value.got


def test_a_column_of_texts_for_sets_of_labels_is_refused_without_collecting_it(spark, monkeypatch):
    monkeypatch.setattr(labels, "MOST_LABELS", 50)
    data = DataSection(task="multi_label")
    rows = [(None, f'["some text {n:03d}","{n % 7}"]') for n in range(1_000)]
    few = counting.labels_of(_gated(spark, rows[:40]), data)
    assert len(few) == 47 and few["6"] == 5
    with most_collected(spark) as most, pytest.raises(DataError, match="too many values") as caught:
        counting.labels_of(_gated(spark, rows), data)
    assert "'0', 'some text 999'" in caught.value.got
    assert most == [51]


def test_images_of_a_label_each_are_refused_without_collecting_them(spark, monkeypatch, tmp_path):
    monkeypatch.setattr(labels, "MOST_LABELS", 5)
    monkeypatch.setattr(counting, "_MOST_COUNTED", 20)
    png_bytes = [png(np.full((9, 9), n, np.uint8)) for n in range(40)]
    table = pa.table({"image": png_bytes, "label": [f"some text {n}" for n in range(40)]})
    pq.write_table(table, tmp_path / "a.parquet")
    files = {"source": str(tmp_path / "a.parquet"), "dataset": str(tmp_path / "dataset")}
    settings = {"data": {"kind": "image", **files}, "training": {"framework": "torch"}}
    config = from_dict(settings)
    encoder = ImageEncoder.load(write_processor(str(tmp_path / "vit")))
    kept = []
    with most_collected(spark) as most, pytest.raises(DataError, match="too many values to be one"):
        build.from_images(
            spark, official.resolve(config.data), config, encoder, kept, print, scratch=None
        )
    assert most == [21]
    for one in kept:
        one.unpersist()


@contextlib.contextmanager
def most_collected(spark):
    """A list, which gets the most rows that one `collect` inside brings to the driver."""
    frames = type(spark.range(0))
    most, real = [], frames.collect

    def collect(frame):
        rows = real(frame)
        most[:] = [max(*most, len(rows))] if most else [len(rows)]
        return rows

    frames.collect = collect
    try:
        yield most
    finally:
        frames.collect = real


def test_of_many_labels_of_rejected_rows_the_frequent_ones_are_told(spark, monkeypatch):
    monkeypatch.setattr(labels, "MOST_LABELS", 5)
    monkeypatch.setattr(counting, "_MOST_COUNTED", 20)
    rows = [(None, "ab"[n % 2]) for n in range(40)]
    rows += [("bad_label", f"other {n}") for n in range(100)]
    rows += [("bad_label", "often")] * 7 + [("too_short", None)] * 3
    counts, lines = counting.at_gate(_gated(spark, rows), DataSection())
    assert (counts[None, "a"], counts[None, "b"], counts["bad_label", "often"]) == (20, 20, 7)
    assert counts["too_short", None] == 3 and lines == []
    assert sum(n for (reason, _), n in counts.items() if reason == "bad_label") == 107
    assert len(counts) == 2 + 5 + 1  # labels, the five most frequent, the sum of all others
