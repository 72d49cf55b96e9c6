"""Resuming means what it says: the right amount of training, and nothing of another history."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import types

import numpy as np
import pytest

from howdah import storage
from howdah.config.loader import from_dict
from howdah.config.model import CheckpointSection
from howdah.config.training import TrainingSection
from howdah.errors import CheckpointError, Terminated
from howdah.models.runs.identity import Identity
from howdah.models.runs.metrics_log import read_metrics
from howdah.models.runs.run_json import RunFile
from howdah.process.env import RankEnv
from howdah.training.checkpoint.manager import Checkpoints
from howdah.training.checkpoint.read import load
from howdah.training.checkpoint.schedule import CheckpointSchedule
from howdah.training.checkpoint.state import TrainState
from howdah.training.export_run import export_run
from howdah.training.optim.schedule import Schedule
from howdah.training.run.run import Run
from tests.fixtures.dataset import build_dataset
from tests.runs.training_runs import ROOT, Finished, train
from tests.support.training.numpy_loop import Training, fixture_begin  # noqa: F401 - a fixture
from tests.training.run.test_possession import signals_as_they_were  # noqa: F401 - a fixture
from tests.training.test_loops import either

IDENTITY = Identity(base_model="b", dataset="d", tokenizer="t", labels=("x",), plan="p")


# ------------------------------------------------------- the right amount, to a schedule's end at 0
def test_the_schedule_goes_on_at_the_same_place_of_the_run_and_ends_at_0():
    rules = TrainingSection(num_train_epochs=3.0, learning_rate=0.1, global_batch_size=12)
    for per_epoch in (1, 4, 8, 16, 50):
        schedule = Schedule.of(rules, per_epoch, done=8, place=per_epoch)
        assert schedule.steps == 8 + 2 * per_epoch
        assert schedule.lr(8) == pytest.approx(0.1 * 2 / 3)  # a third of the run is done
        assert schedule.lr(schedule.steps) == 0.0
        assert schedule.lr(schedule.steps - 1) == pytest.approx(0.1 / (3 * per_epoch))
    unchanged = Schedule.of(rules, 8, done=11, place=11)
    assert unchanged == Schedule.of(rules, 8)
    by_steps = Schedule.of(rules.model_copy(update={"max_steps": 20}), 4, done=8, place=4)
    assert (by_steps.steps, by_steps.lr(20)) == (20, 0.0)


def first_epoch(directory: str, dataset: str, base: str, framework: str) -> Finished:
    """One epoch of 96 rows with batches of 12."""
    done = train(directory, dataset=dataset, base=base, framework=framework, settings={
        "training.max_steps": None, "training.num_train_epochs": 1.0,
    })  # fmt: skip
    assert done.run_json()["steps"] == 8
    return done


@pytest.mark.parametrize("framework", either("torch"))
@pytest.mark.parametrize(
    ("batch", "steps"), [(24, 8 + 2 * 4), pytest.param(6, 8 + 2 * 16, marks=pytest.mark.full)]
)
def test_another_batch_size_after_an_epoch_trains_the_epochs_asked_for(
    tmp_path, tiny_dataset, tiny_model_dir, framework, batch, steps
):
    where = str(tmp_path / "run")
    first_epoch(where, tiny_dataset.path, tiny_model_dir, framework)
    done = train(where, dataset=tiny_dataset.path, base=tiny_model_dir, framework=framework,
                 settings={"training.max_steps": None, "training.num_train_epochs": 3.0,
                           "training.global_batch_size": batch})  # fmt: skip
    run = done.run_json()
    assert (run["steps"], run["epochs"]) == (steps, 3.0)
    assert "batches have changed" in done.output
    assert done.tensors(steps)  # the last one, saved under its own number
    meta = load(done.checkpoint(steps)).meta
    assert (meta["rows"], meta["epochs"], meta["plan"]["epoch"]) == (3 * 96, 3.0, 3)
    lines = [line for line in read_metrics(where) if "split" not in line]
    assert [line["step"] for line in lines] == list(range(1, steps + 1))
    epochs = [line["epoch"] for line in lines]
    assert epochs[:9] == [*(round(n / 8, 4) for n in range(1, 9)), round(1 + batch / 96, 4)]
    assert epochs[-1] == 3.0
    rates = [line["lr"] for line in lines]
    assert rates[8] == pytest.approx(0.002 * 2 / 3)
    assert rates[-1] == pytest.approx(0.002 * batch / (3 * 96))  # the next would be 0
    assert rates[8:] == sorted(rates[8:], reverse=True)


@pytest.mark.full  # the arithmetic is tested above, without a run
def test_max_steps_counts_optimizer_steps_whatever_the_batches(
    tmp_path, tiny_dataset, tiny_model_dir
):
    where = str(tmp_path / "run")
    first_epoch(where, tiny_dataset.path, tiny_model_dir, "torch")
    done = train(where, dataset=tiny_dataset.path, base=tiny_model_dir,
                 settings={"training.max_steps": 20, "training.global_batch_size": 6})  # fmt: skip
    assert (done.run_json()["steps"], done.run_json()["epochs"]) == (20, 1.75)
    rates = [line["lr"] for line in read_metrics(where) if "split" not in line]
    assert rates[-1] == pytest.approx(0.002 / 20)


def rewritten(path: str, name: str, change) -> None:
    """A JSON file of a checkpoint changed, and the manifest's hash of it."""
    import hashlib

    file = storage.join(path, name)
    data = json.dumps(change(storage.read_json(file))).encode()
    storage.write_whole(file, data)
    if name != "manifest.json":
        entry = {name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}}
        rewritten(path, "manifest.json", lambda m: m | {"files": m["files"] | entry})


