"""A real HDFS: quotas, permissions, safe mode, daemons that die, name services."""

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import xml.sax.saxutils

import pytest

from howdah import storage
from howdah.core.processes import yield_to_other_threads
from howdah.errors import (
    AlreadyExists,
    ConfigError,
    NotFound,
    PermissionDenied,
    QuotaExceeded,
    SafeMode,
    StorageError,
    StorageUnavailable,
)
from howdah.storage import backends
from howdah.storage.hdfs import native

pytestmark = pytest.mark.hadoop


@pytest.fixture(params=["hdfs", "webhdfs"])
def place(request, cluster, hdfs_dir):
    """The fresh directory, by each protocol."""
    if request.param == "hdfs":
        return hdfs_dir
    return cluster.webhdfs_url + hdfs_dir.removeprefix(cluster.hdfs_url)


@pytest.fixture(params=["hdfs", pytest.param("webhdfs", marks=pytest.mark.full)])
def fault_place(request, cluster, hdfs_dir):
    """The same, for daemons that die: WebHDFS in the full matrix only."""
    if request.param == "hdfs":
        return hdfs_dir
    return cluster.webhdfs_url + hdfs_dir.removeprefix(cluster.hdfs_url)


def bare(path: str) -> str:
    """`/test/x` of `hdfs://localhost:1/test/x`."""
    return "/" + path.partition("://")[2].partition("/")[2]


def names(directory: str) -> list[str]:
    return [e.name for e in storage.list_dir(directory, unfinished=True)]


@pytest.fixture
def seconds(monkeypatch):
    """Sets how long storage is waited for."""
    return lambda value: monkeypatch.setenv("HOWDAH_STORAGE_RETRY_SECONDS", str(value))


# ------------------------------------------------------------------------------- permissions
def test_permission_denied_names_user_and_path(place, monkeypatch):
    closed = storage.join(place, "closed")
    storage.make_dirs(closed)  # 0755; what a write makes has its parent's mode, on HDFS
    storage.write_whole(storage.join(closed, "x"), b"x")
    monkeypatch.setenv("HADOOP_USER_NAME", "alice")
    path = storage.join(closed, "y")
    for act in (
        lambda: storage.write_whole(path, b"y"),
        lambda: storage.create_exclusive(path, b"y"),
        lambda: storage.make_dirs(path),
        lambda: storage.write_stream(path, lambda file: file.write(b"y")),
    ):
        with pytest.raises(PermissionDenied) as caught:
            act()
        assert caught.value.where == path and "alice" in caught.value.got and caught.value.remedy
    with pytest.raises(PermissionDenied):
        storage.remove(closed, recursive=True)
    assert storage.read_bytes(storage.join(closed, "x")) == b"x"  # reading is everyone's
    assert names(closed) == ["x"]


def test_files_have_the_modes_that_the_umask_leaves(cluster, hdfs_dir):
    storage.make_dirs(storage.join(hdfs_dir, "d"))
    storage.write_whole(storage.join(hdfs_dir, "d", "x"), b"x")
    listed = cluster.run("hdfs", "dfs", "-ls", "-R", bare(hdfs_dir)).stdout
    assert "drwxr-xr-x" in listed and "-rw-r--r--" in listed


def test_a_proxied_user_owns_the_files(cluster, place, monkeypatch):
    monkeypatch.setenv("HADOOP_PROXY_USER", "bob")
    monkeypatch.setenv("HADOOP_USER_NAME", "")  # put back afterwards: the client sets it
    storage.write_whole(storage.join(place, "bobs"), b"x")
    monkeypatch.undo()
    assert " bob " in cluster.run("hdfs", "dfs", "-ls", bare(place)).stdout


