"""What may be swept: left-overs of dead runs, never a live run's or a committed file."""

import contextlib
import json
import os
import socket
import subprocess
import sys

import pytest

from howdah import storage
from howdah.core.processes import boot_id, process_start
from howdah.data.manifest import DatasetManifest, RecordEntry, ShardEntry, TokenizerEntry
from howdah.errors import DataError, StorageUnavailable
from howdah.etl.workspace import staging
from howdah.etl.workspace.staging import RunLease, attempt_name, discard, refuse_missing, sweep
from howdah.storage import lease as leases
from tests.support.waiting import wait_until


@pytest.fixture(params=["file", "memory"])
def dataset(request, tmp_path):
    return str(tmp_path / "data") if request.param == "file" else f"memory://sweep-{tmp_path.name}"


def _put(version, *names):
    for name in names:
        storage.write_whole(f"{version}/{name}", b"x")


def _names(version):
    out = []
    for below in (version, f"{version}/rejects"):
        if storage.is_dir(below):
            out += [e.name for e in storage.list_dir(below, unfinished=True) if not e.is_dir]
    return sorted(out)


def _dead_pid():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def _lease(version, token, *, host, pid, **more):
    where = {"machine": leases.machine()} if host == socket.gethostname() else {}
    start = process_start(pid) or 0
    body = json.dumps({"host": host, "pid": pid, **where, "start": start, "token": token, **more})
    storage.write_whole(f"{version}/_run-{token}.json", body.encode())


MINE = attempt_name("train-00000-of-00001", "aaaaaaaa", 3, "tfrecord")
REJECT = "rejects/" + attempt_name("part-00000", "aaaaaaaa", 3, "parquet")


def test_a_version_that_was_never_committed_goes_whole(dataset):
    version = f"{dataset}/v=1"
    _put(version, MINE, MINE + ".index", REJECT, "report.json", ".tmp-x")
    _lease(version, "aaaaaaaa", host=socket.gethostname(), pid=_dead_pid())
    assert len(sweep(dataset)) == 6
    assert not storage.exists(version) or _names(version) == []


def test_intermediate_data_goes_with_the_run_that_made_it(dataset):
    version = f"{dataset}/v=1"
    for token in ("aaaaaaaa", "bbbbbbbb", "cccccccc"):
        _put(version, f"{staging.scratch_name(token)}/edges/part-0.parquet")
    _put(version, "scratch-of-mine/a")
    _lease(version, "aaaaaaaa", host=socket.gethostname(), pid=_dead_pid())
    for token in ("bbbbbbbb", "cccccccc"):
        _lease(version, token, host=socket.gethostname(), pid=os.getpid())
    gone = sweep(dataset)
    assert gone[0] == f"{version}/scratch-aaaaaaaa" and len(gone) == 2
    left = {e.name for e in storage.list_dir(version) if e.is_dir}
    assert left == {"scratch-bbbbbbbb", "scratch-cccccccc", "scratch-of-mine"}
    discard(version, "bbbbbbbb")
    left = {e.name for e in storage.list_dir(version) if e.is_dir}
    assert left == {"scratch-cccccccc", "scratch-of-mine"}


def test_a_committed_version_keeps_what_its_manifest_names(dataset):
    version = f"{dataset}/v=1"
    dead = attempt_name("train-00000-of-00001", "bbbbbbbb", 4, "tfrecord")
    _put(version, MINE, MINE + ".index", REJECT, "report.html", dead, dead + ".index", "notes.md")
    manifest = {
        "splits": {"train": [{"name": MINE, "index_name": MINE + ".index"}]},
        "quality": {"reject_files": [REJECT]},
    }
    storage.write_whole(f"{version}/manifest.json", json.dumps(manifest).encode())
    assert sorted(map(storage.name, sweep(dataset))) == [dead, dead + ".index"]
    kept = [MINE, MINE + ".index", "manifest.json", "notes.md", "report.html", storage.name(REJECT)]
    assert _names(version) == sorted(kept)
    assert sweep(dataset) == []