@pytest.mark.parametrize("key", ["epochs", "best_metric"])
def test_a_checkpoint_that_lacks_a_key_is_refused(begin, key):
    first = begin()
    for _ in range(2):
        first.step()
    first.leave()
    without = lambda meta: {name: value for name, value in meta.items() if name != key}  # noqa: E731
    rewritten(first.run.checkpoints.path_of(2), "meta.json", without)
    with pytest.raises(CheckpointError, match="lacks") as caught:
        begin()
    assert key in caught.value.what


def test_inside_an_epoch_other_batches_are_refused_with_the_way_out(begin):
    first = begin(checkpoint={"every_epoch": True, "every_steps": 6}).go()
    assert first.job.planner.steps_per_epoch == 4
    again = Checkpoints(first.run.config.checkpoint_directory)
    other = Identity(**{**first.job.identity.__dict__, "plan": "other"})
    for step in (8, 7):
        if again.has(step):
            storage.remove(again.path_of(step), recursive=True)
    with pytest.raises(CheckpointError, match="middle of an epoch") as caught:
        again.latest(other)
    assert f"--set checkpoint.resume={again.path_of(4)}" in caught.value.remedy


def test_another_dataset_is_refused_and_the_one_it_was_trained_on_named(begin):
    first = begin().go()
    other = Identity(**{**first.job.identity.__dict__, "dataset": "other", "dataset_path": "x"})
    with pytest.raises(CheckpointError, match="another dataset") as caught:
        Checkpoints(first.run.config.checkpoint_directory).latest(other)
    assert first.job.dataset.path in caught.value.remedy


def test_what_is_started_again_by_itself_keeps_the_version_it_began_with(
    tmp_path, tiny_model_dir, monkeypatch
):
    root = tmp_path / "data"
    old = build_dataset(str(root / "v=1"), model_dir=tiny_model_dir, rows={"train": 96})
    parent = types.SimpleNamespace(path=str(root))

    def attempt() -> Training:
        return Training(str(tmp_path / "run"), parent, tiny_model_dir)

    monkeypatch.setenv("HOWDAH_APPLICATION", "application_1_0001")
    first = attempt()
    for _ in range(4):
        first.step()
    with pytest.raises(Terminated):
        first.step(stop=True)
    first.leave()
    build_dataset(str(root / "v=2"), model_dir=tiny_model_dir, rows={"train": 96}, seed=9)
    manifest = root / "v=2" / "manifest.json"
    manifest.write_text(manifest.read_text().replace("2026-01-01T", "2026-01-02T"))
    again = attempt()  # the cluster starts it again
    assert (again.job.dataset.path, again.state.step) == (old.path, 5)
    again.leave()
    monkeypatch.setenv("HOWDAH_APPLICATION", "application_1_0002")
    with pytest.raises(CheckpointError, match="another dataset"):  # a user does
        attempt()


