"""Checkpoints during training: when one is due, and what one that fails or hangs means."""

from __future__ import annotations

import os
import threading
import time
import types

import pytest

from howdah import storage
from howdah.config.loader import from_dict
from howdah.errors import HowdahError, StorageUnavailable
from howdah.training.checkpoint import manager as checkpoint_module
from howdah.training.hooks.saver import CheckpointSaver
from tests.support.training.numpy_loop import AMPLITUDES, fixture_begin, settled_step  # noqa: F401 - a fixture
from tests.support.waiting import wait_until


@pytest.fixture
def outage(monkeypatch):
    """Files of the steps in `away` cannot be written."""
    away: set[int] = set()
    real = checkpoint_module.write_files

    def write_files(directory, step, *args):
        if step in away:
            raise StorageUnavailable("cannot write: storage does not answer", where=directory)
        return real(directory, step, *args)

    monkeypatch.setattr(checkpoint_module, "write_files", write_files)
    return away


@pytest.fixture
def now(monkeypatch):
    """A clock that can be put forward."""
    clock = types.SimpleNamespace(seconds=0.0)
    real = time.monotonic
    monkeypatch.setattr(
        "howdah.training.checkpoint.schedule.time.monotonic", lambda: real() + clock.seconds
    )
    return clock


@pytest.fixture
def blocked_save(monkeypatch):
    """Saves wait: `began` is set when one begins, and it goes on when `resume` is set."""
    write, gate = checkpoint_module.write_files, types.SimpleNamespace()
    gate.began, gate.go_on = threading.Event(), threading.Event()

    def blocked(*args):
        gate.began.set()
        assert gate.go_on.wait(60)
        return write(*args)

    monkeypatch.setattr(checkpoint_module, "write_files", blocked)
    return gate


def test_saves_by_steps_and_epochs_come_on_top(begin):
    done = begin(checkpoint={"every_steps": 3, "every_epoch": True}).go()
    assert sorted(done.saved()) == [2, 3, 4, 6, 8]


def test_a_failed_save_ends_the_run(begin, monkeypatch):
    done = begin(checkpoint={"every_steps": 1})
    done.step()
    done.run.checkpoints.wait()
    storage.remove(os.path.join(done.run.directory, "attempts"), recursive=True)
    os.makedirs(os.path.join(done.run.directory, "attempts"))
    path = os.path.join(done.run.directory, "attempts", "2.json")
    storage.write_whole(path, b"{}")  # a later attempt has taken over
    with pytest.raises(HowdahError):
        for _ in range(4):
            done.step()
            while done.run.checkpoints.busy:
                time.sleep(0.01)
    before = storage.read_bytes(os.path.join(done.run.directory, "run.json"))
    with pytest.raises(HowdahError, match="later attempt"):
        done.run.close("failed")
    assert storage.read_bytes(os.path.join(done.run.directory, "run.json")) == before


def test_a_save_that_fails_does_not_end_the_run(begin, outage):
    outage |= {1, 2}
    done = begin(checkpoint={"every_steps": 1})
    for _ in range(4):
        settled_step(done)
    output = done.console.getvalue()
    assert "checkpoint step-1 could not be saved" in output
    assert "(failure 2 in a row, 0.0 of 60 minutes)" in output
    done.go()
    assert sorted(done.saved()) == [3, 4, 5, 6, 7, 8]
    assert done.exported_bias() == AMPLITUDES[4]


def test_saves_that_fail_for_an_hour_end_it_and_not_their_number(begin, outage, now):
    outage |= {1, 2, 3, 4, 5, 6, 7}
    done = begin(checkpoint={"every_steps": 1}, evaluation={"every_steps": 100})
    for _ in range(6):
        settled_step(done)
    now.seconds += 3600
    with pytest.raises(StorageUnavailable, match=r"failure \d in a row, over 60 minutes") as caught:
        for _ in range(2):
            settled_step(done)
    assert "checkpoint.max_failure_minutes" in caught.value.what
    done.run.close("failed")


def test_the_hour_begins_anew_with_a_save_that_succeeds(begin, outage, now):
    outage |= {1, 2, 4, 5, 7}
    done = begin(
        checkpoint={"every_steps": 1, "max_failure_minutes": 1.0}, evaluation={"every_steps": 100}
    )
    while done.state.step != 8:
        settled_step(done)
        now.seconds += 20
    assert sorted(done.saved()) == [3, 6, 8]
    done.leave()


@pytest.mark.parametrize(
    ("rules", "seconds"),
    [({}, 3600.0), ({"max_failure_minutes": 5}, 300.0), ({"max_failure_minutes": None}, None)],
)
def test_the_minutes_of_failures_are_one_key(rules, seconds):
    assert from_dict({"checkpoint": rules}).checkpoint.failure_seconds == seconds


def test_one_failure_is_enough_where_the_configuration_says_so(begin, outage):
    """The error is the storage's own, and the earlier saves stay."""
    outage |= {3}
    done = begin(
        checkpoint={"every_steps": 1, "max_failure_minutes": 1e-9}, evaluation={"every_steps": 100}
    )
    with pytest.raises(StorageUnavailable, match="failure 1 in a row") as caught:
        for _ in range(7):
            settled_step(done)
    assert caught.value.exit_code == 5
    assert sorted(done.saved()) == [1, 2]
    done.run.close("failed")