def test_a_run_that_ends_right_after_its_commit_keeps_what_its_manifest_names(dataset):
    version = f"{dataset}/v=1"
    other = attempt_name("train-00000-of-00001", "aaaaaaaa", 4, "tfrecord")
    _put(version, MINE, MINE + ".index", REJECT, other)
    _put(version, f"{staging.scratch_name('aaaaaaaa')}/edges/part-0.parquet")
    manifest = {
        "splits": {"train": [{"name": MINE, "index_name": MINE + ".index"}]},
        "quality": {"reject_files": [REJECT]},
    }
    storage.write_whole(f"{version}/manifest.json", json.dumps(manifest).encode())
    assert not discard(version, "aaaaaaaa")
    assert _names(version) == sorted([MINE, MINE + ".index", "manifest.json", storage.name(REJECT)])
    assert not [entry for entry in storage.list_dir(version) if entry.name.startswith("scratch")]


def test_files_of_a_live_run_stay(dataset):
    version = f"{dataset}/v=1"
    with RunLease(version) as lease:
        live = attempt_name("test-00000-of-00001", lease.token, 9, "tfrecord")
        _put(version, live, MINE, "report.json")
        assert sweep(dataset) == [storage.join(version, MINE)]
        assert live in _names(version) and "report.json" in _names(version)
        discard(version, lease.token)
        assert live not in _names(version)
    assert not any(name.startswith("_run-") for name in _names(version))


def test_a_run_on_another_host_lives_as_long_as_its_beat(dataset, monkeypatch):
    version = f"{dataset}/v=1"
    _put(version, MINE)
    _lease(version, "aaaaaaaa", host="elsewhere", pid=1)
    assert sweep(dataset) == []
    _lease(version, "aaaaaaaa", host="elsewhere", pid=1, seconds=-1.0)
    monkeypatch.setattr(leases, "SECOND_LOOK_SECONDS", 0.0)
    assert len(sweep(dataset)) == 2


def test_a_pid_is_looked_at_only_where_it_means_something(dataset):
    version = f"{dataset}/v=1"
    here = {"host": socket.gethostname(), "pid": os.getpid()}
    # a driver in a container may have this host's name and a namespace of pids of its own
    elsewhere = {**here, "pid": _dead_pid(), "machine": f"{boot_id()} pid:[1]"}
    _put(version, MINE)
    _lease(version, "aaaaaaaa", **elsewhere)
    assert sweep(dataset) == []
    _lease(version, "aaaaaaaa", **here)
    assert sweep(dataset) == []
    _lease(version, "aaaaaaaa", **here, start=12)  # the pid came again
    assert len(sweep(dataset)) == 2


def test_a_run_is_over_with_its_application(dataset, monkeypatch):
    monkeypatch.setattr(staging, "_SWEEP_SECONDS", 0.0)
    version = f"{dataset}/v=1"
    with RunLease(version, "application_1_0001") as lease:
        mine = attempt_name("train-00000-of-00001", lease.token, 1, "tfrecord")
        _put(version, mine)
        assert sweep(dataset, over=["application_1_0002"]) == []
        staging.sweep_until_quiet(dataset, over=["application_1_0001"])
        assert not storage.exists(version) or _names(version) == []


def test_directories_that_are_no_versions_are_left_alone(tmp_path):
    other = tmp_path / "backup"
    os.makedirs(other)
    (other / MINE).write_text("x")
    (tmp_path / "v=2").mkdir()
    (tmp_path / "v=2" / "mine.txt").write_text("x")
    assert sweep(str(tmp_path)) == []
    assert (other / MINE).exists() and (tmp_path / "v=2" / "mine.txt").exists()
    assert sweep(str(tmp_path / "nothing")) == []


def test_a_lease_whose_beginning_is_interrupted_leaves_nothing(tmp_path, monkeypatch):
    version = str(tmp_path / "dataset" / "v=0123456789abcdef")
    lease = RunLease(version)

    def write_and_be_interrupted(path, data, write=storage.create_exclusive):
        write(path, data)
        raise KeyboardInterrupt

    monkeypatch.setattr(storage, "create_exclusive", write_and_be_interrupted)
    with pytest.raises(KeyboardInterrupt), contextlib.ExitStack() as stack:
        stack.callback(sweep, str(tmp_path / "dataset"))
        stack.push(lease)
        lease.__enter__()
    assert os.listdir(tmp_path / "dataset") == []