# ------------------------------------------------------------------- another run's checkpoint
@pytest.fixture(params=["file", "memory"])
def place(request, tmp_path, monkeypatch):
    if request.param == "file":
        yield str(tmp_path / "runs")
        return
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # of the local copies
    path = f"memory://{tmp_path.name}/runs"
    yield path
    storage.remove(path, recursive=True)


def open_run(directory: str, **sections) -> Run:
    config = from_dict({"run": {"directory": directory}, **sections})
    run = Run(config, RankEnv(), console=io.StringIO())
    run.open()
    return run


def save(run: Run, step: int, score: float | None, **more) -> None:
    state = TrainState(step=step, plan={"epoch": 0, "step": 0}, best_step=more.get("best"))
    tensors = {"model/x": np.full(3, step, np.float32)}
    run.checkpoints.save(step, tensors, run.meta(state), identity=IDENTITY, score=score, wait=True,
                         **more)  # fmt: skip


def steps(run: Run) -> list[int]:
    return [saved.step for saved in run.checkpoints.list()]


def test_a_resume_from_another_run_sets_the_own_history_aside(place):
    other = open_run(f"{place}/other")
    save(other, 1000, 0.5)
    other.close("finished")
    run = open_run(f"{place}/own", checkpoint={"keep": 2})
    save(run, 200, 0.95)
    save(run, 400, 0.97, best=400)
    run.metrics.evaluated(TrainState(step=400, epochs=4.0), "validation", {"accuracy": 0.97})
    run.close("finished")

    path = other.checkpoints.path_of(1000)
    again = open_run(f"{place}/own", checkpoint={"keep": 2, "resume": path})
    assert again.owned.resume_checkpoint(IDENTITY).step == 1000
    assert steps(again) == []
    assert again.checkpoints.best() is None
    for step, score in ((1010, 0.4), (1020, 0.3), (1030, 0.2)):
        save(again, step, score, best=1010)
    assert steps(again) == [1030, 1020, 1010]
    assert again.checkpoints.best().step == 1010
    names = [one.name for one in storage.list_dir(again.checkpoints.directory)]
    assert {"superseded-step-200.2", "superseded-step-400.2"} < set(names)
    again.close("finished")
    assert read_metrics(f"{place}/own") == []  # the report's curves are this history's
    assert storage.exists(f"{place}/own/superseded-metrics.jsonl.2")


def test_a_copy_of_an_own_checkpoint_is_the_own_history(place):
    run = open_run(f"{place}/own")
    for step in (200, 400):
        save(run, step, 0.9)
    run.close("finished")
    again = open_run(f"{place}/own", checkpoint={"resume": run.checkpoints.path_of(200) + "/"})
    assert again.owned.resume_checkpoint(IDENTITY).step == 200
    assert steps(again) == [200]
    again.close("finished")


def test_lost_before_its_first_checkpoint_it_begins_at_the_other_runs_again(place, monkeypatch):
    other = open_run(f"{place}/other")
    save(other, 1000, 0.5)
    other.close("finished")
    monkeypatch.setenv("HOWDAH_APPLICATION", "application_1_0001")
    path = other.checkpoints.path_of(1000)
    for expected in (1000, 1000, 1010):
        run = open_run(f"{place}/own", checkpoint={"resume": path})
        assert run.owned.resume_checkpoint(IDENTITY).step == expected
        if run.attempt == 2:
            save(run, 1010, 0.1)
        run.close("failed")


def test_what_is_exported_is_this_historys(begin):
    # Another run's step 2; the own history has a better step 4, by the evaluation of step 4.
    other = begin("other").go()
    history = begin("own").go()
    assert history.state.best_step == 4
    start = other.run.checkpoints.path_of(2)
    again = begin("own", checkpoint={"resume": start}, evaluation={"every_steps": 3})
    assert again.state.best_step is None  # the own step-2 is not the other run's
    again.go()
    assert sorted(again.saved()) == [3, 8]
    assert again.state.best_step == 8
    target = export_run(again.run.config, output=os.path.join(again.run.directory, "by-command"))
    assert storage.read_json(os.path.join(target, "howdah.json"))["step"] == 8


