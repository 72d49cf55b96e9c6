"""Fences follow the order of an application's attempts: a zombie gets none, and fences off none."""

import json

import pytest

from howdah import storage
from howdah.attempts import Attempt
from howdah.training.checkpoint.fence import Fence, FencedOff

FIRST, SECOND = Attempt("application_1_0001", 100.0, 1), Attempt("application_1_0001", 100.0, 2)
NEXT = Attempt("application_2_0001", 200.0, 1)


@pytest.fixture
def run(tmp_path):
    return str(tmp_path)


def test_the_later_of_two_attempts_follows_the_earlier():
    assert SECOND.follows(FIRST)
    assert not FIRST.follows(SECOND)
    assert not FIRST.follows(FIRST)
    assert NEXT.follows(SECOND)
    assert not SECOND.follows(NEXT)


def test_an_attempt_survives_environment_and_file(monkeypatch):
    for name, value in SECOND.environment().items():
        monkeypatch.setenv(name, value)
    assert Attempt.of_environment() == SECOND
    assert Attempt.of(json.loads(json.dumps(SECOND.to_dict()))) == SECOND
    monkeypatch.setenv("HOWDAH_APPLICATION_STARTED", "nan")
    assert Attempt.of_environment() is None
    assert Attempt.of({"application": "x"}) is None
    assert Attempt.of(None) is None


@pytest.mark.parametrize("later", [SECOND, NEXT])
def test_a_zombie_that_wakes_takes_no_fence(run, later):
    old = Fence.take(run, of=FIRST)
    live = Fence.take(run, of=later)
    with pytest.raises(FencedOff, match="later attempt") as caught:
        Fence.take(run, of=FIRST)
    assert str(later) in caught.value.got
    with pytest.raises(FencedOff):
        old.check()
    live.check()
    assert (old.attempt, live.attempt) == (1, 2)


def test_a_zombie_s_late_fence_does_not_fence_off_later_attempts(run):
    """A fence whose creation was under way when its process was stopped."""
    live = Fence.take(run, of=SECOND)
    storage.create_exclusive(f"{run}/attempts/2.json", json.dumps(FIRST.to_dict()).encode())
    live.check()
    with pytest.raises(FencedOff):
        Fence.take(run, of=FIRST)
    assert Fence.take(run, of=SECOND).attempt == 3


def test_a_later_fence_that_is_made_in_the_same_moment_is_seen(run, monkeypatch):
    create = storage.create_exclusive

    def create_after_the_later_one(path, data):
        monkeypatch.setattr(storage, "create_exclusive", create)
        assert Fence.take(run, of=SECOND).attempt == 1
        create(path, data)

    monkeypatch.setattr(storage, "create_exclusive", create_after_the_later_one)
    with pytest.raises(FencedOff):
        Fence.take(run, of=FIRST)


def test_of_one_attempt_s_processes_the_last_holds_the_fence(run):
    first, second = Fence.take(run, of=FIRST), Fence.take(run, of=FIRST)
    second.check()
    with pytest.raises(FencedOff):
        first.check()


def test_of_runs_without_a_cluster_the_last_holds_the_fence(run):
    on_yarn = Fence.take(run, of=SECOND)
    here = Fence.take(run)
    with pytest.raises(FencedOff):
        on_yarn.check()
    here.check()
    again = Fence.take(run, of=NEXT)
    again.check()
    with pytest.raises(FencedOff):
        here.check()


def test_a_fence_that_cannot_be_read_counts_by_its_number(run):
    one = Fence.take(run, of=SECOND)
    storage.create_exclusive(f"{run}/attempts/2.json", b"{half")
    with pytest.raises(FencedOff):
        one.check()


def test_the_environment_names_a_fence_s_attempt(run, monkeypatch):
    for name, value in SECOND.environment().items():
        monkeypatch.setenv(name, value)
    assert Fence.take(run).of == SECOND
