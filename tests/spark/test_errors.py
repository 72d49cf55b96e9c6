"""How Spark's failures become errors: with a real JVM."""

import signal

import pytest

from howdah.errors import ClusterError, DataError, QuotaExceeded
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
            pytest.raises(ClusterError, match="ended while it tried to read the source"),
            translated("read the source", DataError),
        ):
            system.currentTimeMillis()


def test_what_java_throws_stays_a_fault_of_the_source(gateway):
    with (
        pytest.raises(DataError, match="could not read the source"),
        translated("read the source", DataError),
    ):
        gateway.jvm.java.lang.Integer.parseInt("no number")


def test_a_codec_that_spark_lacks_is_named_with_what_helps(gateway):
    with (
        pytest.raises(DataError, match="could not read the source") as caught,
        translated("read the source", DataError),
    ):
        gateway.jvm.java.lang.Class.forName("org.apache.hadoop.io.compress.BrotliCodec")
    assert "spark.jars" in caught.value.remedy and "BrotliCodec" in caught.value.got


def test_a_method_that_java_lacks_is_no_lost_driver(gateway):
    with (
        pytest.raises(ClusterError, match="could not read the source"),
        translated("read the source"),
    ):
        gateway.jvm.java.lang.System.noSuchMethod()


def test_a_quota_that_spark_meets_is_named():
    from pyspark.errors import PySparkException

    text = (
        "Job aborted.\nCaused by: org.apache.hadoop.ipc.RemoteException(org.apache.hadoop.hdfs."
        "protocol.NSQuotaExceededException): The NameSpace quota (directories and files) of"
        " directory /d is exceeded: quota=7 file count=8\n\tat org.apache"
    )
    with (
        pytest.raises(QuotaExceeded) as caught,
        translated("keep intermediate data", writes="hdfs://n/d/scratch"),
    ):
        raise PySparkException(text)
    assert caught.value.what == "cannot keep intermediate data: the quota is used up"
    assert (caught.value.where, caught.value.got) == (
        "hdfs://n/d/scratch", "quota of /d 7 names; with this write 8",
    )  # fmt: skip
