"""HttpFS, the HTTP gateway of firewalled clusters: it can be read from, and is never written to."""

import io
import os

import pytest

from howdah import storage
from howdah.errors import AlreadyExists, NotFound, PermissionDenied, StorageError
from tests.storage.test_contract import ODD_NAMES

pytestmark = [pytest.mark.hadoop, pytest.mark.full]


@pytest.fixture
def place(cluster, httpfs, hdfs_dir):
    """A fresh directory, by HDFS' own protocol and through the gateway."""
    return hdfs_dir, httpfs + hdfs_dir.removeprefix(cluster.hdfs_url)


@pytest.fixture(params=["inodes", "no inodes"])
def gateway(request, httpfs, monkeypatch):
    """A gateway as it is, and one like older versions, which report no inodes."""
    if request.param == "no inodes":
        from hdfs import InsecureClient

        status = InsecureClient.status

        def older(self, *args, **options):
            return {k: v for k, v in status(self, *args, **options).items() if k != "fileId"}

        monkeypatch.setattr(InsecureClient, "status", older)


def test_files_are_listed_found_and_looked_up(place):
    direct, through = place
    for name in ODD_NAMES:
        storage.write_whole(storage.join(direct, "odd", name), name.encode())
    storage.make_dirs(storage.join(direct, "empty"))
    assert [e.name for e in storage.list_dir(through)] == ["empty", "odd"]
    listed = storage.list_dir(storage.join(through, "odd"))
    assert sorted(e.name for e in listed) == sorted(ODD_NAMES)
    for entry in listed:
        assert storage.read_bytes(entry.path) == entry.name.encode()
        assert storage.entry(entry.path) == entry and entry.size == len(entry.name.encode())
    assert storage.list_dir(storage.join(through, "empty")) == []
    assert storage.is_dir(through) and not storage.is_dir(listed[0].path)
    direct_entry = storage.entry(storage.join(direct, "odd", "x=1"))
    assert storage.modified(storage.join(through, "odd", "x=1")) == direct_entry.modified
    paths = storage.find(storage.join(through, "**", "x=*"))
    assert paths == [storage.join(through, "odd", "x=1")]
    with pytest.raises(StorageError, match="file"):
        storage.list_dir(paths[0])


def test_missing_and_forbidden_files_are_typed_errors(place, monkeypatch):
    direct, through = place
    missing = storage.join(through, "nope")
    for ask in (storage.read_bytes, storage.list_dir, storage.size, storage.open_read):
        with pytest.raises(NotFound) as caught:
            ask(missing)
        assert caught.value.where == missing and caught.value.remedy
    assert not storage.exists(missing) and storage.find(f"{missing}/*") == []
    with pytest.raises(StorageError, match="directory"):
        storage.open_read(through)
    closed = storage.join(direct, "closed", "x")
    storage.write_whole(closed, b"x")
    from tests.storage.test_hdfs import bare

    cluster_side = bare(storage.parent(closed))
    monkeypatch.setenv("HADOOP_USER_NAME", "alice")
    assert storage.read_bytes(storage.join(through, "closed", "x")) == b"x"
    monkeypatch.delenv("HADOOP_USER_NAME")
    _chmod(direct, cluster_side, "700")
    monkeypatch.setenv("HADOOP_USER_NAME", "alice")
    path = storage.join(through, "closed", "x")
    with pytest.raises(PermissionDenied) as caught:
        storage.read_bytes(path)
    assert caught.value.where == path and "alice" in caught.value.got


def _chmod(direct, path, mode):
    import hdfs_native

    client = hdfs_native.Client(direct[: direct.index("/", len("hdfs://"))])
    client.set_permission(path, int(mode, 8))


def test_windows_anywhere_in_a_large_file(place, gateway):
    direct, through = place
    data = os.urandom(20 * 2**20 + 12_345)
    storage.write_whole(storage.join(direct, "x"), data)
    path = storage.join(through, "x")
    assert storage.read_bytes(path) == data
    with storage.open_read(path) as file:
        assert file.seek(9_000_000) == 9_000_000
        assert file.read(16) == data[9_000_000:9_000_016]
        file.seek(-10, io.SEEK_END)
        assert file.read(100) == data[-10:] and file.read(1) == b""
        file.seek(3)
        assert b"".join(iter(lambda: file.read(65_537), b"")) == data[3:]


def test_a_reader_never_mixes_two_files(place, gateway):
    direct, through = place
    old, new = b"o" * 9_000_000, b"n" * 9_000_000
    storage.write_whole(storage.join(direct, "big"), old)
    path = storage.join(through, "big")
    with storage.open_read(path) as file:
        assert file.read(10) == b"o" * 10
        storage.write_whole(storage.join(direct, "big"), new)
        file.seek(8_999_000)
        with pytest.raises(StorageError) as caught:
            file.read()
    assert caught.value.where == path and "replaced" in caught.value.what
    assert storage.read_bytes(path) == new


def test_writes_are_refused_where_a_rename_would_not_be_safe(place):
    direct, through = place
    storage.write_whole(storage.join(direct, "old"), b"old")
    storage.write_whole(storage.join(direct, "step.new", "w"), b"new")
    storage.write_whole(storage.join(direct, "step", "w"), b"there")
    for act in (
        lambda: storage.write_whole(storage.join(through, "old"), b"new"),
        lambda: storage.create_exclusive(storage.join(through, "other"), b"new"),
        lambda: storage.write_stream(storage.join(through, "s"), lambda file: file.write(b"s")),
        lambda: storage.rename_dir(storage.join(through, "step.new"), storage.join(through, "one")),
    ):
        with pytest.raises(StorageError, match="renameoptions") as caught:
            act()
        assert caught.value.where.startswith(through) and "HttpFS" in caught.value.remedy
    with pytest.raises(AlreadyExists):
        storage.rename_dir(storage.join(through, "step.new"), storage.join(through, "step"))
    names = [e.name for e in storage.list_dir(direct, unfinished=True)]
    assert names == ["old", "step", "step.new"]
    assert storage.read_bytes(storage.join(direct, "old")) == b"old"
    assert [e.name for e in storage.list_dir(storage.join(direct, "step"))] == ["w"]
