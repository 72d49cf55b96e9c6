"""The contract of leases on every storage: one holder, judged by its beat, succeeded, and told."""

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from howdah import storage
from howdah.core.processes import process_start
from howdah.errors import AlreadyExists, NotFound, StorageUnavailable
from howdah.storage import lease as leases
from howdah.storage.lease import Contents, Lease, Watch
from tests.support.waiting import wait_until

HELD = Contents(host="a", pid=7, machine="a", start=100, seconds=60.0)


@pytest.fixture
def base(any_storage):
    """An empty directory on each storage."""
    return any_storage


@pytest.fixture(autouse=True)
def short_second_look(monkeypatch):
    monkeypatch.setattr(leases, "SECOND_LOOK_SECONDS", 0.0)


def elsewhere(path, **values):
    """Write the lease of a process that cannot be looked up from here."""
    contents = replace(Contents(host="elsewhere", pid=1, machine="another boot"), **values)
    storage.write_whole(path, contents.as_json())
    return contents


def ended():
    """The contents of a process of this machine that has been killed."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        start = process_start(process.pid)
        process.kill()
    return Contents(host="here", pid=process.pid, machine=leases.machine(), start=start)


# ----------------------------------------------------------------------- what a reader concludes
@pytest.mark.parametrize(
    ("contents", "unchanged", "running", "dead"),
    [
        (HELD, 0.0, None, False),
        (HELD, 59.9, None, False),
        (HELD, 60.0, None, True),
        (HELD, 0.0, True, False),
        (HELD, 0.0, False, True),  # its process has ended: no need to wait
        (HELD, 60.0, True, True),  # stopped, or it cannot reach the storage
        (replace(HELD, state="released"), 0.0, None, True),
        (replace(HELD, state="lost"), 0.0, True, True),
    ],
)
def test_a_lease_expires_by_the_readers_clock(contents, unchanged, running, dead):
    assert contents.expired(unchanged, running) is dead


def test_a_process_is_looked_up_on_its_own_machine_alone():
    ours = Lease("/x").contents
    assert ours.running() is True
    assert replace(ours, start=ours.start + 1).running() is False  # the pid came again
    assert replace(ours, machine="another boot").running() is None
    assert replace(ours, machine="").running() is None
    assert ended().running() is False


def test_a_process_that_proc_hides_is_not_taken_for_dead(monkeypatch):
    def refused(pid, number):
        raise PermissionError

    monkeypatch.setattr(leases, "process_start", lambda pid: None)
    monkeypatch.setattr(leases.os, "kill", refused)
    assert replace(HELD, machine=leases.machine()).running() is None


def test_each_new_beat_begins_the_time_anew():
    watch = Watch()
    assert watch.unchanged("x", 0, 10.0) == 0.0
    assert watch.unchanged("x", 0, 50.0) == 40.0
    assert watch.unchanged("x", 1, 60.0, lambda: 99.0) == 0.0
    assert watch.unchanged("x", 1, 65.0) == 5.0
    assert watch.unchanged("y", 1, 65.0, lambda: 30.0) == 30.0  # its age when first seen
    assert watch.unchanged("y", 1, 66.0, lambda: 99.0) == 31.0


def test_a_machine_is_known_by_its_boot_and_its_process_ids(monkeypatch):
    assert leases.machine() == leases.machine() and "pid:[" in leases.machine()

    def missing():
        raise OSError

    monkeypatch.setattr(leases, "boot_id", missing)
    assert leases.machine() == ""


# -------------------------------------------------------------------------------- on any storage
def test_one_of_many_gets_it(base):
    stem, count = storage.join(base, "turn"), 6
    at_once, held, refused = threading.Barrier(count), [], []

    def run():
        at_once.wait()
        try:
            held.append(leases.acquire(stem))
        except AlreadyExists as error:
            refused.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(held), len(refused)) == (1, count - 1)
    assert held[0].path == f"{stem}.1.json"
    assert all(error.got == f"pid {os.getpid()} on {held[0].contents.host}" for error in refused)
    held[0].release()
    assert storage.list_dir(base, unfinished=True) == []
    assert leases.acquire(stem).path == f"{stem}.1.json"


def test_a_renewal_changes_the_file_and_keeps_the_callers_fields(base):
    lease = Lease(storage.join(base, "_run-1.json"), seconds=30.0, token="0badcafe").acquire()
    first = leases.read(lease.path)
    assert (first.beat, first.seconds, dict(first.more)) == (0, 30.0, {"token": "0badcafe"})
    lease.renew()
    assert leases.read(lease.path) == replace(first, beat=1)
    assert first.running() is True
    lease.release("lost")
    assert leases.read(lease.path).state == "lost"
    lease.renew()  # a thread that is late
    assert leases.read(lease.path).state == "lost"


def test_a_block_renews_it_and_removes_it(base):
    path = storage.join(base, "_run-1.json")
    with Lease(path, seconds=0.5):
        wait_until(lambda: leases.read(path).beat > 1)
    with pytest.raises(NotFound):
        leases.read(path)


def test_a_dead_holder_is_succeeded_and_a_suspended_one_finds_that_out(base):
    stem = storage.join(base, "turn")
    suspended = leases.acquire(stem)
    elsewhere(suspended.path, seconds=-1.0)  # as if it were on another machine, and silent
    assert not suspended.lost()
    later = leases.acquire(stem)
    assert later.path == f"{stem}.2.json" and not later.lost()
    assert suspended.lost()
    before = storage.read_bytes(suspended.path)
    suspended.renew()
    suspended.release()
    assert storage.read_bytes(suspended.path) == before  # it writes nothing any more
    later.release()
    assert Lease.of_series(stem, 1).lost()  # the successor's file stays to say so
    assert leases.acquire(stem).path == f"{stem}.3.json"


def test_a_killed_process_of_this_machine_is_not_waited_for(base):
    stem = storage.join(base, "turn")
    storage.write_whole(f"{stem}.1.json", ended().as_json())
    assert leases.acquire(stem).path == f"{stem}.2.json"


def test_a_holder_elsewhere_lives_as_long_as_its_beat(base):
    path = storage.join(base, "_run-1.json")
    assert leases.living({path: elsewhere(path, seconds=60.0)}) == {path}
    assert leases.living({path: elsewhere(path, seconds=-1.0)}) == set()
    assert leases.living({path: elsewhere(path, seconds=60.0, state="released")}) == set()
    storage.write_whole(path, b"damaged")
    assert leases.living({path: leases.read(path)}) == {path}  # by its age
    assert [entry.name for entry in storage.list_dir(base, unfinished=True)] == ["_run-1.json"]


def test_a_holder_that_renews_at_the_second_look_lives(base, monkeypatch):
    path = storage.join(base, "_run-1.json")
    contents = elsewhere(path, seconds=-1.0)
    looks = []

    def renewed_meanwhile(seconds):
        looks.append(seconds)
        elsewhere(path, seconds=-1.0, beat=1)

    # Its own `time` alone: the S3 client sleeps between its retries, too.
    clock = SimpleNamespace(sleep=renewed_meanwhile, time=time.time, monotonic=time.monotonic)
    monkeypatch.setattr(leases, "time", clock)
    assert leases.living({path: contents}) == {path}
    assert looks == [leases.SECOND_LOOK_SECONDS]


def test_the_age_of_a_file_is_the_storages(base):
    path = storage.join(base, "status.json")
    storage.write_whole(path, b"{}")
    assert -0.1 < leases.age(path) < 30.0
    assert leases.unheard_seconds(path, "application_1", 1) < 30.0
    storage.remove(path)
    assert leases.age(path) == 0.0
    assert storage.list_dir(base, unfinished=True) == []


# --------------------------------------------------------------------------------------- failures
def test_one_that_is_held_already_is_left_alone(tmp_path):
    path = str(tmp_path / "turn.1.json")
    elsewhere(path)
    late = Lease(path)
    with pytest.raises(AlreadyExists), late:
        pytest.fail("another process holds it")
    late.release()
    assert json.loads(storage.read_text(path))["host"] == "elsewhere"


def test_an_outage_is_reported_once_and_ends_with_a_renewal(tmp_path, monkeypatch):
    """It is not a whole interval later: until then a sweep could take it for expired."""
    path, lines, waited, away = str(tmp_path / "_run-1.json"), [], [], threading.Event()
    real = storage.write_whole

    def write_whole(path, data):
        if away.is_set():
            waited.append(storage.retry_seconds())
            raise StorageUnavailable("away", where=path)
        real(path, data)

    monkeypatch.setattr(storage, "write_whole", write_whole)
    monkeypatch.setattr(leases, "_AGAIN_SECONDS", 0.05)
    with Lease(path, seconds=5.0, say=lines.append):
        away.set()
        wait_until(lambda: len(waited) > 2)
        assert set(waited) == {0.0}  # a release would wait for none of them
        away.clear()
        wait_until(lambda: leases.read(path).beat > 0)
    assert lines == [f"a lease could not be renewed: away ({path})"]
