"""Evaluations, checkpoints and the end of a run, with a "model" of numpy in the place of a loop's.

The model's logits are its classifier's bias, the same for every row: the further the bias is from
zero, the worse the loss. `AMPLITUDES[step]` says how far.
"""

from __future__ import annotations

import io
import os
import time
import types

import numpy as np
import pytest
from safetensors.numpy import load_file

from howdah import storage
from howdah.config import from_dict
from howdah.errors import HowdahError, StorageUnavailable
from training import checkpoint as checkpoint_module
from training.checkpoint import load
from training.comm import SoloComm
from training.devices import CPU
from training.env import RankEnv
from training.memory import Memory
from training.milestones import Milestones, model_weights
from training.planner import Planner
from training.prepare import prepare
from training.resuming import resume
from training.run import Run
from training.snapshots import Snapshots

AMPLITUDES = [0.0, 6.0, 4.0, 5.0, 1.0, 3.0, 7.0, 8.0, 2.0]  # step 4 is the best; 8 steps


class Training:
    """One attempt of a run whose steps only set the classifier's bias."""

    def __init__(self, directory: str, dataset, base: str, **values) -> None:
        config = from_dict(
            {
                "run": {"directory": directory},
                "data": {"dataset": dataset.path, "max_length": 64},
                "model": {"base": base},
                "training": {"framework": "torch", "global_batch_size": 24, "num_train_epochs": 2.0,
                             "per_device_max_tokens": 2048,
                             "early_stopping": values.pop("early_stopping", {})},
                "evaluation": {"every_steps": 2, "metric": "loss", **values.pop("evaluation", {})},
                "checkpoint": {"every_epoch": False, "keep": 9, **values.pop("checkpoint", {})},
                "tracking": {"tensorboard": False},
            }
        )  # fmt: skip
        assert not values
        self.comm, self.console = SoloComm(), io.StringIO()
        self.run = Run(config, RankEnv(), console=self.console)
        self.run.open()
        self.job = prepare(config, self.comm, self.run, device=CPU)
        self.weights: dict[str, np.ndarray] = {}
        memory = Memory(every=50)
        self.state, tensors, self.due = resume(self.job, self.comm, self.run, memory)
        self.job = self.job.at(self.state)
        self.restore(model_weights(tensors))
        self.milestones = Milestones(
            self.job,
            self.comm,
            self.run,
            self.state,
            memory,
            snapshots=Snapshots(),
            weights=self.weights.items,
            moments=lambda: [("adam_m/classifier.bias", np.zeros(4, np.float32))],
            forward=self.forward,
            served=self.forward,
        )  # fmt: skip
        self.run.begin(self.state, total_steps=self.job.schedule.steps)

    def forward(self, ids_BT, mask_BT):
        return np.tile(self.weights["classifier.bias"], (len(ids_BT), 1))

    def restore(self, weights) -> None:
        self.weights.update({name: array.copy() for name, array in weights.items()})

    def step(self, *, stop: bool = False, abort: bool = False) -> bool:
        """As a loop's step; with `abort` only up to where a collective could hang."""
        state, planner = self.state, self.job.planner
        with self.run.update_lock:
            state.advance(planner, int(state.plan["epoch"]), int(state.plan["step"]))
            self.weights["classifier.bias"][:] = [AMPLITUDES[state.step], 0.0, 0.0, 0.0]
            self.milestones.completed()
        return False if abort else self.milestones.after_step(stop)

    def go(self) -> Training:
        """To the end."""
        if self.due:
            self.milestones.catch_up()
        over = self.state.step >= self.job.schedule.steps or self.state.stopped_early
        while not over:
            over = self.step()
        self.milestones.conclude(self.restore)
        self.run.close("finished")
        return self

    def leave(self) -> None:
        """End an attempt without finishing the run."""
        self.run.checkpoints.wait()
        self.run.close("interrupted")

    def saved(self) -> dict[int, float | None]:
        """{step: score} of the checkpoints."""
        return {one.step: one.score for one in self.run.checkpoints.list()}

    def exported_bias(self) -> float:
        path = os.path.join(self.run.directory, "export", "model.safetensors")
        return float(load_file(path)["classifier.bias"][0])


