"""One local Spark session for all tests that need one: starting it costs seconds."""

import os

import pytest

# Tests start many short JVMs on two cores: without the second compiler and the collector's threads
# a small ETL takes a quarter less time. Commands that tests start inherit it; the ETL's containers
# on YARN get it from fixtures_etl_yarn.SPARK.
SHORT_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
os.environ.setdefault("SPARK_SUBMIT_OPTS", SHORT_JVM)


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """A local[2] session on loopback; `etl.pipeline.run` uses it, since it is active."""
    from howdah.config_data import SparkOptions
    from howdah.spark.session import session

    place = tmp_path_factory.mktemp("spark")
    options = SparkOptions(
        master="local[2]",
        driver_memory="1g",
        conf={"spark.sql.warehouse.dir": str(place), "spark.local.dir": str(place)},
    )
    with session(options) as active:
        yield active
