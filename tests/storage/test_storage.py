"""Paths, local files, retries. The contract of all storages: test_howdah_storage_contract."""

import concurrent.futures
import errno
import os
import subprocess
import sys

import pytest

from howdah import storage
from howdah.errors import (
    AlreadyExists,
    ConfigError,
    DataError,
    ModelError,
    PermissionDenied,
    StorageError,
    StorageFull,
    StorageUnavailable,
    UsageError,
)
from howdah.storage import backends, retry, shapes


def test_failed_write_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    path = str(tmp_path / "config.yaml")
    storage.write_whole(path, b"old")
    monkeypatch.setattr(os, "replace", _refuse)
    with pytest.raises(StorageFull) as caught:
        storage.write_whole(path, b"new")
    monkeypatch.undo()
    assert "no space left" in caught.value.what and caught.value.remedy
    assert "bytes free" in caught.value.got and caught.value.expected == "room for 3 bytes"
    assert storage.read_bytes(path) == b"old"
    assert [e.name for e in storage.list_dir(str(tmp_path), unfinished=True)] == ["config.yaml"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_typed_when_writes_are_buffered():
    """write() and close() of an open handle raise the typed error, and close() says it again."""
    file = storage.open_write("/dev/full")
    with pytest.raises(StorageFull) as caught:
        file.write(b"x" * 100_000)  # more than the buffer: it fails here
    assert caught.value.where == "/dev/full"
    with pytest.raises(StorageFull):
        file.close()
    with pytest.raises(StorageFull):  # small enough to fail only when it is closed
        with storage.open_write("/dev/full") as file:
            file.write(b"x")


def test_waiting_is_reported_once_and_ends_at_the_limit(monkeypatch, capsys):
    """However many wait for one storage; other errors are answers, never tried again."""
    monkeypatch.setenv("HOWDAH_STORAGE_RETRY_SECONDS", "0.5")
    calls = []

    def away() -> None:
        calls.append(1)
        raise StorageUnavailable("cannot read: storage does not answer", got="refused")

    def ask(n: int) -> StorageUnavailable:
        with pytest.raises(StorageUnavailable) as caught:
            retry.run("hdfs://nn:1/x", away)
        return caught.value

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        errors = list(pool.map(ask, range(3)))
    assert len(calls) > 6 and all("tried again for" in error.got for error in errors)
    text = capsys.readouterr().err
    assert text.count("hdfs://nn:1: cannot read") == 1 and text.count("\n") == 1

    left = [StorageUnavailable("away"), StorageUnavailable("away")]

    def back() -> str:
        if left:
            raise left.pop()
        return "here"

    assert retry.run("hdfs://nn:1/x", back) == "here"
    text = capsys.readouterr().err
    assert "trying again for up to 0 s" in text and "answers again" in text
    lines: list[str] = []
    monkeypatch.setattr(retry, "say", retry.say)  # put back afterwards
    storage.configure(say=lines.append)
    left.append(StorageUnavailable("away"))
    assert retry.run("hdfs://nn:1/x", back) == "here" and len(lines) == 2

    def answer() -> None:
        calls.append(2)
        raise PermissionDenied("no")

    with pytest.raises(PermissionDenied):
        retry.run("hdfs://nn:1/x", answer)
    assert calls.count(2) == 1
    monkeypatch.setenv("HOWDAH_STORAGE_RETRY_SECONDS", "soon")
    with pytest.raises(ConfigError, match="number of seconds"):
        retry.run("hdfs://nn:1/x", back)


def _refuse(*args, **kwargs):
    raise OSError(28, "No space left on device")


def test_configure_sets_the_environment_unless_it_is_set(monkeypatch):
    monkeypatch.delenv("HOWDAH_STORAGE_RETRY_SECONDS", raising=False)
    monkeypatch.delenv("HADOOP_PROXY_USER", raising=False)
    storage.configure(retry_seconds=7.0, user="bob")
    assert retry.limit_seconds() == 7 and os.environ["HADOOP_PROXY_USER"] == "bob"
    storage.configure(retry_seconds=8.0)  # the next configuration of the same process
    assert retry.limit_seconds() == 8 and "HADOOP_PROXY_USER" not in os.environ
    monkeypatch.setenv("HOWDAH_STORAGE_RETRY_SECONDS", "3")
    monkeypatch.setenv("HADOOP_PROXY_USER", "carol")
    storage.configure(retry_seconds=9.0)
    assert retry.limit_seconds() == 3 and os.environ["HADOOP_PROXY_USER"] == "carol"


def lossy(monkeypatch, backend, *, happens: bool, before=lambda: None) -> list[str]:
    """The next rename ends without an answer: it `happens` on the server, or it does not."""
    real, calls = backend.rename, []

    def rename(source: str, target: str, *, replace: bool) -> None:
        calls.append(target)
        if len(calls) > 1:
            return real(source, target, replace=replace)
        if happens:
            real(source, target, replace=replace)
        before()
        raise StorageUnavailable("cannot create: storage does not answer", where=target)

    monkeypatch.setattr(backend, "rename", rename)
    return calls


@pytest.mark.parametrize("happens", [True, False])
def test_a_rename_whose_answer_is_lost_is_done_once(happens, tmp_path, monkeypatch):
    """What the server did without telling is no conflict with oneself, and is not done twice."""
    base = f"memory://lossy-{tmp_path.name}"
    for act, name in (
        (lambda path: storage.create_exclusive(path, b"ours"), "a"),
        (lambda path: storage.write_whole(path, b"ours"), "b"),
    ):
        with monkeypatch.context() as patch:
            calls = lossy(patch, backends.backend_of(base), happens=happens)
            act(f"{base}/{name}")
        assert len(calls) == 2 and storage.read_bytes(f"{base}/{name}") == b"ours"
    storage.write_whole(f"{base}/d.tmp/x", b"x")
    with monkeypatch.context() as patch:
        lossy(patch, backends.backend_of(base), happens=happens)
        storage.rename_dir(f"{base}/d.tmp", f"{base}/d")
    assert [e.name for e in storage.list_dir(base, unfinished=True)] == ["a", "b", "d"]


def test_another_writer_that_was_first_wins(tmp_path, monkeypatch):
    base = f"memory://lossy-{tmp_path.name}"
    backend = backends.backend_of(base)

    def theirs() -> None:
        backend._fs.pipe_file(backend._key(f"{base}/a"), b"ours")  # even with the same bytes

    lossy(monkeypatch, backend, happens=False, before=theirs)
    with pytest.raises(AlreadyExists):
        storage.create_exclusive(f"{base}/a", b"ours")
    assert [e.name for e in storage.list_dir(base, unfinished=True)] == ["a"]


@pytest.mark.parametrize("part", ["..", "a/../../b", "/etc/passwd", "memory://x", "a\0b"])
def test_join_refuses_to_leave_the_directory(part):
    with pytest.raises(StorageError, match="leave its directory"):
        storage.join("/data", part)


def test_an_empty_path_is_not_the_root():
    with pytest.raises(UsageError, match="an empty path"):
        storage.join("", "run.json")
    assert storage.join("/", "run.json") == "/run.json"
    assert storage.join(".", "run.json") == "./run.json"


def test_join_parent_name():
    assert storage.join("hdfs://nn:8020/a/", "b", "c") == "hdfs://nn:8020/a/b/c"
    assert storage.parent("hdfs://nn:8020/a/b") == "hdfs://nn:8020/a"
    assert storage.parent("file.txt") == "." and storage.parent("/file") == "/"
    assert storage.name("hdfs://nn:8020/a/b/") == "b"


def test_unknown_scheme_is_named():
    with pytest.raises(StorageError) as caught:
        storage.read_bytes("gopher://host/x")
    assert "gopher" in caught.value.what


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


def test_a_shape_names_the_first_place_that_has_not_its_type():
    shape = shapes.Fields(
        {
            "run_id": shapes.TEXT,
            "metrics": shapes.Each(
                shapes.Fields({"loss": shapes.NUMBER, "labels": shapes.Items(shapes.TEXT)})
            ),
        },
        needed=("run_id",),
    )
    whole = {"run_id": "a", "metrics": {"test": {"loss": 1, "labels": ["x"]}}, "more": [1]}
    assert shapes.fault(whole, shape) is None
    assert shapes.fault({"run_id": "a", "metrics": None}, shape) is None
    for value, key, got in (
        (5, "", "5"),
        ({}, "run_id", "null"),
        ({"run_id": "a", "metrics": 5}, "metrics", "5"),
        ({"run_id": "a", "metrics": {"test": None}}, "metrics.test", "null"),
        ({"run_id": "a", "metrics": {"test": {"loss": True}}}, "metrics.test.loss", "true"),
        ({"run_id": "a", "metrics": {"test": {"loss": float("nan")}}}, "metrics.test.loss", "NaN"),
        ({"run_id": "a", "metrics": {"t": {"labels": ["x", 1]}}}, "metrics.t.labels[1]", "1"),
    ):
        fault = shapes.fault(value, shape)
        assert fault is not None and (fault.key, fault.got) == (key, got) and fault.expected


def test_every_error_of_a_path_says_what_to_do(tmp_path, monkeypatch):
    for act, what in (
        (lambda: storage.read_bytes(str(tmp_path)), "it is a directory"),
        (lambda: storage.list_dir(__file__), "it is a file"),
        (lambda: storage.exists("foo://x/y"), "unsupported storage scheme foo://"),
    ):
        with pytest.raises(StorageError, match=what) as caught:
            act()
        assert caught.value.remedy
    monkeypatch.setenv("HOWDAH_STORAGE_RETRY_SECONDS", "abc")
    with pytest.raises(ConfigError) as caught:
        storage.exists(str(tmp_path))
    assert caught.value.remedy and caught.value.got == "'abc'"


def test_memory_is_a_storage_of_the_tests_alone(monkeypatch):
    monkeypatch.delitem(backends.OPENERS, "memory")
    monkeypatch.setattr(backends, "_open", {})
    with pytest.raises(StorageError, match="unsupported storage scheme memory://"):
        storage.exists("memory://x/y")


def test_json_that_is_no_object(tmp_path):
    path = str(tmp_path / "x.json")
    for body in (b"5", b"[]", b"null", b'"x"', b"NaN"):
        storage.write_whole(path, body)
        with pytest.raises(DataError, match="no JSON object") as caught:
            storage.read_object(path)
        assert (caught.value.where, caught.value.got) == (path, body.decode())
        assert caught.value.expected and caught.value.remedy
        assert storage.read_fields(path) == {}
        with pytest.raises(ModelError, match="no JSON object"):
            storage.read_object(path, kind=ModelError)
    for body in (b"{", b"\xff", b"9" * 5000, b"[" * 100_000):
        storage.write_whole(path, body)
        with pytest.raises(DataError) as caught:
            storage.read_object(path)
        assert caught.value.where.startswith(path) and caught.value.remedy
        with pytest.raises(ModelError):
            storage.read_object(path, kind=ModelError)
    storage.write_whole(path, b'{"x": 1}')
    assert storage.read_object(path) == {"x": 1}


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_file_system_without_hard_links_is_named(tmp_path, monkeypatch, number):
    """exFAT, vboxsf and many FUSE file systems answer so; EPERM is not a missing permission."""

    def link(old, new):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(StorageError, match="no hard links") as caught:
        storage.create_exclusive(str(tmp_path / "a"), b"1")
    assert type(caught.value) is StorageError and caught.value.where == str(tmp_path / "a")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EBADF])
def test_a_directory_that_cannot_be_synced_is_published_all_the_same(tmp_path, monkeypatch, number):
    """CIFS and some FUSE file systems have no fsync of directories: the rename is done by then."""

    def fsync(handle):
        raise OSError(number, os.strerror(number))

    (tmp_path / "fresh").mkdir()
    monkeypatch.setattr(os, "fsync", fsync)
    storage.rename_dir(str(tmp_path / "fresh"), str(tmp_path / "done"))
    assert (tmp_path / "done").is_dir()
    monkeypatch.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(5, "EIO")))
    (tmp_path / "fresh").mkdir()
    with pytest.raises(StorageError):
        storage.rename_dir(str(tmp_path / "fresh"), str(tmp_path / "other"))
