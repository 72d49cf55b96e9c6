"""Spark settings by size: from the executors and the source, and never over the user's own."""

import pytest

from howdah.config.data import SparkOptions
from howdah.config.loader import from_dict
from howdah.errors import ConfigError
from howdah.etl import pipeline
from howdah.etl.sources.source import Source
from howdah.spark import sizing


@pytest.mark.parametrize(
    ("options", "overhead"),
    [
        ({"executor_memory": "4g", "executor_cores": 2}, "1184m"),
        ({"executor_memory": "512m", "executor_cores": 1}, "784m"),
        ({"executor_memory": "40g", "executor_cores": 2}, "4096m"),  # a tenth is more
        ({"executor_cores": 8, "conf": {"spark.task.cpus": "4"}}, "1184m"),
        ({"conf": {"spark.executor.cores": "4"}}, "1984m"),
    ],
)
def test_an_executor_has_room_for_its_python_workers(options, overhead):
    settings = sizing.executor_overhead(SparkOptions(**options))
    assert settings == {"spark.executor.memoryOverhead": overhead}


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


def test_a_local_master_of_all_cores_has_those_that_the_process_may_use(monkeypatch):
    monkeypatch.setattr(sizing.machine, "cores", lambda: 3)
    assert sizing.local_cores("local[*]") == sizing.local_cores("local[*, 4]") == 3


@pytest.mark.spark
@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"master": "yarn"}, "spark.executor.memoryOverhead=1184m, spark.sql.shuffle.partitions=6"),
        ({"master": "spark://one:7077"}, "gives none: spark.sql.shuffle.partitions=6"),
        ({"master": "yarn", "conf": {"spark.executor.memoryOverhead": "2g"}}, "none: spark.sql"),
    ],
)
def test_all_that_is_set_is_printed(spark, options, shown):
    keys = ("spark.sql.shuffle.partitions", "spark.sql.execution.arrow.maxRecordsPerBatch")
    before = {key: spark.conf.get(key) for key in keys}
    config = from_dict({"data": {"spark": options}})
    source = Source(kind="hive", name="t", identity={"files": [["a", 10, 0.0]]})
    lines = []
    try:
        pipeline._size(spark, config, source, lines.append)
        assert spark.conf.get(keys[0]) == "6"
    finally:
        for key, value in before.items():
            spark.conf.set(key, value)
    (line,) = lines
    assert shown in line and line.endswith("spark.sql.execution.arrow.maxRecordsPerBatch=2000")


def test_a_small_source_gets_a_session_for_it_and_a_larger_or_unknown_one_does_not():
    assert sizing.for_small(1)["spark.sql.shuffle.partitions"] == "1"
    assert sizing.for_small(2 * 2**20) and not sizing.for_small(2 * 2**20 + 1)
    assert sizing.for_small(None) == {}


@pytest.mark.parametrize("key", ["spark.executor.cores", "spark.task.cpus"])
def test_a_number_of_spark_that_is_none_is_a_config_error(key):
    options = SparkOptions(conf={key: "two"})
    with pytest.raises(ConfigError, match="not a whole number") as caught:
        sizing.executor_overhead(options)
    assert caught.value.where == f"data.spark.conf: {key}"
    assert sizing.executor_overhead(SparkOptions(conf={"spark.task.cpus": "0"}))  # Spark refuses it
