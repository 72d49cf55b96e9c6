"""What each setting of Spark changes, one at a time: seconds, tasks, bytes that are shuffled.
Tasks, bytes and rows come from the event log, the file that Spark's own pages are made of."""

import json
import math
import os
import sys
import time
from collections import defaultdict
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

GRAY = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
ROUNDS = 2  # the first compiles and starts Python's workers; the second counts
os.environ["PYSPARK_PYTHON"] = sys.executable
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    .config("spark.eventLog.enabled", "true").config("spark.eventLog.dir", "file:" + os.getcwd())
    .config("spark.eventLog.rolling.enabled", "false").config("spark.eventLog.compress", "false")
    .getOrCreate()
)  # fmt: skip
spark.sparkContext.setLogLevel("ERROR")
SHUFFLE, FILES = "spark.sql.shuffle.partitions", "spark.sql.files.maxPartitionBytes"
BROADCAST = "spark.sql.autoBroadcastJoinThreshold"
ADAPTIVE, MERGE = (f"spark.sql.adaptive.{key}enabled" for key in ("", "coalescePartitions."))
print(f"shuffle partitions that Spark starts with = {spark.conf.get(SHUFFLE)}")
print(f"adaptive execution that Spark starts with: {spark.conf.get(ADAPTIVE)}")
events = spark.read.parquet("events.parquet")
events.limit(150_000).coalesce(1).write.csv("one-file", "overwrite", compression="gzip")
one_file = spark.read.schema(events.schema).csv("one-file")
users = spark.read.parquet("features").select("user_id", "favorite_category")
work = F.sha2(F.sha2(F.sha2(F.sha2("event_type", 512), 512), 512), 512)  # costly, on each row
worked = one_file.withColumn("digest", work)
questions = [worked.groupBy(key).agg(F.max("digest")) for key in ("user_id", "category")]
per_user = (F.count("*"), F.sum("amount"), F.max("date"))
sums = events.groupBy("user_id").agg(*per_user)
moved_sums = events.repartition(8, "user_id").groupBy("user_id").agg(*per_user)
by_category = (F.sum("amount"), F.max("event_id"), F.max("date"))  # of the user's favorite
join, broadcast = (
    events.join(side, "user_id").groupBy("favorite_category").agg(*by_category)
    for side in (users, F.broadcast(users))
)
FIXED = {
    ADAPTIVE: "false", MERGE: "true", SHUFFLE: "8", BROADCAST: "-1", FILES: "1m",
    # Skewed is a partition above 256 MB and 5 medians. This table is small, and so are the limits.
    "spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes": "256k",
    "spark.sql.adaptive.skewJoin.skewedPartitionFactor": "2",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "256k",
}  # fmt: skip
runs = {  # name: (queries, settings that differ from FIXED)
    "work on a gzip file": ([worked], {}),
    "work, repartition": ([one_file.repartition(8).withColumn("digest", work)], {}),
    "sums by user": ([sums], {}),
    "sums, repartition by user": ([moved_sums], {}),
    "two questions to the work": (questions, {}),
    "two questions, cache": (questions, {}),
    "join": ([join], {}),
    "join, broadcast": ([broadcast], {}),
    "join, adaptive": ([join], {ADAPTIVE: "true", MERGE: "false"}),  # divides, merges not
    "sums, 2 partitions": ([sums], {SHUFFLE: "2"}),
    "sums, 200 partitions": ([sums], {SHUFFLE: "200"}),
    "sums, 200, adaptive": ([sums], {SHUFFLE: "200", ADAPTIVE: "true"}),
}


def one_batch(amounts: pd.Series) -> pd.Series:
    """A pandas UDF knows by its types what it gets."""
    return np.log1p(amounts)


for name, way in {
    "log1p, built in": F.log1p,
    "log1p, row UDF": F.udf(lambda amount: math.log1p(amount), "double", useArrow=False),
    "log1p, row UDF by Arrow": F.udf(lambda amount: math.log1p(amount), "double", useArrow=True),
    "log1p, pandas UDF": F.pandas_udf(one_batch, "double"),
}.items():
    runs[name] = ([events.agg(F.sum(way("amount")))], {})
    print(f"{name}: sum = {runs[name][0][0].first()[0]:.3f}")

seconds, run_of_stage, tasks = defaultdict(list), {}, defaultdict(list)
for _ in range(ROUNDS):
    for name, (queries, settings) in runs.items():
        if name.endswith("cache"):
            worked.cache()
        for key, value in (FIXED | settings).items():
            spark.conf.set(key, value)
        spark.sparkContext.setJobDescription(name)
        began = time.perf_counter()
        for query in queries:
            query.write.format("noop").mode("overwrite").save()  # computes all, keeps nothing
        seconds[name].append(time.perf_counter() - began)
        spark.catalog.clearCache()
spark.stop()
newest = max(Path().glob("local-*"), key=os.path.getmtime)
for event in map(json.loads, newest.read_text("utf-8").splitlines()):
    if event["Event"] == "SparkListenerJobStart":
        name = event["Properties"].get("spark.job.description")
        run_of_stage |= dict.fromkeys(event["Stage IDs"], name)
    elif event["Event"] == "SparkListenerTaskEnd":
        tasks[run_of_stage[event["Stage ID"]]].append(event["Task Metrics"])
for name in runs:
    shuffled = sum(task["Shuffle Write Metrics"]["Shuffle Bytes Written"] for task in tasks[name])
    largest = max(task["Shuffle Read Metrics"]["Total Records Read"] for task in tasks[name])
    print(f"{name} = {seconds[name][-1]:.2f} s\n{name}: tasks = {len(tasks[name]) // ROUNDS}")
    print(f"{name}: shuffled = {shuffled / ROUNDS / 1e6:.2f} MB")
    print(f"{name}: rows of the largest task = {largest}\n")

plt.rcParams.update(dict.fromkeys(GRAY, "#808080") | {"font.size": 8, "figure.figsize": (6, 3.2)})
bars = plt.barh(list(runs), [seconds[name][-1] for name in runs], color="#1f77b4")
plt.bar_label(bars, [f" {len(tasks[name]) // ROUNDS} tasks" for name in runs])
plt.gca().invert_yaxis()
plt.title("Seconds of each query, one setting changed at a time")
plt.savefig("settings.svg", transparent=True, bbox_inches="tight")
