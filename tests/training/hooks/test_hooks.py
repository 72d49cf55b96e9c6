"""Evaluations, stops and the end of a run (training/hooks/)."""

from __future__ import annotations

import os
import re

import pytest

from howdah import storage
from howdah.data.splits import planner
from howdah.errors import CheckpointError, HowdahError
from howdah.training.checkpoint.read import load
from howdah.training.comm.base import RankLost
from howdah.training.preparation import job
from tests import ROOT as REPOSITORY
from tests.support.training.numpy_loop import AMPLITUDES, Training, fixture_begin  # noqa: F401 - a fixture

ROOT = str(REPOSITORY)


def sections(path: str) -> list[str]:
    """The comments that head a loop's sections (`# ---- data` and `# -- stop`), in their order."""
    with open(os.path.join(ROOT, path)) as file:
        return re.findall(r"^ *# -{2,} ?(.+)", file.read(), re.MULTILINE)


def between_steps(path: str) -> str:
    """Do what a loop does between one step's end and the next one's begin."""
    with open(os.path.join(ROOT, path)) as file:
        source = file.read()
    between = source[source.index("kept = compression.whole") : source.index("conclude(")]
    # TensorFlow's sums are in a graph, which other numbers need anew.
    return between.replace(" " * 20 + "steps.join(comm)\n", "")


def test_both_loops_have_the_same_sections_in_the_same_order():
    torch, tensorflow = "training/loop_torch.py", "training/loop_tf.py"
    assert sections(torch) == sections(tensorflow)
    assert len(sections(torch)) > 10
    assert between_steps(torch) == between_steps(tensorflow)


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
    from tests.fixtures.dataset import build_dataset

    alone = build_dataset(str(tmp_path / "v=2"), model_dir=tiny_model_dir, rows={"train": 96})
    done = Training(str(tmp_path / "alone"), alone, tiny_model_dir).go()
    assert done.saved() == {8: None}
    assert done.state.best_step is None
    assert done.exported_bias() == AMPLITUDES[8]


def test_early_stopping_saves_and_ends(begin):
    done = begin(early_stopping={"patience": 1}).go()
    assert done.state.step == 6 and done.state.stopped_early
    assert sorted(done.saved()) == [2, 4, 6]
    assert done.exported_bias() == AMPLITUDES[4]
    again = begin(early_stopping={"patience": 1}).go()  # it is over: nothing is trained
    assert again.state.step == 6
    assert again.exported_bias() == AMPLITUDES[4]


@pytest.mark.parametrize(
    "stopped_at", [1, 4, 8, *(pytest.param(at, marks=pytest.mark.full) for at in (2, 3, 7))]
)
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
    first.run.last_save.save()  # as another thread does while the main one hangs
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
    assert "the next evaluation counts as the best" in other.console.getvalue()
    assert other.go().state.best_step == 8  # of 6 and 8, the better one
    assert other.exported_bias() == AMPLITUDES[8]


def test_an_evaluation_ends_when_a_rank_is_known_to_be_lost(begin, monkeypatch):
    """The rest of its rows may take hours, and no collective can follow them."""
    done, forward, batches = begin(), Training.forward, []

    def slow(self, ids_BT, mask_BT):
        batches.append(1)
        self.run.loss_reported = True
        return forward(self, ids_BT, mask_BT)

    monkeypatch.setattr(done.evaluator, "_forward", lambda *batch: slow(done, *batch))
    done.step()
    with pytest.raises(RankLost):
        done.step()  # every second step is evaluated
    assert len(batches) == 1
    done.leave()


def test_the_agent_is_notified_when_only_the_end_remains(begin, monkeypatch):
    """Then its driver begins no change of worlds any more (T3)."""
    done, sent = begin(), []
    monkeypatch.setattr(done.run.heartbeat, "send", lambda kind, **fields: sent.append(kind))
    while not done.step():
        assert "concluding" not in sent
    done.conclude()
    assert sent.index("concluding") < len(sent)
    done.run.close("finished")


def test_a_run_inside_an_epoch_of_an_earlier_planner_is_refused(
    tmp_path, tiny_dataset, tiny_model_dir, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(planner, "PLANNER_VERSION", 1)
        patch.setattr(job, "PLANNER_VERSION", 1)
        first = Training(str(tmp_path), tiny_dataset, tiny_model_dir)
        assert first.job.planner.steps_per_epoch > 2  # in the middle of an epoch
        first.step()
        first.step()  # evaluated and saved
        first.leave()
    with pytest.raises(CheckpointError, match="with another plan of batches") as caught:
        Training(str(tmp_path), tiny_dataset, tiny_model_dir)
    assert "version of the plan=2" in caught.value.expected
    assert "version of the plan=1" in caught.value.got