@pytest.fixture
def begin(tmp_path, tiny_dataset, tiny_model_dir):
    return lambda name="run", **values: Training(
        str(tmp_path / name), tiny_dataset, tiny_model_dir, **values
    )


def test_the_best_evaluation_is_kept_and_exported(begin):
    done = begin().go()
    # 2 and 4 were the best so far when they came, 8 is the last.
    assert sorted(done.saved()) == [2, 4, 8]
    assert max(done.saved(), key=done.saved().get) == 4 == done.state.best_step
    assert done.exported_bias() == AMPLITUDES[4]
    run = storage.read_json(os.path.join(done.run.directory, "run.json"))
    assert run["metrics"]["validation"]["loss"] == pytest.approx(-done.saved()[4], abs=1e-6)
    info = storage.read_json(os.path.join(done.run.directory, "export", "howdah.json"))
    assert info["step"] == 4


def test_the_last_weights_are_exported_where_nothing_was_evaluated(begin, tmp_path, tiny_model_dir):
    from tests.fixtures_dataset import build_dataset

    alone = build_dataset(str(tmp_path / "v=2"), model_dir=tiny_model_dir, rows={"train": 96})
    done = Training(str(tmp_path / "alone"), alone, tiny_model_dir).go()
    assert done.saved() == {8: None}
    assert done.state.best_step is None
    assert done.exported_bias() == AMPLITUDES[8]


def test_saves_by_steps_and_epochs_come_on_top(begin):
    done = begin(checkpoint={"every_steps": 3, "every_epoch": True}).go()
    assert sorted(done.saved()) == [2, 3, 4, 6, 8]


def test_early_stopping_saves_and_ends(begin):
    done = begin(early_stopping={"patience": 1}).go()
    assert done.state.step == 6 and done.state.stopped_early
    assert sorted(done.saved()) == [2, 4, 6]
    assert done.exported_bias() == AMPLITUDES[4]
    again = begin(early_stopping={"patience": 1}).go()  # it is over: nothing is trained
    assert again.state.step == 6
    assert again.exported_bias() == AMPLITUDES[4]


@pytest.mark.parametrize("stopped_at", [1, 2, 3, 4, 7, 8])
def test_a_stopped_run_ends_as_the_whole_one(begin, stopped_at):
    whole = begin("whole").go()
    first = begin()
    for _ in range(stopped_at - 1):
        first.step()
    with pytest.raises(HowdahError):
        first.step(stop=True)
    first.leave()
    assert first.saved()[stopped_at] is None  # the evaluation is put off, not lost
    second = begin()
    assert second.state.step == stopped_at
    assert second.due is (stopped_at % 2 == 0)
    second.go()
    assert {s: v for s, v in second.saved().items() if v is not None} == whole.saved()
    assert _comparable(second) == _comparable(whole)
    assert second.exported_bias() == whole.exported_bias()


def _comparable(training: Training) -> dict:
    meta = training.state.to_meta()
    return {key: value for key, value in meta.items() if key != "train_seconds"}


@pytest.mark.parametrize("at", [3, 4])
def test_a_torn_down_run_saves_its_last_completed_step(begin, at):
    first = begin()
    for _ in range(at - 1):
        first.step()
    first.step(abort=True)
    first.run.save_last_completed()  # as another thread does while the main one hangs
    assert at in first.saved()
    meta = load(first.run.checkpoints.path_of(at)).meta
    assert (meta["step"], meta["evaluation_due"]) == (at, at == 4)
    first.leave()
    second = begin()
    assert second.weights["classifier.bias"][0] == AMPLITUDES[at]
    assert second.go().exported_bias() == AMPLITUDES[4]


def test_a_run_begun_elsewhere_finds_its_own_best(begin):
    whole = begin("whole").go()
    other = begin("other", checkpoint={"resume": whole.run.checkpoints.path_of(4)})
    assert other.state.best_step is None
    assert "evaluations begin anew" in other.console.getvalue()
    assert other.go().state.best_step == 8  # of 6 and 8, the better one
    assert other.exported_bias() == AMPLITUDES[8]


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


# ------------------------------------------------------------------ storage that fails for a while
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


