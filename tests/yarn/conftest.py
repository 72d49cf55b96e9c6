"""Jobs of the command line on the healthy cluster, with data of the test file's own."""

import pytest

from howdah import storage
from tests.runs.jobs.yarn_jobs import Jobs, place_data


@pytest.fixture(scope="module")
def home(request, cluster, tiny_model_dir):
    """A directory on HDFS with the data."""
    url = f"{cluster.hdfs_url}/test/{request.module.__name__}"
    place_data(url, tiny_model_dir)
    yield url
    storage.remove(url, recursive=True)


@pytest.fixture
def jobs(healthy_cluster, home, tmp_path, monkeypatch):
    """The command line; applications that a test leaves behind are ended."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(healthy_cluster.conf_dir))
    yield Jobs(healthy_cluster, tmp_path)
    healthy_cluster.end_applications()
