"""A real HDFS and YARN on loopback for the tests marked `hadoop`, one for the whole session."""

import contextlib
import os
import uuid

import pytest

# Directories of running ones: they are used, and left running.
REUSE = "HOWDAH_TEST_CLUSTER"
REUSE_SECURE = "HOWDAH_TEST_SECURE_CLUSTER"


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


@pytest.fixture(scope="session")
def secure_cluster(tmp_path_factory):
    """The same with Kerberos: `.realm`, `.krb5_conf`, `.keytab(user)`, `.principal(user)`.

    Its `.env` has KRB5_CONFIG, JAVA_TOOL_OPTIONS and a ticket cache of its own, empty at first.
    """
    from yarn.minicluster import MiniCluster

    reused = os.environ.get(REUSE_SECURE)
    if reused:
        running = MiniCluster(reused)
        running.wait_healthy()
        yield running
        return
    own = MiniCluster(tmp_path_factory.mktemp("secure"))
    own.start(secure=True)
    try:
        yield own
    finally:
        own.stop(remove=True)


@pytest.fixture
def secure_dir(secure_cluster):
    """A fresh directory on the secure cluster's HDFS, as hdfs:// URL; anyone may write there."""
    secure_cluster.mend()
    path = f"/test/{uuid.uuid4().hex[:12]}"
    secure_cluster.make_dir(path)
    yield secure_cluster.hdfs_url + path
    secure_cluster.mend()
    secure_cluster.remove(path)