def test_denied_impersonation_is_a_typed_error(cluster, hdfs_dir, monkeypatch):
    monkeypatch.setenv("HADOOP_USER_NAME", "mallory")
    monkeypatch.setenv("HADOOP_PROXY_USER", "bob")
    with pytest.raises(PermissionDenied) as caught:
        storage.list_dir(cluster.webhdfs_url + bare(hdfs_dir))
    assert "impersonate" in caught.value.got and "proxyuser" in caught.value.remedy


# ------------------------------------------------------------------------------------- quotas
def test_quota_says_path_needed_and_free(cluster, place):
    old = storage.join(place, "old")
    storage.write_whole(old, b"old")
    assert storage.free_bytes(old) is None
    quota = storage.join(place, "limited")
    storage.write_whole(storage.join(quota, "before"), b"b" * 1000)
    cluster.run("hdfs", "dfsadmin", "-setSpaceQuota", "1000000", bare(quota))
    path = storage.join(quota, "before")
    assert storage.free_bytes(path) == (1_000_000 - 2 * 1000) // 2  # two replicas
    with pytest.raises(QuotaExceeded) as caught:
        storage.write_whole(path, b"n" * 2000)
    error = caught.value
    assert error.where == path and error.expected == "room for 2,000 bytes"
    assert "1,000,000" in error.got and "quota" in error.remedy
    with pytest.raises(QuotaExceeded) as caught:
        with storage.open_write(storage.join(quota, "streamed")) as file:
            for _ in range(20):
                file.write(b"s" * 1_000_000)
    assert caught.value.where == storage.join(quota, "streamed")
    storage.remove(storage.join(quota, "streamed"))
    assert storage.read_bytes(path) == b"b" * 1000 and names(quota) == ["before"]


def test_a_quota_of_names(cluster, hdfs_dir):
    cluster.run("hdfs", "dfsadmin", "-setQuota", "2", bare(hdfs_dir))
    storage.make_dirs(storage.join(hdfs_dir, "one"))
    for act in (storage.make_dirs, lambda path: storage.write_whole(path, b"x")):
        with pytest.raises(QuotaExceeded) as caught:
            act(storage.join(hdfs_dir, "two"))
        assert "quota" in caught.value.got and "names" in caught.value.got


# --------------------------------------------------------------------------- outages
def test_safe_mode_is_retried_and_named(cluster, place, seconds, capfd):
    path = storage.join(place, "x")
    storage.write_whole(path, b"old")
    cluster.run("hdfs", "dfsadmin", "-safemode", "enter")
    seconds(0.3)
    with pytest.raises(SafeMode) as caught:
        storage.write_whole(path, b"new")
    assert caught.value.where == path and "tried again for" in caught.value.got
    assert "safe mode" in caught.value.what and "intact" in caught.value.remedy
    with pytest.raises(SafeMode):
        storage.rename_dir(path, storage.join(place, "y"))
    assert storage.read_bytes(path) == b"old"  # reading goes on
    capfd.readouterr()
    seconds(120)
    leave = threading.Thread(target=cluster.run, args=("hdfs", "dfsadmin", "-safemode", "leave"))
    leave.start()
    storage.write_whole(path, b"new")
    storage.create_exclusive(storage.join(place, "once"), b"1")
    leave.join()
    assert storage.read_bytes(path) == b"new" and names(place) == ["once", "x"]
    err = capfd.readouterr().err
    assert err.count("trying again for up to 120 s") <= 1


