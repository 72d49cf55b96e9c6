"""One local Spark session for all tests that need one: starting it costs seconds."""

import pytest


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """A local[2] session on loopback; `etl.pipeline.run` uses it, since it is active."""
    from etl.spark import session
    from howdah.config_model import SparkOptions

    place = tmp_path_factory.mktemp("spark")
    options = SparkOptions(
        master="local[2]",
        driver_memory="1g",
        conf={"spark.sql.warehouse.dir": str(place), "spark.local.dir": str(place)},
    )
    with session(options) as active:
        yield active