def test_a_best_that_was_not_saved_gives_its_place_to_the_best_that_was(begin, outage):
    outage |= {4}
    done = begin()
    while done.state.step < 8:
        settled_step(done)
    done.go()
    assert sorted(done.saved()) == [2, 8]  # 6 is worse than 2
    assert done.state.best_step == 8
    assert "the best is step-2" in done.console.getvalue()
    assert done.exported_bias() == AMPLITUDES[8]


def test_a_failed_save_is_tried_again_soon_and_not_only_when_the_next_is_due(begin, outage, now):
    outage |= {4}
    done = begin(checkpoint={"every_minutes": 10.0})
    while done.state.step < 5:
        settled_step(done)
    assert sorted(done.saved()) == [2]
    now.seconds += 61
    settled_step(done)
    assert sorted(done.saved()) == [2, 6]
    done.leave()


def test_a_save_that_stands_still_is_waited_for_when_the_next_is_due(begin, now, blocked_save):
    """The wait is seen as a hang; put off for ever, it would leave hours without a checkpoint."""
    done = begin(checkpoint={"every_minutes": 10.0}, evaluation={"every_steps": 100})
    now.seconds += 601
    done.step()
    assert blocked_save.began.wait(60)
    now.seconds += 20  # less than hang_seconds without progress, and none is due
    done.step()
    now.seconds += 601

    def third_step():
        done.run.heartbeat.activity.follow()
        done.step()

    waiting = threading.Thread(target=third_step)
    waiting.start()
    try:
        wait_until(lambda: done.run.heartbeat.activity.snapshot().phase == "save", seconds=60)
        assert waiting.is_alive()
        now.seconds += 100
        assert (
            done.run.heartbeat.activity.snapshot().idle_seconds >= 100
        )  # so that its driver finds the hang
    finally:
        blocked_save.go_on.set()
        waiting.join(60)
    assert not waiting.is_alive()
    done.leave()
    assert sorted(done.saved()) == [1, 3]


def test_a_save_that_makes_progress_is_not_waited_for(begin, now, blocked_save):
    done = begin(checkpoint={"every_minutes": 10.0}, evaluation={"every_steps": 100})
    now.seconds += 601
    done.step()
    now.seconds += 601
    done.run.checkpoints._activity.advanced()
    done.step()  # returns although a save is due
    blocked_save.go_on.set()
    done.leave()
    assert sorted(done.saved()) == [1]


def test_a_divided_run_that_lost_a_rank_waits_for_the_save_under_way(
    begin, monkeypatch, blocked_save
):
    """The process ends next, so the checkpoint that is nearly whole would be lost."""
    done = begin(checkpoint={"every_steps": 1})
    done.step()
    assert blocked_save.began.wait(60)
    monkeypatch.setattr(type(done.resumable), "divided", True)
    CheckpointSaver(done.job, done.comm, done.run, done.resumable)
    ends = threading.Thread(target=done.run.last_save.save)
    ends.start()
    wait_until(lambda: "step 1 is being saved: waiting for it" in done.console.getvalue(), 60)
    assert ends.is_alive() and "falls back" not in done.console.getvalue()
    blocked_save.go_on.set()
    ends.join(60)
    assert "falls back to the newest checkpoint, step-1" in done.console.getvalue()
    monkeypatch.undo()
    done.leave()


def test_a_note_in_run_json_does_not_wait_for_storage_and_is_not_lost(begin, monkeypatch):
    done = begin(checkpoint={"every_steps": 4}, evaluation={"every_steps": 100})
    path = os.path.join(done.run.directory, "run.json")
    real, tried = storage.write_whole, []

    def away(where, data):
        if where == path:
            tried.append(storage.retry_seconds())
            raise StorageUnavailable("cannot write: storage does not answer", where=where)
        real(where, data)

    with monkeypatch.context() as patch:
        patch.setattr(storage, "write_whole", away)
        done.run.owned.file.world(7, 3)  # as `Run.enter` does in a world of an elastic job
        done.step()
        figures = dict.fromkeys(("loss", "lr", "grad_norm"), 0.0)
        figures |= dict.fromkeys(("rows", "real_tokens", "padded_tokens"), 1)
        done.run.step_done(done.state, **figures)  # the first: its time is noted
    assert tried == [0.0, 0.0]
    assert "worlds" not in storage.read_json(path)["attempts"][-1]
    for _ in range(3):
        settled_step(done)
    written = storage.read_json(path)["attempts"][-1]  # with the first checkpoint after it
    assert written["worlds"][0]["world"] == 7 and written["seconds_to_first_step"] > 0
    done.leave()


def test_the_last_save_that_fails_is_an_error(begin, outage):
    outage |= {8}
    done = begin()
    with pytest.raises(StorageUnavailable) as caught:
        done.go()
    assert caught.value.exit_code == 5
    done.run.close("failed")


def test_a_stop_saves_also_after_a_save_that_failed(begin, outage):
    outage |= {1}
    first = begin(checkpoint={"every_steps": 1, "max_failure_minutes": 1e-9})
    first.step()
    with pytest.raises(HowdahError, match=r"terminated|interrupted"):
        first.step(stop=True)
    assert sorted(first.saved()) == [2]
    first.leave()
    outage |= {4}
    second = begin()
    second.step()
    with pytest.raises(StorageUnavailable, match="step-4 could not be saved"):
        second.step(stop=True)
    second.run.close("failed")