def test_a_namenode_that_is_killed_and_restarted_loses_nothing(
    cluster, fault_place, seconds, capfd
):
    """Whole files, exclusive creations and directories published while it dies and returns."""
    seconds(120)
    done: list[int] = []
    failed: list[Exception] = []
    over = threading.Event()

    def work(worker: int) -> None:
        try:
            n = 0
            while not over.is_set():
                at = storage.join(fault_place, f"w{worker}", f"{n:04d}")
                storage.write_whole(storage.join(at + ".tmp", "data"), str(n).encode())
                storage.create_exclusive(storage.join(at + ".tmp", "once"), b"1")
                storage.rename_dir(at + ".tmp", at)
                assert storage.read_bytes(storage.join(at, "data")) == str(n).encode()
                n += 1
            done.append(n)
        except Exception as error:
            failed.append(error)
            raise

    workers = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for worker in workers:
        worker.start()
    while not (
        failed or all(storage.exists(storage.join(fault_place, f"w{n}", "0002")) for n in range(3))
    ):
        time.sleep(0.05)
    capfd.readouterr()
    cluster.kill("namenode")
    cluster.start("namenode")
    cluster.wait_healthy()
    assert storage.exists(fault_place)
    over.set()
    for worker in workers:
        worker.join()
    assert not failed
    err = capfd.readouterr().err
    assert 1 <= err.count("trying again for up to 120 s") <= 6, err
    assert len(done) == 3 and min(done) >= 3
    for worker in range(3):
        directory = storage.join(fault_place, f"w{worker}")
        listed = names(directory)
        assert listed == [f"{n:04d}" for n in range(len(listed))]
        for name in listed:
            assert names(storage.join(directory, name)) == ["data", "once"]


def test_a_namenode_that_stays_away_is_a_typed_error(cluster, fault_place, seconds):
    path = storage.join(fault_place, "x")
    storage.write_whole(path, b"x")
    cluster.kill("namenode")
    seconds(0.5)
    for act in (
        lambda: storage.read_bytes(path),
        lambda: storage.write_whole(path, b"y"),
        lambda: storage.create_exclusive(path + "2", b"y"),
        lambda: storage.list_dir(path),
        lambda: storage.make_dirs(path),
        lambda: storage.remove(path),
        lambda: storage.rename_dir(path, path + "3"),
    ):
        with pytest.raises(StorageUnavailable) as caught:
            act()
        assert caught.value.where.startswith(path) and "tried again" in caught.value.got
        assert "NameNode" in caught.value.remedy and caught.value.exit_code == 5