# ---------------------------------------------------------------------------- another metric
def test_another_metric_forgets_the_best_and_says_so(begin):
    first = begin(evaluation={"metric": "accuracy"})
    for _ in range(4):
        first.step()
    first.leave()
    assert first.state.best_metric == "accuracy" and first.state.best_score > 0
    second = begin(evaluation={"metric": "loss"})
    assert "evaluation.metric is loss now" in second.console.getvalue()
    assert (second.state.step, second.state.best_score) == (2, None)
    assert second.run.checkpoints.best() is None  # scores on storage are of the old one
    second.go()
    scores = {step: score for step, score in second.saved().items() if step > 2}
    assert second.state.best_step == max(scores, key=scores.get) == 4
    assert second.run.checkpoints.best().step == second.state.best_step


def test_early_stopping_by_the_old_metric_or_patience_is_over_with_it(begin):
    stopped = begin(early_stopping={"patience": 1}).go()
    assert stopped.state.stopped_early and stopped.state.step == 6
    patient = begin(early_stopping={"patience": 5}).go()
    assert patient.state.step == 8 and not patient.state.stopped_early


# --------------------------------------------------------------------- retention, leftovers
def test_the_states_best_is_kept_though_another_has_a_greater_score(place):
    run = open_run(place, checkpoint={"keep": 2})
    save(run, 100, 0.9, best=100)
    save(run, 200, 0.6, best=200)  # as after evaluations began anew
    for step in (300, 400, 500):
        save(run, step, 0.5, best=200)
    assert steps(run) == [500, 400, 200]
    run.close("finished")


def test_without_it_the_best_of_those_on_storage_is_kept(place):
    run = open_run(place, checkpoint={"keep": 2})
    save(run, 100, 0.9, best=100)
    for step in (200, 300, 400):
        save(run, step, None, best=150)  # step 150 could not be saved
    assert steps(run) == [400, 300, 100]
    run.close("finished")


@pytest.mark.parametrize("missing", ["manifest.json", "optimizer.safetensors"])
def test_a_leftover_of_a_rename_cut_short_is_put_away_when_the_run_comes_by(place, missing):
    run = open_run(place)
    save(run, 10, 0.5)
    save(run, 20, 0.6)
    storage.remove(storage.join(run.checkpoints.path_of(20), missing))
    assert not run.checkpoints.has(20)
    run.checkpoints.expect_repeated_steps()  # an elastic job reaches 20 again
    save(run, 20, 0.6)
    assert steps(run) == [20, 10]
    assert run.checkpoints.latest(IDENTITY).step == 20
    names = [one.name for one in storage.list_dir(run.checkpoints.directory)]
    assert names == ["quarantine-step-20.1", "step-10", "step-20"]
    run.close("finished")


def test_a_leftover_alone_is_no_history(place):
    run = open_run(place)
    save(run, 10, 0.5)
    storage.remove(storage.join(run.checkpoints.path_of(10), "manifest.json"))
    run.close("failed")
    again = open_run(place)
    assert again.owned.resume_checkpoint(IDENTITY) is None
    again.close("finished")


def test_until_its_evaluation_is_done_a_stopped_steps_checkpoint_stays(begin):
    first = begin()
    first.step()
    with pytest.raises(Terminated):
        first.step(stop=True)  # the evaluation of step 2 is put off
    first.leave()
    second = begin()
    seen: list[list[int]] = []
    real = second.evaluator._forward

    def forward(*args):
        seen.append([saved.step for saved in second.run.checkpoints.list()])
        return real(*args)

    second.evaluator._forward = forward
    assert second.due
    second.catch_up()
    second.run.checkpoints.wait()
    assert seen and all(one == [2] for one in seen)  # killed here, nothing would be lost
    assert second.saved()[2] is not None


