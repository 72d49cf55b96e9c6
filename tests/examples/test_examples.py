"""The examples as a user starts them: what they train, say of a failure, and leave behind."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import numpy as np
import psutil
import pytest
import yaml

from howdah.config import loader
from howdah.core.processes import marked
from howdah.errors import TrainingError
from howdah.process import isolation
from howdah.training.checkpoint.manager import Checkpoints
from howdah.training.run.local_dir import RankRecord
from tests import ROOT
from tests.runs.training_runs import SETTINGS, Finished, train
from tests.runs.training_runs import _nested as nested
from tests.support.waiting import wait_until

MARK = "HOWDAH_EXAMPLE_TEST"
LIMIT = 280  # seconds; detects a hang
OURS = ("torch_distributor", "horovod_spark", "ray_train", "ray_tune")
THEIRS = ("deepspeed_zero", "mirrored")
"""With loops of their own."""


class Example:
    """A started example; a context that leaves no process behind."""

    def __init__(self, name: str, config: Path) -> None:
        self._token = uuid.uuid4().hex
        path = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
        env = {"PATH": path, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "",
               "SPARK_LOCAL_IP": "127.0.0.1", MARK: self._token}  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, f"examples/{name}.py", str(config)],
            cwd=ROOT, env=isolation.restored() | env,  # as a shell starts it
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def __enter__(self) -> Example:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.living():
            os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def living(self) -> list[int]:
        return marked(MARK, self._token)

    def rank(self, name: str, value: str) -> int | None:
        """The process of this example's file whose environment has such a variable. (torchrun
        starts it as `python -u FILE`.)"""
        for pid in self.living():
            try:
                process = psutil.Process(pid)
                ours = any("examples/" in word for word in process.cmdline()[1:3])
                if ours and value in process.environ().get(name, ""):
                    return pid
            except (psutil.Error, OSError):
                continue
        return None

    def end(self) -> tuple[int, str]:
        """Exit code and output; nothing lives then."""
        output, _ = self.process.communicate(timeout=LIMIT)
        wait_until(lambda: not self.living())
        return self.process.returncode, output


@pytest.fixture
def config(tmp_path, tiny_dataset, tiny_model_dir):
    """Writes the configuration that all examples train, here with other values; its path."""

    def write(**settings) -> Path:
        values = SETTINGS | {
            "run.directory": str(tmp_path / "run"),
            "data.dataset": tiny_dataset.path,
            "data.spark.master": "local[2]",
            "data.spark.driver_memory": "1g",
            "model.base": tiny_model_dir,
            "training.framework": "torch",
        }  # fmt: skip
        path = tmp_path / "run.yaml"
        path.write_text(json.dumps(nested(values | settings)))  # JSON is YAML
        return path

    return write


def run_json(config: Path) -> dict:
    return json.loads((config.parent / "run" / "run.json").read_text())


def kill_rank_1(example: Example, directory: str) -> None:
    """Once a checkpoint is there to go on from."""
    checkpoints = Checkpoints(os.path.join(directory, "checkpoints"))
    wait_until(lambda: example.process.poll() is not None or checkpoints.list(), LIMIT)
    assert example.process.poll() is None, example.end()
    records = {one.rank: one.pid for one in RankRecord.read_all(directory)}
    os.kill(records[1], signal.SIGKILL)


def test_a_bad_configuration_is_refused_before_anything_starts(config):
    path = config(**{"training.max_stepz": 3})
    started = {name: Example(name, path) for name in (*OURS, *THEIRS)}
    for name, example in started.items():
        with example:
            code, output = example.end()
        assert code == 2, output
        assert "did you mean training.max_steps?" in output, name
        assert "Traceback" not in output, name


# ------------------------------------------------------------------------------------ Spark
@pytest.fixture
def made_by_etl(spark, tmp_path, config):
    """The configuration of a dataset version that the ETL has made from a CSV file."""
    from tests.fixtures.spark import etl
    from tests.support.rows.word_rows import write_rows

    source = write_rows(tmp_path / "rows.csv")
    path = config(**{"data.source": source, "data.dataset": str(tmp_path / "dataset")})
    assert etl(["--config", str(path)]) == 0
    return path


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.parametrize("name", ["torch_distributor", "horovod_spark"])
def test_on_spark_a_version_of_the_etl_is_trained_to_the_bits_of_howdah_train(
    made_by_etl, tiny_model_dir, tmp_path, name
):
    with Example(name, made_by_etl) as example:
        code, output = example.end()
    assert code == 0, output
    record = run_json(made_by_etl)
    assert (record["status"], record["steps"], record["world_size"]) == ("finished", 10, 2)
    assert "finished: 10 steps" in output
    dataset = str(tmp_path / "dataset")
    plain = train(
        str(tmp_path / "plain"), dataset=dataset, base=tiny_model_dir, np_=2, kind="torchrun"
    )
    theirs = Finished(str(tmp_path / "run"), 0, "").tensors(10)
    for key, array in plain.tensors(10).items():
        np.testing.assert_array_equal(theirs[key], array, err_msg=key)


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.parametrize("name", ["torch_distributor", "horovod_spark"])
def test_on_spark_a_killed_rank_is_a_failure_that_says_so(config, name):
    path = config(**{"training.max_steps": 1_000_000})
    with Example(name, path) as example:
        kill_rank_1(example, str(path.parent / "run"))
        code, output = example.end()
    assert code == 6, output
    assert "training did not finish" in output
    assert run_json(path)["status"] == "failed"


# -------------------------------------------------------------------------------------- Ray
@pytest.mark.full
@pytest.mark.mpi
def test_ray_starts_the_group_again_after_a_killed_rank(config):
    path = config(**{"training.max_steps": 60})
    with Example("ray_train", path) as example:
        kill_rank_1(example, str(path.parent / "run"))
        code, output = example.end()
    assert code == 0, output
    record = run_json(path)
    assert (record["status"], record["steps"]) == ("finished", 60)
    assert len(record["attempts"]) == 2
    assert record["attempts"][-1]["resumed_at_step"] >= SETTINGS["checkpoint.every_steps"]


@pytest.mark.full
@pytest.mark.mpi
def test_ray_tune_runs_the_same_space_and_prunes_in_good_order(config):
    """Few rows are learnt by heart at a high rate, and the loss on validation rises: only such
    trials are pruned. How many of the four have that rate depends on the order in which they end,
    and ASHA lets the first one of a rung pass."""
    rates = {"training.learning_rate": {"choices": [1e-2, 1e-7]}}
    tune = {"space": rates, "trials": 4, "metric": "loss"}
    path = config(**{"training.max_steps": 600, "evaluation.every_steps": 50})
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tune": tune}))
    with Example("ray_tune", path) as example:
        code, output = example.end()
    assert code == 0, output
    study = path.parent / "run"
    made = json.loads((study / "best.json").read_text())
    runs = [json.loads((study / f"trials/{n}/run.json").read_text()) for n in range(4)]
    finished = [run["metrics"]["validation"]["loss"] for run in runs if run["status"] == "finished"]
    pruned = [n for n, run in enumerate(runs) if run["status"] == "interrupted"]
    assert made["best"]["value"] == min(finished)
    assert made["best"]["params"]["training.learning_rate"] == 1e-7
    assert made["trials"] == {
        "waiting": 0, "running": 0, "failed": 0, "finished": len(finished), "pruned": len(pruned),
    }  # fmt: skip
    assert pruned and len(pruned) + len(finished) == 4
    for number in pruned:
        config_of = yaml.safe_load((study / f"trials/{number}/config.yaml").read_text())
        assert config_of["training"]["learning_rate"] == 1e-2
        saved = Checkpoints(str(study / f"trials/{number}/checkpoints")).list()
        assert saved and saved[0].step < 600
    assert (study / "study.html").exists()


def test_a_study_of_ray_tune_is_judged_by_its_own_trials(config, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    ray_tune = importlib.import_module("ray_tune")
    path = config()
    tune = {"space": {"training.learning_rate": {"low": 1e-5, "high": 1e-3}}, "metric": "loss"}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tune": tune}))
    settings = loader.load(str(path))
    assert ray_tune.numbers(settings) == frozenset()

    def trial(number: int, status: str) -> None:
        directory = Path(settings.run.directory, "trials", str(number))
        directory.mkdir(parents=True)
        metrics = {"validation": {"loss": 0.25}} if status == "finished" else {}
        (directory / "run.json").write_text(json.dumps({"status": status, "metrics": metrics}))
        shutil.copy(path, directory / "config.yaml")

    trial(0, "finished")
    ray_tune.judge(settings, frozenset(), None)
    before = ray_tune.numbers(settings)
    assert before == {0}
    trial(1, "failed")
    with pytest.raises(TrainingError, match="no trial has finished"):
        ray_tune.judge(settings, before, None)
    trial(2, "finished")
    ray_tune.judge(settings, before, None)
    best = json.loads(Path(settings.run.directory, "best.json").read_text())
    assert (best["best"]["trial"], best["trials"]["finished"]) == (2, 1)


# ------------------------------------------------------------------------ loops of their own
@pytest.mark.full
@pytest.mark.mpi
@pytest.mark.parametrize("name", THEIRS)
def test_a_loop_of_others_trains_the_same_dataset_at_each_start(config, name):
    framework = {"mirrored": "tensorflow"}.get(name, "torch")
    path = config(**{"training.framework": framework})
    for attempts in (1, 2):
        with Example(name, path) as example:
            code, output = example.end()
        assert code == 0, output
        record = run_json(path)
        assert (record["status"], record["steps"]) == ("finished", 10)
        assert len(record["attempts"]) == attempts


def test_a_loop_of_others_leaves_the_record_of_a_real_run_alone(config):
    path = config()
    record = path.parent / "run" / "run.json"
    record.parent.mkdir()
    record.write_text('{"run_id": "t-1", "status": "finished", "attempts": [{"attempt": 1}]}')
    before = record.read_bytes()
    started = {name: Example(name, path) for name in THEIRS}
    for name, example in started.items():
        with example:
            code, output = example.end()
        assert code == 2, output
        assert "has a run of Howdah's own training" in output, name
    assert record.read_bytes() == before


@pytest.fixture
def shared_rows(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    return importlib.import_module("shared_rows")


def test_attempts_of_a_loop_of_others_are_added_to_those_before(config, shared_rows):
    settings = loader.load(str(config()))
    for steps in (10, 20):
        shared_rows.require_no_run(settings)
        shared_rows.finish(settings, steps=steps, loss=0.5, system="a test")
    record = json.loads(Path(settings.run.directory, "run.json").read_text())
    assert (record["steps"], len(record["attempts"])) == (20, 2)


@pytest.mark.parametrize(("max_steps", "epochs"), [(None, 2), (None, 0.5), (7, 2)])
def test_a_loop_of_others_gets_all_batches_of_the_run(config, shared_rows, max_steps, epochs):
    keys = {"training.max_steps": max_steps, "training.num_train_epochs": epochs}
    source, _ = shared_rows.batches(loader.load(str(config(**keys))), 0, 2)
    per_epoch = source.planner.steps_per_epoch
    assert len(list(source)) == (max_steps or epochs * per_epoch)


@pytest.mark.full
@pytest.mark.mpi
@pytest.mark.parametrize(
    ("name", "variable", "value"),
    [("deepspeed_zero", "RANK", "1"), ("mirrored", "TF_CONFIG", '"index": 1')],
)
def test_a_killed_rank_of_a_loop_of_others_is_a_failure_that_says_so(config, name, variable, value):
    framework = {"mirrored": "tensorflow"}.get(name, "torch")
    path = config(**{"training.max_steps": 1_000_000, "training.framework": framework})
    with Example(name, path) as example:

        def rank() -> int | None:
            assert example.process.poll() is None, example.end()
            return example.rank(variable, value)

        os.kill(wait_until(rank, LIMIT), signal.SIGKILL)
        code, output = example.end()
    assert code == 6, output
    assert "training did not finish" in output
    assert not (path.parent / "run" / "run.json").exists()