def test_a_stopped_namenode_that_holds_its_port_does_not_hang_us(
    cluster, fault_place, seconds, monkeypatch
):
    """SIGSTOP: the connection stands and no answer ever comes."""
    from howdah.storage import backends
    from howdah.storage.hdfs import native as hdfs
    from howdah.storage.hdfs import webhdfs

    path = storage.join(fault_place, "x")
    storage.write_whole(path, b"x")
    seconds(0)
    monkeypatch.setattr(hdfs, "CALL_SECONDS", 1.0)
    monkeypatch.setattr(webhdfs, "ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(backends, "_open", {})
    storage.exists(path)
    cluster.pause("namenode")
    try:
        with pytest.raises(StorageUnavailable) as caught:
            storage.read_bytes(path)
        assert caught.value.where == path
        with pytest.raises(StorageUnavailable):
            storage.write_whole(path, b"y")
    finally:
        cluster.resume("namenode")
    seconds(60)
    assert storage.read_bytes(path) == b"x"


def test_a_datanode_killed_in_the_middle_of_a_file(cluster, fault_place, seconds):
    """More than one block, killed in the first: the file is written anew and whole."""
    seconds(120)
    path = storage.join(fault_place, "big")
    storage.write_whole(path, b"old")
    chunk, count = os.urandom(2**20), 140
    attempts: list[int] = []

    def fill(file) -> None:
        attempts.append(1)
        for n in range(count):
            file.write(chunk)
            if n == 20 and len(attempts) == 1:
                cluster.kill("datanode-0")

    storage.write_stream(path, fill, size=count * len(chunk))
    assert storage.size(path) == count * len(chunk)
    with storage.open_read(path) as file:
        for _ in range(count):
            assert file.read(len(chunk)) == chunk
    assert names(fault_place) == ["big"]


def test_the_error_of_a_streamed_file_says_that_it_cannot_be_retried(cluster, fault_place, seconds):
    seconds(5)
    file = storage.open_write(storage.join(fault_place, "streamed"))
    file.write(b"x" * 2**20)
    for n in range(3):
        cluster.kill(f"datanode-{n}")
    with pytest.raises(StorageUnavailable) as caught:
        for _ in range(64):
            file.write(b"x" * 2**22)
        file.close()
    assert caught.value.where == storage.join(fault_place, "streamed")
    assert "start the step again" in caught.value.remedy.replace("\n", " ")
    with pytest.raises(StorageUnavailable):
        file.close()  # never takes a part for a file


def test_reading_continues_when_a_datanode_dies(cluster, fault_place, seconds):
    seconds(120)
    path = storage.join(fault_place, "big")
    data = os.urandom(20 * 2**20)
    storage.write_whole(path, data)
    with storage.open_read(path) as file:
        assert file.read(1000) == data[:1000]
        cluster.kill("datanode-1")
        cluster.kill("datanode-2")
        cluster.start("datanode-1")
        assert file.read() == data[1000:]


def test_a_killed_writer_leaves_no_part_under_the_name(place):
    path = storage.join(place, "file")
    storage.write_whole(path, b"old")
    script = (
        "import os, signal\n"
        "from howdah import storage\n"
        "def fill(file):\n"
        "    file.write(b'x' * 9_000_000)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        f"storage.write_stream({path!r}, fill)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert storage.read_bytes(path) == b"old"
    assert [e.name for e in storage.list_dir(place)] == ["file"]
    left = set(names(place)) - {"file"}
    assert all(name.startswith(storage.TEMP_PREFIX) for name in left)
    for name in left:
        storage.remove(storage.join(place, name))
    assert names(place) == ["file"]


# -------------------------------------------------------------------------------- where it is
def site(directory, file: str, **values: str) -> None:
    """One of Hadoop's XML files; '__' stands for '.'."""
    lines = [
        f"<property><name>{name.replace('__', '.').replace('_', '-')}</name>"
        f"<value>{xml.sax.saxutils.escape(value)}</value></property>"
        for name, value in values.items()
    ]
    directory.joinpath(file).write_text(f"<configuration>{''.join(lines)}</configuration>")


def refused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def make_name_service(cluster, tmp_path, monkeypatch, port: int) -> str:
    """HADOOP_CONF_DIR with a name service whose first NameNode is at this port."""
    dead = f"localhost:{port}"
    site(tmp_path, "core-site.xml", fs__defaultFS="hdfs://${our.service}", our__service="ns1")
    site(
        tmp_path,
        "hdfs-site.xml",
        dfs__nameservices="ns1",
        dfs__ha__namenodes__ns1="nn1, nn2",
        **{
            "dfs__namenode__rpc_address__ns1__nn1": dead,
            "dfs__namenode__rpc_address__ns1__nn2": cluster.hdfs_url.partition("//")[2],
            "dfs__namenode__http_address__ns1__nn1": dead,
            "dfs__namenode__http_address__ns1__nn2": cluster.webhdfs_url.partition("//")[2],
        },
    )
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    return "ns1"


@pytest.fixture
def name_service(cluster, tmp_path, monkeypatch):
    """A name service whose first NameNode is dead."""
    return make_name_service(cluster, tmp_path, monkeypatch, refused_port())


def test_a_name_service_continues_with_its_second_namenode(hdfs_dir, name_service, seconds):
    seconds(0)  # failing over is no waiting
    inner = bare(hdfs_dir)
    for n, base in enumerate((f"hdfs://{name_service}", "hdfs://", f"webhdfs://{name_service}")):
        path = f"{base}{inner}/{n}"
        storage.create_exclusive(path, b"x" * 100_000)
        assert storage.read_bytes(path) == b"x" * 100_000
        with pytest.raises(AlreadyExists):
            storage.create_exclusive(path, b"y")
        with pytest.raises(NotFound):
            storage.read_bytes(path + "none")
        assert [e.path for e in storage.list_dir(f"{base}{inner}")][-1] == path
    assert names(hdfs_dir) == ["0", "1", "2"]


def test_a_namenode_that_is_stopped_is_passed_over(hdfs_dir, cluster, tmp_path, monkeypatch):
    """Its port takes connections and it never answers: hdfs-native would wait for ever."""
    monkeypatch.setattr(native, "_PROBE_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as stopped:
        port = stopped.getsockname()[1]
        base = f"hdfs://{make_name_service(cluster, tmp_path, monkeypatch, port)}{bare(hdfs_dir)}"
        storage.create_exclusive(f"{base}/x", b"x" * 100_000)
        assert storage.read_bytes(f"{base}/x") == b"x" * 100_000
        backend = backends.backend_of(base)
        assert backend._answering == backend._addresses[1:]
        cluster.kill("namenode")  # from now on none answers: all are asked again
        with pytest.raises(StorageUnavailable), storage.waiting_at_most(0.0):
            storage.read_bytes(f"{base}/x")
        assert backend._clients == {}
        cluster.start("namenode")
        assert storage.read_bytes(f"{base}/x") == b"x" * 100_000


def test_wrong_addresses_fail_at_once(cluster, monkeypatch, tmp_path, seconds):
    seconds(0)
    with pytest.raises(StorageUnavailable) as caught:
        storage.read_bytes(f"hdfs://localhost:{refused_port()}/x")
    assert "refused" in caught.value.got and "HADOOP_CONF_DIR" in caught.value.remedy
    with pytest.raises(StorageUnavailable):
        storage.read_bytes(f"webhdfs://localhost:{refused_port()}/x")
    with pytest.raises(StorageError):  # each other's port
        storage.read_bytes(cluster.webhdfs_url.replace("webhdfs", "hdfs") + "/x")
    with pytest.raises(StorageError):
        storage.read_bytes(cluster.hdfs_url.replace("hdfs", "webhdfs") + "/x")
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.delenv("HADOOP_HOME", raising=False)
    with pytest.raises(ConfigError, match="names no cluster"):
        storage.read_bytes("hdfs:///x")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="not a directory"):
        storage.read_bytes(cluster.hdfs_url + "/x")


# ---------------------------------------------------------------------- threads and processes
def _threads() -> dict[int, int]:
    """Niceness of each of this process' threads."""
    return {int(t): os.getpriority(os.PRIO_PROCESS, int(t)) for t in os.listdir("/proc/self/task")}


def test_background_writes_have_no_thread_of_full_priority(hdfs_dir):
    storage.write_whole(storage.join(hdfs_dir, "first"), b"x")  # threads of full priority
    before = _threads()
    priorities: dict[int, int] = {}

    def write() -> None:
        yield_to_other_threads(7)  # a niceness that no other test has made threads for
        storage.write_whole(storage.join(hdfs_dir, "second"), b"x" * 1000)
        priorities.update(_threads())

    writer = threading.Thread(target=write)
    writer.start()
    writer.join()
    new = [niceness for thread, niceness in priorities.items() if thread not in before]
    assert len(new) >= 3 and set(new) == {7}  # the writer, its calls', hdfs-native's


def _in_child(path: str, answer) -> None:
    storage.write_whole(path + ".child", storage.read_bytes(path))
    answer.send(storage.size(path + ".child"))


def test_a_forked_child_has_a_client_of_its_own(place, seconds):
    seconds(60)
    path = storage.join(place, "x")
    storage.write_whole(path, b"x" * 300_000)
    assert storage.read_bytes(path) == b"x" * 300_000  # connections to DataNodes are open now
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=_in_child, args=(path, theirs))
    child.start()
    assert ours.poll(100) and ours.recv() == 300_000
    child.join()
    assert child.exitcode == 0
    assert storage.read_bytes(path + ".child") == b"x" * 300_000