# --------------------------------------------------------------------- when a save is due
def test_a_save_that_did_not_become_whole_changes_nothing(monkeypatch):
    now = types.SimpleNamespace(seconds=1000.0)
    monkeypatch.setattr("howdah.training.checkpoint.schedule.time.monotonic", lambda: now.seconds)
    times = CheckpointSchedule(
        CheckpointSection(every_steps=100, every_minutes=10, every_epoch=True)
    )
    times.begin(0)
    assert times.due(100, busy=False)
    times.begun(100)
    assert not times.due(101, busy=True)
    times.whole(100)
    assert not times.due(171, busy=False)

    heir = CheckpointSchedule(
        CheckpointSection(every_steps=100, every_minutes=None, every_epoch=True)
    )
    heir.begin(0)  # the newest whole one, when the process that saved step 100 was lost
    assert heir.due(101, busy=False)
    assert not heir.due(99, busy=False)
    assert heir.due(60, busy=False, epoch_began=50)  # the epoch's end has none either
    heir.begin(50)
    assert not heir.due(60, busy=False, epoch_began=50)
    assert heir.due(150, busy=False)

    timed = CheckpointSchedule(CheckpointSection(every_minutes=10, every_epoch=False))
    timed.begin(50, age=601)
    assert timed.due(60, busy=False)
    assert not timed.due(60, busy=True)
    timed.begun(60)
    now.seconds += 400  # a slow save: what counts is the age of the weights in it
    timed.whole(60)
    now.seconds += 199
    assert not timed.due(70, busy=False)
    now.seconds += 2
    assert timed.due(70, busy=False)


# --------------------------------------------------- a finished run, and what is refused after it
@pytest.mark.parametrize("command", [pytest.param("rank", marks=pytest.mark.full), "howdah train"])
def test_a_refused_start_leaves_a_finished_run_as_it_was(
    tmp_path, tiny_dataset, tiny_model_dir, command
):
    where = str(tmp_path / "run")
    inputs = {"dataset": tiny_dataset.path, "base": tiny_model_dir}
    done = train(where, **inputs, settings={"training.max_steps": 4})
    before, config = done.run_json(), storage.read_text(f"{where}/config.yaml")
    exported = storage.read_text(f"{where}/export/howdah.json")
    refused = [{"data.dataset": str(tmp_path / "none")}, {"model.base": str(tmp_path / "none")},
               {"checkpoint.resume": str(tmp_path / "none")}]  # fmt: skip
    for changed in refused:
        settings = {"training.max_steps": 4} | changed
        if command == "rank":
            failed = train(where, **inputs, settings=settings, check=False)
            code, output = failed.returncode, failed.output
        else:
            words = [f"--set={key}={json.dumps(value)}" for key, value in settings.items()]
            ended = subprocess.run(
                [sys.executable, "-m", "howdah.cli", "train", "-c", f"{where}/given.yaml", *words],
                capture_output=True, text=True, cwd=ROOT, env=os.environ | {"PYTHONPATH": ROOT},
                timeout=240,
            )  # fmt: skip
            code, output = ended.returncode, ended.stderr
        if "checkpoint.resume" not in changed:  # before an attempt begins
            assert code == 2 and str(tmp_path / "none") in output, output
            assert done.run_json() == before
            continue
        assert code == 4, output
        now = done.run_json()
        assert now["attempts"][-1]["status"] == "failed" and now["attempts"][-1]["error"]
        assert now["attempts"][:1] == before["attempts"]
        changing = {"attempts", "hours"}
        assert {k: v for k, v in now.items() if k not in changing} == {
            k: v for k, v in before.items() if k not in changing
        }
        assert storage.read_text(f"{where}/config.yaml") == config
    assert len(done.run_json()["attempts"]) == 2
    again = train(where, **inputs, settings={"training.max_steps": 6})
    now = again.run_json()
    assert (now["status"], now["steps"], now["run_id"]) == ("finished", 6, before["run_id"])
    assert "max_steps: 6" in storage.read_text(f"{where}/config.yaml")
    assert storage.read_text(f"{where}/export/howdah.json") != exported


def test_an_attempt_that_is_killed_before_it_is_admitted_costs_no_result(
    tmp_path, tiny_dataset, tiny_model_dir
):
    where = str(tmp_path / "run")
    done = train(where, dataset=tiny_dataset.path, base=tiny_model_dir,
                 settings={"training.max_steps": 4})  # fmt: skip
    before = done.run_json()
    config = from_dict({"run": {"directory": where}})
    for attempt in (2, 3):  # neither has an end
        RunFile(where).begin(config, world_size=1, attempt=attempt)
        assert done.run_json()["metrics"] == before["metrics"]
    RunFile(where).end("failed", "lost")  # the launcher, of the last one
    now = done.run_json()
    assert (now["status"], now["metrics"]) == ("finished", before["metrics"])
    assert now["config_hash"] == before["config_hash"]
