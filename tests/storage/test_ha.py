"""Storage on a highly available HDFS: a real pair of NameNodes, one active, one standby."""

import threading

import pytest

from howdah import storage
from howdah.errors import AlreadyExists, StorageUnavailable
from tests.support.hadoop.ha_pair import NAMENODES, SERVICE, HaPair

pytestmark = [pytest.mark.hadoop, pytest.mark.full]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    with HaPair(tmp_path_factory.mktemp("pair") / "hdfs") as nodes:
        yield nodes


@pytest.fixture
def both_up(pair, monkeypatch):
    """nn1 is on standby and nn2 active: the first address is never the right one."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(pair.conf_dir))
    for name in NAMENODES:
        if pair.state(name) is None:
            pair.start(name)
    if pair.state("nn2") != "active":
        pair.kill("nn1")
        pair.activate("nn2")
        pair.start("nn1")
    assert (pair.state("nn1"), pair.state("nn2")) == ("standby", "active")
    return pair


@pytest.mark.parametrize("scheme", ["hdfs", "webhdfs"])
def test_a_standby_that_is_first_is_skipped(both_up, scheme):
    base = f"{scheme}://{SERVICE}/{scheme}"
    storage.create_exclusive(f"{base}/file", b"x" * 100_000)
    assert storage.read_bytes(f"{base}/file") == b"x" * 100_000
    with pytest.raises(AlreadyExists):
        storage.create_exclusive(f"{base}/file", b"y")
    storage.make_dirs(f"{base}/from")
    storage.rename_dir(f"{base}/from", f"{base}/to")
    assert [entry.name for entry in storage.list_dir(base)] == ["file", "to"]


@pytest.mark.parametrize("scheme", ["hdfs", "webhdfs"])
def test_work_continues_after_a_failover(both_up, scheme):
    """The active one is killed; for a moment there is none; what is asked meanwhile waits."""
    base = f"{scheme}://{SERVICE}/over-{scheme}"
    storage.write_whole(f"{base}/before", b"1")
    both_up.kill("nn2")
    done = []
    work = threading.Thread(
        target=lambda: done.append(storage.write_whole(f"{base}/during", b"2" * 3_000_000))
    )
    work.start()
    both_up.activate("nn1")
    work.join(120)
    assert done == [None]
    assert storage.read_bytes(f"{base}/before") == b"1"
    assert storage.read_bytes(f"{base}/during") == b"2" * 3_000_000


def test_without_an_active_namenode_storage_is_unavailable(both_up, monkeypatch):
    monkeypatch.setenv("HOWDAH_STORAGE_RETRY_SECONDS", "1")
    both_up.kill("nn2")
    with pytest.raises(StorageUnavailable) as caught:
        storage.write_whole(f"hdfs://{SERVICE}/none", b"x")
    assert SERVICE in caught.value.where
    both_up.activate("nn1")
    storage.write_whole(f"hdfs://{SERVICE}/none", b"x")
