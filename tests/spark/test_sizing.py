"""Spark settings by size: from the executors and the source, and never over the user's own."""

import pytest

from howdah.config.data import SparkOptions
from howdah.spark import sizing


@pytest.mark.parametrize(
    ("given", "overhead"),
    [
        ({"executor_memory": "4g", "executor_cores": 2}, "1184m"),
        ({"executor_memory": "512m", "executor_cores": 1}, "784m"),
        ({"executor_memory": "40g", "executor_cores": 2}, "4096m"),  # a tenth is more
        ({"executor_cores": 8, "conf": {"spark.task.cpus": "4"}}, "1184m"),
        ({"conf": {"spark.executor.cores": "4"}}, "1984m"),
    ],
)
def test_an_executor_has_room_for_its_python_workers(given, overhead):
    found = sizing.executor_overhead(SparkOptions(**given))
    assert found == {"spark.executor.memoryOverhead": overhead}


@pytest.mark.parametrize("key", ["memoryOverhead", "memoryOverheadFactor"])
def test_the_user_s_overhead_counts(key):
    assert sizing.executor_overhead(SparkOptions(conf={f"spark.executor.{key}": "1"})) == {}


def test_partitions_follow_cores_and_bytes():
    def partitions(size, **options):
        return sizing.for_source(SparkOptions(**options), size)["spark.sql.shuffle.partitions"]

    assert partitions(None) == partitions(2**30) == "200"
    assert partitions(10, executors=2, executor_cores=1) == "6"
    assert partitions(10 * 2**20, executors=2, executor_cores=1) == "40"
    assert partitions(10, executors=200, executor_cores=2) == "1200"
    assert partitions(100 * 2**30, executors=10) == "1600"
    mine = {"spark.sql.shuffle.partitions": "7"}
    assert sizing.for_source(SparkOptions(conf=mine), 10) == {
        "spark.sql.execution.arrow.maxRecordsPerBatch": "2000"
    }