# ------------------------------------------------------------------------ storage that was away
@pytest.fixture
def outage(monkeypatch):
    """While `outage["on"]` nothing can be written; says how long each beat would have waited."""
    state = {"on": False, "waited": []}
    real = storage.write_whole

    def write_whole(path, data):
        if state["on"] and "_run-" in path:
            state["waited"].append(storage.retry_seconds())
            raise StorageUnavailable("away", where=path)
        real(path, data)

    monkeypatch.setattr(storage, "write_whole", write_whole)
    monkeypatch.setattr(leases, "_AGAIN_SECONDS", 0.05)
    return state


def test_a_lease_is_renewed_at_once_when_storage_is_back(tmp_path, outage, monkeypatch):
    """Not a minute later: until then another run's sweep could take it for expired."""
    version = str(tmp_path / "data" / "v=1")
    waits = []
    real = leases.threading.Event.wait

    def wait(self, seconds=None):
        if seconds == leases.SECONDS / 10:
            waits.append(seconds)
            seconds = 0.05 if len(waits) == 1 else seconds  # the outage begins with the first beat
        return real(self, seconds)

    monkeypatch.setattr(leases.threading.Event, "wait", wait)
    with RunLease(version) as lease:
        path = f"{version}/_run-{lease.token}.json"
        outage["on"] = True
        os.utime(path, (0, 0))
        wait_until(lambda: len(outage["waited"]) > 2)
        assert set(outage["waited"]) == {0.0}  # the end of the run would wait for none of them
        outage["on"] = False
        wait_until(lambda: storage.modified(path) > 0)
        wait_until(lambda: len(waits) == 2)


def test_a_sweep_looks_again_before_it_takes_an_expired_run_for_dead(dataset, monkeypatch):
    version = f"{dataset}/v=1"
    _put(version, MINE)
    _lease(version, "aaaaaaaa", host="elsewhere", pid=1, seconds=-1.0)
    slept = []

    def beat_meanwhile(seconds):
        slept.append(seconds)
        _lease(version, "aaaaaaaa", host="elsewhere", pid=1, seconds=-1.0, beat=1)

    monkeypatch.setattr(leases.time, "sleep", beat_meanwhile)
    assert sweep(dataset) == []
    assert slept == [leases.SECOND_LOOK_SECONDS] and MINE in _names(version)


def _manifest(*names):
    entries = [
        ShardEntry(name=name, index_name=name + ".index", rows=1, bytes=1, crc32c=0,
                   index_crc32c=0, tokens=1, class_counts={}, length_histogram={})
        for name in names
    ]  # fmt: skip
    return DatasetManifest(
        dataset_hash="1", created="now", etl_version="1", labels=["a"], max_length=8,
        tokenizer=TokenizerEntry(hash="t", vocab_size=9, pad_id=0, source="base"),
        record=RecordEntry(ids_dtype="uint16", columns={}, compression="none"),
        splits={"train": entries}, source={}, seed=1, split_rule={}, cleaning={},
        quality={"reject_files": [REJECT]},
    )  # fmt: skip


@pytest.mark.parametrize("gone", [None, MINE, MINE + ".index", REJECT])
def test_no_manifest_is_written_over_files_that_were_swept(dataset, gone):
    version = f"{dataset}/v=1"
    _put(version, MINE, MINE + ".index", REJECT)
    if gone is None:
        refuse_missing(version, _manifest(MINE))
        _put(version, MINE + "x")
        storage.write_whole(f"{version}/{MINE}", b"half")
        with pytest.raises(DataError, match="is missing or changed") as caught:
            refuse_missing(version, _manifest(MINE))
        assert (caught.value.expected, caught.value.got) == ("1 bytes", "4 bytes")
        return
    storage.remove(f"{version}/{gone}")
    with pytest.raises(DataError, match="not committed") as caught:
        refuse_missing(version, _manifest(MINE))
    assert caught.value.where == f"{version}/{gone}" and caught.value.got == "no file"
