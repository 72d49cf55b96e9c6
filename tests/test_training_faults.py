"""Real jobs that are interrupted, torn down or killed: what they say, keep and leave behind.

By default each fault runs once, with one framework and launcher, by the table below; all pairs run
in `make test-all`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.training_runs import ROOT, SETTINGS, launcher
from tests.training_runs import _nested as nested
from training.checkpoint import Checkpoints
from training.metricslog import read_metrics
from training.place import RankRecord

pytestmark = pytest.mark.mpi

LIMIT = 200  # seconds; detects a hang
ENDLESS = {"training.max_steps": 1_000_000}


def table(*default: tuple[str, str]) -> list:
    """(framework, launcher) pairs: those given always, the others in `make test-all` alone."""
    pairs = [(f, k) for f in ("torch", "tensorflow") for k in ("mpirun", "horovodrun")]
    return [
        pytest.param(*pair, id="-".join(pair), marks=[] if pair in default else pytest.mark.full)
        for pair in pairs
    ]


class Job:
    """A running job and its run directory."""

    def __init__(self, directory: str, argv: list[str]) -> None:
        self.directory = directory
        bin_directory = os.path.dirname(sys.executable)
        self.process = subprocess.Popen(
            argv,
            cwd=ROOT,
            env=os.environ
            | {
                "PATH": bin_directory + os.pathsep + os.environ["PATH"],
                "PYTHONPATH": ROOT,
                "CUDA_VISIBLE_DEVICES": "",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.stdout = self.stderr = ""

    def steps_saved(self) -> list[int]:
        return [s.step for s in Checkpoints(os.path.join(self.directory, "checkpoints")).list()]

    def wait_for_checkpoint(self) -> None:
        deadline = time.monotonic() + LIMIT
        while not self.steps_saved():
            assert self.process.poll() is None, self.end()
            assert time.monotonic() < deadline, "no checkpoint was ever written"
            time.sleep(0.05)

    def rank(self, number: int) -> int:
        return RankRecord.read_all(self.directory)[number].pid

    def end(self) -> int:
        self.stdout, self.stderr = self.process.communicate(timeout=LIMIT)
        return self.process.returncode

    def processes(self) -> list[str]:
        """Command lines of living processes that name the run directory."""
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{name}/cmdline", "rb") as file:
                line = file.read().replace(b"\0", b" ").decode()
                if self.directory in line and int(name) != os.getpid():
                    found.append(line)
        return found

    def wait_until_nothing_is_left(self) -> None:
        deadline = time.monotonic() + 60
        while found := self.processes():
            assert time.monotonic() < deadline, found
            time.sleep(0.05)

    def log_of_rank_0(self) -> str:
        with open(os.path.join(self.directory, "logs", "rank.0"), encoding="utf-8") as file:
            return file.read()

    def run_json(self) -> dict:
        with open(os.path.join(self.directory, "run.json"), encoding="utf-8") as file:
            return json.load(file)


@pytest.fixture
def start(tmp_path, tiny_dataset, tiny_model_dir):
    """Starts a job of two ranks; whatever it leaves is killed after the test."""
    jobs: list[Job] = []

    def go(framework: str, kind: str, *, bare: bool = False, **settings) -> Job:
        directory = str(tmp_path / "run")
        values = SETTINGS | ENDLESS | {
            "run.directory": directory,
            "data.dataset": tiny_dataset.path,
            "model.base": tiny_model_dir,
            "training.framework": framework,
        }  # fmt: skip
        config = str(tmp_path / "given.yaml")
        with open(config, "w", encoding="utf-8") as file:
            json.dump(nested(values | settings), file)
        if bare:
            rank = [sys.executable, "-m", "training", "--config", config]
            argv = [*launcher(kind, 2), *rank, "--set", f"run.directory={directory}"]
        else:
            argv = [sys.executable, "-m", "howdah.cli", "train", "--config", config,
                    "--np", "2", "--launcher", kind]  # fmt: skip
        job = Job(directory, argv)
        jobs.append(job)
        return job

    yield go
    for job in jobs:
        if job.process.poll() is None:
            job.process.kill()
            job.process.wait()
        for record in RankRecord.read_all(job.directory):
            if record.alive:
                os.kill(record.pid, signal.SIGKILL)


def finish(start, framework: str, kind: str, beyond: int) -> Job:
    """Start the run again up to a few steps beyond `beyond`; it must go on from there."""
    job = start(framework, kind, **{"training.max_steps": beyond + 3})
    assert job.end() == 0, job.stderr
    assert f"going on from checkpoint step-{beyond}" in job.stderr
    found = job.run_json()
    assert (found["status"], found["steps"]) == ("finished", beyond + 3)
    assert found["attempts"][-1]["resumed_at_step"] == beyond
    logged = [line["step"] for line in read_metrics(job.directory) if "split" not in line]
    assert logged == sorted(set(logged))
    assert logged[-1] == beyond + 3
    return job


# ------------------------------------------------------------------------------ interruptions
@pytest.mark.parametrize(
    ("framework", "kind"), table(("torch", "mpirun"), ("tensorflow", "horovodrun"))
)
def test_sigterm_saves_the_step_says_so_and_the_run_goes_on_from_it(start, framework, kind):
    job = start(framework, kind)
    job.wait_for_checkpoint()
    job.process.send_signal(signal.SIGTERM)
    assert job.end() == 143, job.stderr
    job.wait_until_nothing_is_left()
    newest = job.steps_saved()[0]
    assert f"the newest checkpoint is step-{newest}" in job.stderr.split("howdah: ")[-1]
    assert "Traceback" not in job.stderr
    assert job.run_json()["status"] == "interrupted"
    # The step that was going on is saved, not the one that was saved last by rule.
    with open(os.path.join(job.directory, "checkpoints", f"step-{newest}", "meta.json")) as file:
        assert json.load(file)["step"] == newest
    if framework == "torch":
        finish(start, framework, kind, newest)


@pytest.mark.parametrize(("framework", "kind"), table(("torch", "horovodrun")))
def test_ctrl_c_is_130(start, framework, kind):
    job = start(framework, kind)
    job.wait_for_checkpoint()
    job.process.send_signal(signal.SIGINT)
    assert job.end() == 130, job.stderr
    job.wait_until_nothing_is_left()
    assert "training was interrupted" in job.stderr.split("howdah: ")[-1]
    assert "Traceback" not in job.stderr


# ------------------------------------------------------------------------------ killed ranks
@pytest.mark.parametrize(
    ("framework", "kind"), table(("torch", "mpirun"), ("tensorflow", "horovodrun"))
)
def test_a_killed_rank_is_named_and_the_run_goes_on_from_a_whole_checkpoint(start, framework, kind):
    job = start(framework, kind)
    job.wait_for_checkpoint()
    os.kill(job.rank(1), signal.SIGKILL)
    assert job.end() == 6, job.stderr
    job.wait_until_nothing_is_left()
    last = job.stderr.split("howdah: ")[-1]
    assert last.startswith("rank 1 was lost"), job.stderr
    assert "Traceback" not in job.stderr
    assert job.run_json()["status"] == "failed"
    newest = job.steps_saved()[0]
    assert f"step-{newest}" in last
    if framework == "torch":
        finish(start, framework, kind, newest)


@pytest.mark.parametrize(("framework", "kind"), table(("torch", "horovodrun")))
def test_a_killed_rank_0_leaves_a_whole_checkpoint(start, framework, kind):
    job = start(framework, kind)
    job.wait_for_checkpoint()
    os.kill(job.rank(0), signal.SIGKILL)
    assert job.end() == 6, job.stderr
    job.wait_until_nothing_is_left()
    assert "rank 0 was lost" in job.stderr.split("howdah: ")[-1]
    directory = os.path.join(job.directory, "checkpoints")
    found = Checkpoints(directory).latest()
    assert found.step >= SETTINGS["checkpoint.every_steps"]


@pytest.mark.parametrize(("framework", "kind"), table(("torch", "mpirun")))
def test_when_howdah_train_is_killed_no_rank_lives_on(start, framework, kind):
    job = start(framework, kind)
    job.wait_for_checkpoint()
    job.process.kill()
    job.process.wait()
    job.wait_until_nothing_is_left()
    assert job.steps_saved()


# ------------------------------------------------------------------------- the bare launchers
@pytest.mark.parametrize(("framework", "kind"), table(("torch", "mpirun")))
def test_under_a_bare_launcher_rank_0_saves_its_last_step_when_all_are_terminated(
    start, framework, kind
):
    settings = {"checkpoint.every_steps": None, "checkpoint.every_epoch": False,
                "checkpoint.every_minutes": 0.02}  # fmt: skip
    job = start(framework, kind, bare=True, **settings)
    job.wait_for_checkpoint()
    before = job.steps_saved()[0]
    job.process.send_signal(signal.SIGTERM)
    assert job.end() != 0
    job.wait_until_nothing_is_left()
    log = job.log_of_rank_0()
    shown = [int(line.split("/")[0].split()[1]) for line in log.splitlines()
             if line.startswith("step ")]  # fmt: skip
    newest = Checkpoints(os.path.join(job.directory, "checkpoints")).latest()
    if "the newest checkpoint is" in log:
        (began,) = re.findall(r"saving step (\d+), the last one completed", log)
        assert int(began) >= shown[-1]  # no completed step that was shown is left out
        assert newest.step == int(began)
        assert f"the newest checkpoint is step-{began}" in log
    else:
        # mpirun kills a second after its SIGTERM: on a busy machine in the middle of the save,
        # before the last words, or while the save before it is still being written. What was
        # whole before is still the one to go on from.
        assert kind == "mpirun"
        assert before <= newest.step


@pytest.mark.parametrize(("framework", "kind"), table(("torch", "mpirun")))
def test_under_a_bare_launcher_rank_0_saves_its_last_step_when_another_is_killed(
    start, framework, kind
):
    job = start(framework, kind, bare=True, **{"checkpoint.every_steps": 40})
    job.wait_for_checkpoint()
    os.kill(job.rank(1), signal.SIGKILL)
    assert job.end() != 0
    job.wait_until_nothing_is_left()
    log = job.log_of_rank_0()
    shown = [int(line.split("/")[0].split()[1]) for line in log.splitlines()
             if line.startswith("step ")]  # fmt: skip
    found = Checkpoints(os.path.join(job.directory, "checkpoints")).latest()
    assert found.step >= shown[-1]


# -------------------------------------------------------------------------------- what is wrong
@pytest.mark.parametrize(("framework", "kind"), table(("torch", "horovodrun")))
def test_not_a_number_on_one_rank_stops_all_and_is_never_saved(
    start, framework, kind, tmp_path, tiny_model_dir
):
    # A word of the vocabulary overflows in the first norm: only the rank that meets it sees it.
    base = tmp_path / "base"
    base.mkdir()
    for name in os.listdir(tiny_model_dir):
        with open(os.path.join(tiny_model_dir, name), "rb") as file:
            (base / name).write_bytes(file.read())
    weights = load_file(str(base / "model.safetensors"))
    (words,) = (name for name in weights if name.endswith("word_embeddings.weight"))
    weights[words][731] = 3e38
    save_file(weights, str(base / "model.safetensors"), metadata={"format": "pt"})
    job = start(
        framework, kind,
        **{"model.base": str(base), "checkpoint.every_steps": 1, "checkpoint.keep": 1000},
    )  # fmt: skip
    assert job.end() == 6, job.stderr
    job.wait_until_nothing_is_left()
    last = job.stderr.split("howdah: ")[-1]
    assert "is not a number" in last
    assert "Traceback" not in job.stderr
    logged = [line for line in read_metrics(job.directory) if "split" not in line]
    assert all(line["loss"] is not None for line in logged)
    for saved in Checkpoints(os.path.join(job.directory, "checkpoints")).list():
        path = os.path.join(saved.path, "model.safetensors")
        for name, array in load_file(path).items():
            assert np.isfinite(array).all(), name


def test_a_refused_configuration_is_told_once_by_a_bare_launcher(tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text("training: {max_stepz: 3}\n")
    argv = [*launcher("mpirun", 2), sys.executable, "-m", "training", "--config", str(config)]
    job = Job(str(tmp_path), argv)
    assert job.end() == 2
    assert job.stderr.count("unknown key 'max_stepz'") == 1
    assert "did you mean training.max_steps?" in job.stderr
    assert "Traceback" not in job.stderr


def test_a_dataset_that_is_not_there_is_one_message(start, tmp_path):
    job = start("torch", "mpirun", **{"data.dataset": str(tmp_path / "nowhere")})
    assert job.end() in (3, 5), job.stderr
    assert job.stderr.count("howdah: ") == 1
    assert "nowhere" in job.stderr.split("howdah: ")[-1]
    assert "Traceback" not in job.stderr
    job.wait_until_nothing_is_left()
