"""One contract for every storage: what holds on files holds in memory (and on HDFS later)."""

import os
import subprocess
import sys
import threading

import pytest

from howdah import storage
from howdah.errors import (
    AlreadyExists,
    DataError,
    NotFound,
    PermissionDenied,
    StorageError,
    StorageFull,
)


@pytest.fixture(params=["plain", "file", "memory"])
def base(request, tmp_path):
    """An empty directory on each storage."""
    if request.param == "memory":
        path = f"memory://{tmp_path.name}-{os.getpid()}"
        yield path
        storage.remove(path, recursive=True)
    else:
        yield str(tmp_path) if request.param == "plain" else f"file://{tmp_path}"


def test_write_whole_replaces_and_reads_back(base):
    path = storage.join(base, "a", "b.json")
    storage.write_whole(path, b'{"x": 1}')
    storage.write_whole(path, b'{"x": 2}')
    assert storage.read_json(path) == {"x": 2}
    assert storage.size(path) == 8
    assert [e.name for e in storage.list_dir(storage.parent(path), unfinished=True)] == ["b.json"]


def test_create_exclusive_keeps_the_first(base):
    path = storage.join(base, "manifest.json")
    storage.create_exclusive(path, b"first")
    with pytest.raises(AlreadyExists) as caught:
        storage.create_exclusive(path, b"second")
    assert caught.value.where == path
    assert storage.read_bytes(path) == b"first"
    assert [e.name for e in storage.list_dir(base, unfinished=True)] == ["manifest.json"]


