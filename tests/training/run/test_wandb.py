"""A run in Weights & Biases, by its own library: one over all attempts, also without a server."""

import io
from dataclasses import replace

import pytest

from howdah.errors import ConfigError
from howdah.models.runs.run_json import RunFile
from howdah.training.checkpoint.state import TrainState
from howdah.training.run import tracking
from tests.support.training import wandb_files
from tests.training.run.test_run import IDENTITY, open_run, take_steps


def test_two_attempts_are_one_run_which_w_and_b_cannot_hold_up(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("HOME", str(tmp_path))  # it has no key
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    directory, console = str(tmp_path / "run"), io.StringIO()
    settings = {
        "tracking": {"wandb": "team/news", "tensorboard": False},
        "training": {"logging_steps": 2},
        "job": {"env": {"MY_PASSWORD": "hunter2"}},
    }
    for upto, status, mode in ((4, "failed", "offline"), (8, "finished", "online")):
        monkeypatch.setenv("WANDB_MODE", mode)
        run = open_run(directory, console, **settings)
        run.owned.file.of(replace(IDENTITY, manifest="d", dataset_path="hdfs://n/dataset/v-1"))
        run.update(verdict={"verdict": "Good"})
        take_steps(run, TrainState(step=upto - 4), upto)
        run.close(status)
    record = RunFile(directory).values
    first, second = wandb_files.runs(f"{directory}/wandb")
    for attempt in (first, second):
        assert (attempt.id, attempt.entity, attempt.project) == (record["run_id"], "team", "news")
        assert f"`wandb sync {attempt.path.parent}` sends it" in console.getvalue()
        facts = attempt.config["howdah"]
        assert facts["run_id"] == record["run_id"] and facts["dataset_hash"] == "d"
        assert facts["dataset"] == "hdfs://n/dataset/v-1" and facts["run_directory"] == directory
        assert attempt.config["training"]["logging_steps"] == 2
        assert b"hunter2" not in attempt.path.read_bytes()
        assert not attempt.kinds & {"files", "environment", "artifact", "python_packages"}
    steps = [row["step"] for attempt in (first, second) for row in attempt.history]
    assert steps == [2, 4, 6, 8]
    assert second.history[-1]["train/loss"] == 1 / 8
    assert (first.exit_code, second.exit_code) == (1, 0)
    assert second.summary["verdict"] == "Good"
    assert second.summary["hours.cpu"] == pytest.approx(record["hours"]["cpu"], abs=1e-4)
    warnings = [line for line in console.getvalue().splitlines() if "warning" in line]
    assert [line.partition(". ")[0] for line in warnings] == [
        "warning: W&B: the run is kept offline: No API key configured"
    ]


def test_a_package_that_is_missing_is_refused_before_the_run_directory_is_taken(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(tracking.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="the package wandb is not installed") as caught:
        open_run(str(tmp_path / "run"), tracking={"wandb": "news"})
    assert caught.value.where == "tracking.wandb"
    assert "pip install wandb" in caught.value.remedy
    assert not (tmp_path / "run" / "run.json").exists()
