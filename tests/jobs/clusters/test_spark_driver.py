"""Containers that are tasks of a Spark application, as the driver of a job lists them."""

import socket

import pytest

from howdah.config import loader
from howdah.jobs.backend import DriverAddress
from tests.runs.jobs.driver_world import elastic
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark


@pytest.fixture
def backend(spark, tmp_path):
    from howdah.jobs.clusters.spark_driver import SparkDriver

    made = []

    def make(config):
        one = SparkDriver(spark.sparkContext, tmp_path.name, str(tmp_path), config, secret_env={},
                          address="127.0.0.1")  # fmt: skip
        made.append(one)
        return one

    yield make
    for one in made:
        one.end_all()


def until(backend, state):
    """The containers, once all of them are in a state."""
    return wait_until(
        lambda: all(one.state == state for one in backend.containers()) and backend.containers(), 60
    )


def test_where_a_task_runs_is_not_known_until_it_has_returned(backend):
    """The driver's own host would be charged with what executors elsewhere fail at."""
    config = loader.from_dict({"run": {"directory": "run"}})
    one = backend(loader.dump_yaml(config))
    with socket.create_server(("127.0.0.1", 0)) as silent:  # its agent waits for an answer
        one.publish(DriverAddress("127.0.0.1", silent.getsockname()[1], one.session_key()))
        one.keep(1)
        [running] = until(one, "running")
        assert running.node == ""
        job = elastic(node_failures=1).job
        job.nodes.seen("n1")
        job.nodes.failed(socket.gethostname(), "x", "a failure of the driver's host", 1000.0)
        assert job.nodes.excluded(socket.gethostname())
        job.listed([running], 1000.0)
        assert not job.nodes.refused
        one.release(running.id)
        [ended] = until(one, "ended")
        assert (ended.node, ended.reason) == ("", "killed")


def test_a_task_that_has_returned_says_where_it_ran(backend):
    one = backend("no: configuration")
    one.publish(DriverAddress("127.0.0.1", 9, one.session_key()))
    one.keep(1)
    [ended] = until(one, "ended")
    assert (ended.node, ended.reason) == (socket.gethostname(), "failed"), ended.message
