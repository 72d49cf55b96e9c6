"""A real HDFS and YARN on loopback for the tests marked `hadoop`, one for the whole session."""

import contextlib
import os
import uuid

import pytest

REUSE = "HOWDAH_TEST_CLUSTER"  # directory of a running one: it is used, and left running


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """The session's `MiniCluster`: tests may kill, stop, pause and restart its daemons.

    It is made well again for each test that asks for it by `hdfs_dir` or `healthy_cluster`.
    """
    from yarn.minicluster import MiniCluster

    reused = os.environ.get(REUSE)
    if reused:
        running = MiniCluster(reused)
        running.wait_healthy()
        yield running
        return
    own = MiniCluster(tmp_path_factory.mktemp("cluster"))
    own.start()
    try:
        yield own
    finally:
        own.stop(remove=True)


@pytest.fixture
def healthy_cluster(cluster):
    """The cluster with every daemon up and out of safe mode, also when a test before failed."""
    cluster.mend()
    return cluster


@pytest.fixture
def hdfs_dir(healthy_cluster):
    """A fresh directory on HDFS, as hdfs:// URL; removed afterwards."""
    path = f"/test/{uuid.uuid4().hex[:12]}"
    healthy_cluster.make_dir(path)
    yield healthy_cluster.hdfs_url + path
    healthy_cluster.mend()
    healthy_cluster.remove(path)


@pytest.fixture
def hadoop_env(cluster, monkeypatch):
    """HADOOP_CONF_DIR, HADOOP_HOME, JAVA_HOME and PATH of the cluster in this process."""
    for key, value in cluster.env.items():
        if os.environ.get(key) != value:
            monkeypatch.setenv(key, value)
    with contextlib.suppress(KeyError):
        monkeypatch.delenv("HADOOP_USER_NAME")
    return cluster
