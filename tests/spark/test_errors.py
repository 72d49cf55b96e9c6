"""How Spark's failures become errors: with a real JVM."""

import signal

import pytest

from howdah.errors import ClusterError, DataError
from howdah.spark.errors import translated

pytestmark = pytest.mark.spark


@pytest.fixture
def gateway():
    from pyspark.java_gateway import launch_gateway

    made = launch_gateway()
    yield made
    made.shutdown()
    if made.proc.poll() is None:
        made.proc.kill()
    made.proc.wait(60)


def test_a_driver_that_was_killed_is_no_fault_of_the_source(gateway):
    system = gateway.jvm.java.lang.System
    assert system.currentTimeMillis() > 0
    gateway.proc.send_signal(signal.SIGKILL)
    gateway.proc.wait(60)
    for _ in range(3):  # the first may use the connection that was open, the others connect anew
        with (
            pytest.raises(ClusterError, match="ended when it was to read the source"),
            translated("read the source", DataError),
        ):
            system.currentTimeMillis()


def test_what_java_throws_stays_a_fault_of_the_source(gateway):
    with (
        pytest.raises(DataError, match="could not read the source"),
        translated("read the source", DataError),
    ):
        gateway.jvm.java.lang.Integer.parseInt("no number")


def test_a_method_that_java_lacks_is_no_lost_driver(gateway):
    with (
        pytest.raises(ClusterError, match="could not read the source"),
        translated("read the source"),
    ):
        gateway.jvm.java.lang.System.noSuchMethod()
