"""A command that is typed again in a run directory: what the run says of itself stays true."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from howdah.errors import DataError, UsageError
from howdah.training.process import failure
from howdah.training.run.status import lines, run_status
from tests import ROOT
from tests.runs.training_runs import SETTINGS
from tests.runs.training_runs import _nested as nested

pytest.importorskip("torch")
HOWDAH = os.path.join(os.path.dirname(sys.executable), "howdah")
LIMIT = 200
mpi, full = pytest.mark.mpi, pytest.mark.full


class Asked:
    """A run directory, and commands about it."""

    def __init__(self, directory: Path, sections: dict) -> None:
        self.directory, self.run = directory, directory / "run"
        self.config = directory / "run.yaml"
        self.sections = {**sections, "run": {"directory": str(self.run)}}
        self.config.write_text(json.dumps(self.sections))

    def command(self, *words: str, **sets) -> subprocess.CompletedProcess:
        options = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
        return subprocess.run(
            [HOWDAH, *words, "--config", str(self.config), *options], cwd=self.directory,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT),
                 "HOWDAH_CACHE": str(self.directory / "cache")},
            capture_output=True, text=True, timeout=LIMIT,
        )  # fmt: skip

    def files(self) -> dict[str, bytes]:
        files = sorted(path for path in self.run.rglob("*") if path.is_file())
        return {str(one): one.read_bytes() for one in files if one.suffix != ".lock"}

    def json(self, name: str) -> dict:
        return json.loads((self.run / name).read_text())


@pytest.fixture(scope="module")
def finished(tmp_path_factory, tiny_dataset, tiny_model_dir):
    """A run of 4 steps, with the learning rate 0.002."""
    values = SETTINGS | {
        "data.dataset": tiny_dataset.path, "model.base": tiny_model_dir,
        "training.framework": "torch", "training.max_steps": 4, "evaluation.metric": "loss",
    }  # fmt: skip
    made = Asked(tmp_path_factory.mktemp("finished"), nested(values))
    done = made.command("train")
    assert done.returncode == 0, done.stderr
    return made


@pytest.fixture
def run(finished, tmp_path):
    """A copy of it, to be asked for something else."""
    shutil.copytree(finished.run, tmp_path / "run")
    for path in (tmp_path / "run" / "config.yaml",):
        path.write_text(path.read_text().replace(str(finished.run), str(tmp_path / "run")))
    return Asked(tmp_path, {k: v for k, v in finished.sections.items() if k != "run"})


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ({}, ""),
        ({"training.logging_steps": 3, "training.comm": "torch", "checkpoint.keep": 2}, ""),
        ({"training.num_train_epochs": 9}, ""),
        ({"export.formats": "[onnx]"}, 'export.formats ["hf"] -> ["onnx"] (use `howdah export`)'),
        ({"evaluation.splits": "[test]"}, "howdah evaluate"),
        ({"training.framework": "tensorflow"}, "training.framework torch -> tensorflow (either"),
    ],
)
def test_the_same_again_is_finished_and_changes_nothing(finished, sets, message):
    before = finished.files()
    done = finished.command("train", "--json", **sets)
    assert done.returncode == 0, done.stderr
    assert "this run is finished: step 4 of 4" in done.stderr
    assert message in done.stderr
    assert "-m howdah.training" not in done.stderr  # no rank was started
    answer = json.loads(done.stdout)
    assert answer["status"] == "finished" and answer["main"]["metric"] == "loss"
    assert answer["verdict"]["title"] in ("Good", "Not good", "Inconclusive")
    # The rank has recorded this verdict at its end, after it had the baseline.
    recorded = finished.json("run.json")["verdict"]
    assert recorded["verdict"] == answer["verdict"]["title"]
    assert recorded["verdict_reason"] == answer["verdict"]["sentence"]
    assert "the baseline" in answer["main"]["against"]
    assert answer["report"] == str(finished.run / "report.html")
    assert "howdah publish --config" in answer["next"]
    assert finished.files() == before


@pytest.mark.parametrize(
    ("key", "value", "differs"),
    [
        ("training.learning_rate", "0.0001", "training.learning_rate 0.002 -> 0.0001"),
        ("training.max_steps", "3", "training.max_steps 4 -> 3"),
        ("training.global_batch_size", "6", "training.global_batch_size 12 -> 6"),
        ("evaluation.metric", "accuracy", "evaluation.metric loss -> accuracy"),
        ("model.freeze_layers", "1", "model.freeze_layers 0 -> 1"),
    ],
)
@pytest.mark.parametrize(
    "words", [("train",), pytest.param(("submit", "--on", "local"), marks=full)]
)
def test_something_else_is_refused_with_both_values(finished, words, key, value, differs):
    before = finished.files()
    done = finished.command(*words, **{key: value})
    assert done.returncode == UsageError.exit_code == 2, done.stderr
    assert differs in done.stderr
    assert "set another run.directory" in done.stderr
    assert "--set checkpoint.resume=never" in done.stderr
    assert finished.files() == before


def test_a_bare_launchers_rank_does_nothing_either(finished):
    before = finished.files()
    for more, code, message in (
        ([], 0, "this run is finished"),
        (["--set", "training.learning_rate=0.0001"], 2, "0.002 -> 0.0001"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "howdah.training", "--config", str(finished.config), *more],
            cwd=ROOT, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
            capture_output=True, text=True,
            timeout=LIMIT,
        )  # fmt: skip
        assert (done.returncode, message in done.stderr) == (code, True), done.stderr
    assert finished.files() == before


def test_submitted_again_it_is_finished_without_a_job(finished):
    before = finished.files()
    done = finished.command("submit", "--on", "local", "--wait", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["finished"], answer["run_directory"]) == (True, str(finished.run))
    assert finished.files() == before


def test_another_version_of_the_dataset_is_refused(finished, tmp_path, tiny_dataset):
    shutil.copytree(tiny_dataset.path, tmp_path / "v=1")
    other = {"data.dataset": str(tmp_path / "v=1"), "training.framework": "tensorflow"}
    done = finished.command("train", **other)
    assert done.returncode == 2
    assert "training.framework" not in done.stderr  # it alone would be accepted
    assert f"data.dataset {tiny_dataset.path} -> {tmp_path / 'v=1'}" in done.stderr


def test_status_of_a_run_directory(finished):
    done = finished.command("status", "--json")
    status = json.loads(done.stdout)
    assert (done.returncode, status["state"], status["step"]) == (0, "FINISHED", 4)
    assert status["metrics"]["validation"]["loss"] > 0
    assert status["logs"] == str(finished.run / "logs") and status["total_steps"] == 4


def test_status_of_a_run_that_failed_before_it_had_a_record(tmp_path):
    directory = tmp_path / "run"
    (directory / "logs").mkdir(parents=True)
    (directory / "config.yaml").write_text("run: {name: r}\n")
    assert run_status(str(directory))["state"] == "LOST"
    failure.write(str(directory), failure.of(0, DataError("there is no dataset", where="data")))
    status = run_status(str(directory))
    assert (status["state"], status["error"]) == ("FAILED", "there is no dataset")
    assert lines(status)[1] == "no attempt has begun its first step"
    assert run_status(str(tmp_path)) is None


def test_the_plan_is_a_table_with_the_speed_of_the_last_run(finished):
    done = finished.command("plan", **{"training.max_steps": 600})
    assert done.returncode == 0, done.stderr
    table = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert re.match(r" *about \d+ (seconds|minutes) of steps, at the speed of ", table["time"])
    assert table["time"].endswith(str(finished.run))
    assert re.match(r" *\d+\.\d GiB a rank: the framework \d", table["memory"])
    assert table["disk"].strip().endswith("GiB: checkpoints and export")
    other = finished.command("plan", "--np", "2", "--json", **{"training.framework": "tensorflow"})
    assert json.loads(other.stdout)["minutes"] is None


def test_more_steps_go_on_and_each_attempt_keeps_its_settings(run):
    done = run.command("train", **{"training.max_steps": 8, "training.learning_rate": 0.01})
    assert done.returncode == 0, done.stderr
    assert "resuming from checkpoint step-4" in done.stderr
    settings = [one["settings"] for one in run.json("run.json")["attempts"]]
    assert [one["training.learning_rate"] for one in settings] == [0.002, 0.01]
    about, card = run.json("export/howdah.json"), (run.run / "export" / "README.md").read_text()
    if about["step"] > 4:
        rates = [(s["steps"], s["settings"]["training.learning_rate"]) for s in about["stages"]]
        assert rates == [("1 to 4", 0.002), (f"5 to {about['step']}", 0.01)]
        assert "| 1 to 4 | 0.002 |" in card and "| learning_rate | 0.01 |" in card
    else:  # the best weights are older than the other settings
        assert about["stages"] == []
        assert "| learning_rate | 0.002 |" in card
    page = (run.run / "report.html").read_text()
    assert "Settings by step" in page and "0.002" in page
    back = run.command("train")
    assert back.returncode == 2
    assert "training.learning_rate 0.01 -> 0.002" in back.stderr


def test_resume_never_trains_it_anew(run):
    done = run.command(
        "train", "--set", "checkpoint.resume=never", **{"training.learning_rate": 0.01}
    )
    assert done.returncode == 0, done.stderr
    assert "starting from the base model" in done.stderr
    assert run.json("export/howdah.json")["training"]["learning_rate"] == 0.01
    assert run.json("export/howdah.json")["stages"] == []


@pytest.mark.parametrize(
    "command",
    ["etl", "train", "plan", "evaluate", "gate", "publish", "submit", "export", "tune"],
)
def test_no_configuration_is_no_run_of_defaults(tmp_path, command):
    done = subprocess.run(
        [HOWDAH, command], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == 2
    assert (
        "no --config, and this directory has no run.yaml" in done.stderr
        and "config init" in done.stderr
    )
    assert os.listdir(tmp_path) == []


def test_run_yaml_of_the_directory_is_used_and_said(finished):
    done = subprocess.run(
        [HOWDAH, "train"], cwd=finished.directory, capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == 0, done.stderr
    assert (
        f"no --config: {finished.directory}/run.yaml is used" in done.stderr
        and "is finished" in done.stderr
    )
    done = subprocess.run(
        [HOWDAH, "runs", "--json"], cwd=finished.directory,
        capture_output=True, text=True, timeout=LIMIT,
    )  # fmt: skip
    listed = json.loads(done.stdout)
    assert listed["directory"] == str(finished.directory)  # above run.directory: not ./runs
    assert [one["run"] for one in listed["runs"]] == ["run"]
    done = subprocess.run(
        [HOWDAH, "config", "check", "--set", "training.seed=7"], cwd=finished.directory,
        capture_output=True, text=True, timeout=LIMIT,
    )  # fmt: skip
    assert "run.yaml is used" in done.stderr and str(finished.run) in done.stdout
    assert "seed: 7" in done.stdout


@pytest.mark.parametrize("command", ["plan", "train"])
def test_no_dataset_is_named_by_its_whole_path_before_a_framework_is_imported(tmp_path, command):
    done = subprocess.run(
        [HOWDAH, command, "--set", "data.dataset=data"], cwd=tmp_path, capture_output=True,
        text=True, timeout=LIMIT, env=os.environ | {"PYTHONPROFILEIMPORTTIME": "1"},
    )  # fmt: skip
    assert done.returncode == 3
    assert str(tmp_path / "data") in done.stderr
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "howdah.data.manifest" in imported
    assert not imported & {"torch", "tensorflow", "pyspark"} and os.listdir(tmp_path) == []
