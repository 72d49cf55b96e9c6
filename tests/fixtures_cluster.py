"""A real HDFS and YARN on loopback for the tests marked `hadoop`, one for the whole session."""

import contextlib
import os
import uuid

import pytest

# Directories of running ones: they are used, and left running.
REUSE = "HOWDAH_TEST_CLUSTER"
REUSE_SECURE = "HOWDAH_TEST_SECURE_CLUSTER"


@contextlib.contextmanager
def running(reused, tmp_path_factory, name, **options):
    """The cluster in the directory `reused`, left running; or one of our own, ended and removed."""
    from yarn.minicluster import MiniCluster

    if reused:
        there = MiniCluster(reused)
        there.wait_healthy()
        yield there
        return
    own = MiniCluster(tmp_path_factory.mktemp(name))
    own.start(**options)
    try:
        yield own
    finally:
        own.stop(remove=True)


@contextlib.contextmanager
def fresh_dir(cluster):
    """A new directory on HDFS, as hdfs:// URL; anyone may write there; removed afterwards."""
    cluster.mend()
    path = f"/test/{uuid.uuid4().hex[:12]}"
    cluster.make_dir(path)
    yield cluster.hdfs_url + path
    cluster.mend()
    cluster.remove(path)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """The session's `MiniCluster`: tests may kill, stop, pause and restart its daemons.

    It is made well again for each test that asks for it by `hdfs_dir` or `healthy_cluster`.
    """
    with running(os.environ.get(REUSE), tmp_path_factory, "cluster") as found:
        yield found


@pytest.fixture
def healthy_cluster(cluster):
    """The cluster with every daemon up and out of safe mode, also when a test before failed."""
    cluster.mend()
    return cluster


@pytest.fixture
def hdfs_dir(cluster):
    """A fresh directory on HDFS, as hdfs:// URL; removed afterwards."""
    with fresh_dir(cluster) as url:
        yield url


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
    reused = os.environ.get(REUSE_SECURE)
    with running(reused, tmp_path_factory, "secure", secure=True) as found:
        yield found


@pytest.fixture
def secure_dir(secure_cluster):
    """A fresh directory on the secure cluster's HDFS, as hdfs:// URL; anyone may write there."""
    with fresh_dir(secure_cluster) as url:
        yield url
