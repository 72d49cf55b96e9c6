"""Jobs of `howdah train` and of bare launchers, as processes that tests stop and look into."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.training_runs import ROOT, SETTINGS, launcher
from tests.training_runs import _nested as nested
from training.checkpoint import Checkpoints
from training.place import RankRecord

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

    def __init__(self, directory: str, argv: list[str], env: dict[str, str]) -> None:
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
            }
            | env,
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
    """Starts a job of two ranks; what it leaves is killed after the test."""
    jobs: list[Job] = []

    def go(framework: str, kind: str, *, bare: bool = False, env=None, **settings) -> Job:
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
        job = Job(directory, argv, env or {})
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