def test_create_exclusive_has_one_winner_among_many(base):
    path = storage.join(base, "manifest.json")
    won, lost = [], []
    start = threading.Barrier(8)

    def create(n: int) -> None:
        start.wait()
        try:
            storage.create_exclusive(path, str(n).encode())
            won.append(n)
        except AlreadyExists:
            lost.append(n)

    threads = [threading.Thread(target=create, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1 and len(lost) == 7
    assert storage.read_bytes(path) == str(won[0]).encode()


def test_rename_dir_publishes_once(base):
    for attempt in ("1", "2"):
        storage.write_whole(storage.join(base, f"step.{attempt}", "w"), attempt.encode())
    storage.rename_dir(storage.join(base, "step.1"), storage.join(base, "step"))
    with pytest.raises(AlreadyExists):
        storage.rename_dir(storage.join(base, "step.2"), storage.join(base, "step"))
    assert storage.read_bytes(storage.join(base, "step", "w")) == b"1"
    assert not storage.exists(storage.join(base, "step.1"))
    assert storage.exists(storage.join(base, "step.2", "w"))  # refused: nothing lost


def test_listing_is_sorted_and_typed(base):
    for name in ("b", "a", "ü ö", "x=1"):
        storage.write_whole(storage.join(base, name), name.encode())
    storage.make_dirs(storage.join(base, "dir"))
    entries = storage.list_dir(base)
    assert [e.name for e in entries] == sorted(["b", "a", "ü ö", "x=1", "dir"])
    assert {e.name: e.is_dir for e in entries}["dir"]
    assert all(storage.exists(e.path) for e in entries)
    assert storage.read_bytes(storage.join(base, "ü ö")) == "ü ö".encode()


def test_many_small_files(base):
    for n in range(300):
        storage.write_whole(storage.join(base, f"part-{n:05d}"), b"x")
    assert len(storage.list_dir(base)) == 300
    found = storage.find(storage.join(base, "part-0000*"))
    assert [storage.name(p) for p in found] == [f"part-{n:05d}" for n in range(10)]
    assert storage.read_bytes(found[0]) == b"x"


def test_missing_paths_are_typed_or_harmless(base):
    missing = storage.join(base, "nope")
    for ask in (storage.read_bytes, storage.list_dir, storage.size, storage.open_read):
        with pytest.raises(NotFound) as caught:
            ask(missing)
        assert caught.value.where == missing and caught.value.remedy
    storage.remove(missing)
    storage.remove(missing, recursive=True)
    assert not storage.exists(missing) and not storage.is_dir(missing)


def test_download_and_upload(base, tmp_path):
    local = str(tmp_path / "local.bin")
    data = os.urandom(3_000_000)
    with open(local, "wb") as file:
        file.write(data)
    path = storage.join(base, "deep", "er", "x.bin")
    storage.upload(local, path)
    storage.download(path, local + ".back")
    with open(local + ".back", "rb") as file:
        assert file.read() == data
    with storage.open_read(path) as file:
        file.seek(1_000_000)
        assert file.read(16) == data[1_000_000:1_000_016]


def test_failed_write_leaves_the_old_file_and_no_litter(base, monkeypatch):
    path = storage.join(base, "config.yaml")
    storage.write_whole(path, b"old")
    monkeypatch.setattr(storage, "_fs", _refuse) if base.startswith(
        "memory"
    ) else monkeypatch.setattr(os, "replace", _refuse)
    with pytest.raises(StorageFull) as caught:
        storage.write_whole(path, b"new")
    monkeypatch.undo()
    assert "no space left" in caught.value.what and caught.value.remedy
    assert storage.read_bytes(path) == b"old"
    assert [e.name for e in storage.list_dir(base, unfinished=True)] == ["config.yaml"]


def _refuse(*args, **kwargs):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("part", ["..", "a/../../b", "/etc/passwd", "memory://x", "a\0b"])
def test_join_refuses_to_leave_the_directory(part):
    with pytest.raises(StorageError, match="leave its directory"):
        storage.join("/data", part)


def test_join_parent_name():
    assert storage.join("hdfs://nn:8020/a/", "b", "c") == "hdfs://nn:8020/a/b/c"
    assert storage.parent("hdfs://nn:8020/a/b") == "hdfs://nn:8020/a"
    assert storage.parent("file.txt") == "." and storage.parent("/file") == "/"
    assert storage.name("hdfs://nn:8020/a/b/") == "b"


def test_unknown_scheme_is_named():
    with pytest.raises(StorageError) as caught:
        storage.read_bytes("gopher://host/x")
    assert "gopher" in caught.value.what


def test_not_utf8_and_not_json(base):
    path = storage.join(base, "x")
    storage.write_whole(path, b"ab\xff")
    with pytest.raises(DataError, match="UTF-8"):
        storage.read_text(path)
    storage.write_whole(path, b'{"a": ]')
    with pytest.raises(DataError, match="JSON"):
        storage.read_json(path)


def test_permission_denied_is_typed(tmp_path):
    """Root passes every permission check, so the asking process is a child without rights."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o755)
    path = str(closed / "x")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if os.geteuid() == 0:
                os.setuid(65534)
            else:
                closed.chmod(0o500)
            storage.write_whole(path, b"x")
        except PermissionDenied as error:
            code = 0 if error.where == path and error.remedy else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert storage.list_dir(str(closed)) == []


def test_a_killed_writer_leaves_no_part_under_the_name(tmp_path):
    """SIGKILL between the temporary file and the rename: the old file stands, whole."""
    path = str(tmp_path / "file")
    storage.write_whole(path, b"old")
    script = (
        "import os, signal; from howdah import storage\n"
        "os.replace = lambda *a: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"storage.write_whole({path!r}, b'new')"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=os.getcwd(), timeout=60)
    assert done.returncode == -9
    assert storage.read_bytes(path) == b"old"
    assert [e.name for e in storage.list_dir(str(tmp_path))] == ["file"]


@pytest.mark.full
def test_large_file(tmp_path):
    """More than 2 GB through download: no 32-bit size anywhere."""
    big = tmp_path / "big"
    with open(big, "wb") as file:
        file.seek(2**31 + 5)
        file.write(b"end")
    storage.download(str(big), str(tmp_path / "copy"))
    assert storage.size(str(tmp_path / "copy")) == 2**31 + 8