def settled_step(training: Training) -> None:
    """A step, and the save that it began seen through."""
    training.step()
    while training.run.checkpoints.busy:
        time.sleep(0.01)


def test_a_save_that_fails_does_not_end_the_run(begin, outage):
    outage |= {1, 2}
    done = begin(checkpoint={"every_steps": 1})
    for _ in range(4):
        settled_step(done)
    said = done.console.getvalue()
    assert "checkpoint step-1 could not be saved" in said
    assert "failure 2 of 3 in a row" in said
    done.go()
    assert sorted(done.saved()) == [3, 4, 5, 6, 7, 8]
    assert done.exported_bias() == AMPLITUDES[4]


def test_too_many_in_a_row_end_it_with_the_storage_s_error(begin, outage):
    outage |= {3, 4, 5}
    done = begin(checkpoint={"every_steps": 1}, evaluation={"every_steps": 100})
    with pytest.raises(StorageUnavailable, match="3 in a row") as caught:
        for _ in range(7):
            settled_step(done)
    assert caught.value.exit_code == 5
    assert sorted(done.saved()) == [1, 2]
    done.run.close("failed")


def test_failures_that_are_not_in_a_row_are_survived(begin, outage):
    outage |= {1, 2, 4, 5, 7}
    done = begin(checkpoint={"every_steps": 1}, evaluation={"every_steps": 100})
    while done.state.step != 8:
        settled_step(done)
    assert sorted(done.saved()) == [3, 6, 8]
    done.leave()


def test_one_failure_is_enough_where_the_configuration_says_so(begin, outage):
    outage |= {1}
    done = begin(checkpoint={"every_steps": 1, "max_failures": 1})
    with pytest.raises(StorageUnavailable):
        for _ in range(3):
            settled_step(done)
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


@pytest.fixture
def now(monkeypatch):
    """A clock that can be put forward."""
    clock = types.SimpleNamespace(seconds=0.0)
    real = time.monotonic
    monkeypatch.setattr("training.savetimes.time.monotonic", lambda: real() + clock.seconds)
    return clock


def test_the_last_save_that_fails_is_an_error(begin, outage):
    outage |= {8}
    done = begin()
    with pytest.raises(StorageUnavailable) as caught:
        done.go()
    assert caught.value.exit_code == 5
    done.run.close("failed")


def test_a_stop_saves_also_after_a_save_that_failed(begin, outage):
    outage |= {1}
    first = begin(checkpoint={"every_steps": 1, "max_failures": 1})
    first.step()
    with pytest.raises(HowdahError, match=r"asked to end|interrupted"):
        first.step(stop=True)
    assert sorted(first.saved()) == [2]
    first.leave()
    outage |= {4}
    second = begin()
    second.step()
    with pytest.raises(StorageUnavailable, match="step-4 could not be saved"):
        second.step(stop=True)
    second.run.close("failed")


# ------------------------------------------------------------------------- an older order of rows
def test_a_run_that_an_earlier_planner_began_goes_on_with_that_one(
    tmp_path, tiny_dataset, tiny_model_dir, monkeypatch
):
    with monkeypatch.context() as patch:
        real = Planner._set_version
        patch.setattr(Planner, "_set_version", lambda self, version: real(self, 1))
        first = Training(str(tmp_path), tiny_dataset, tiny_model_dir)
        steps = first.job.planner.steps_per_epoch
        rows = [first.job.planner.batch(0, step).row.tolist() for step in range(steps)]
        first.step()
        first.step()  # evaluated and saved
        first.leave()
    assert steps > 2  # in the middle of an epoch
    second = Training(str(tmp_path), tiny_dataset, tiny_model_dir)
    assert second.job.planner.version == 1
    assert (second.state.step, second.state.plan["step"]) == (2, 2)
    source = second.job.train_source(second.comm, second.state)
    assert next(batch.step for batch in source) == 2
    left = [second.job.planner.batch(0, step).row.tolist() for step in range(2, steps)]
    assert left == rows[2:]
    second.step()
    second.leave()
    # What it saves is again one that a third attempt goes on from.
    third = Training(str(tmp_path), tiny_dataset, tiny_model_dir)
    assert third.job.planner.version == 1
    third.leave()
