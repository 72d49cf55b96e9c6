"""Small studies: their configuration, and `howdah tune` as processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from howdah.core.processes import LIMITS as VARIABLE
from howdah.training.checkpoint.manager import Checkpoints
from tests.runs.training_runs import ROOT, SETTINGS
from tests.runs.training_runs import _nested as nested
from tests.support.waiting import wait_until

LIMIT = 240  # seconds; detects a hang
SPACE = {
    "training.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True},
    "training.lr_scheduler_type": {"choices": ["linear", "cosine"]},
}


def configuration(directory: Path, *, dataset: str, base: str, **settings) -> dict:
    """A study of tiny trainings, as plain sections; `tune=` updates its section."""
    tune = {"space": SPACE, "trials": 2, "pruner": "none", **settings.pop("tune", {})}
    values = SETTINGS | {
        "run.directory": str(directory / "study"),
        "run.name": "tiny",
        "data.dataset": dataset,
        "model.base": base,
        "training.framework": "torch",
        "evaluation.metric": "loss",
        "evaluation.every_steps": 4,
    }
    return {**nested(values | settings), "tune": tune}


class Studies:
    """Starts workers of one study; what they leave is killed at the end.

    Args:
        directory: of the test.
        sections: the study's configuration.
    """

    def __init__(self, directory: Path, sections: dict) -> None:
        self.directory = directory
        self.study = Path(sections["run"]["directory"])
        self.config = directory / "study.yaml"
        tune = dict(sections["tune"])
        self.limits = {"study_seed": tune.pop("seed")} if "seed" in tune else {}
        self.config.write_text(json.dumps({**sections, "tune": tune}))  # JSON is YAML
        self.workers: list[Worker] = []

    def start(self, *options: str) -> Worker:
        log = self.directory / f"worker-{len(self.workers)}.log"
        self.workers.append(Worker(self.config, log, options, self.limits))
        return self.workers[-1]

    def trial(self, number: int) -> Path:
        return self.study / "trials" / str(number)

    def run_json(self, number: int) -> dict:
        return json.loads((self.trial(number) / "run.json").read_text())

    def steps_saved(self, number: int) -> list[int]:
        return [one.step for one in Checkpoints(str(self.trial(number) / "checkpoints")).list()]

    def wait_for_checkpoint(self, number: int) -> None:
        def saved():
            assert self.workers[0].process.poll() is None, self.workers[0].output()
            return self.steps_saved(number)

        wait_until(saved, LIMIT)

    def lease(self, number: int, attempt: int) -> dict:
        return json.loads((self.study / "leases" / f"{number}.{attempt}.json").read_text())

    def status(self) -> dict:
        done = run(["--config", str(self.config), "--status", "--json"])
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def processes(self) -> list[str]:
        """Command lines of living processes that name the study's directory."""
        command_lines = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{name}/cmdline", "rb") as file:
                line = file.read().replace(b"\0", b" ").decode()
                if str(self.study) in line and int(name) != os.getpid():
                    command_lines.append(line)
        return command_lines

    def wait_until_nothing_is_left(self) -> None:
        wait_until(lambda: not self.processes())

    def close(self) -> None:
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.process.send_signal(signal.SIGTERM)
        for worker in self.workers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(60)
            worker.process.kill()
            worker.process.wait()


class Worker:
    """A `howdah tune` that runs."""

    def __init__(self, config: Path, log: Path, options: tuple[str, ...], limits: dict) -> None:
        self.log = log
        with open(log, "wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "howdah.cli", "tune", "--config", str(config), *options],
                cwd=ROOT, env=environment(limits), stdout=file, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def output(self) -> str:
        return self.log.read_text()

    def wait_for(self, text: str) -> None:
        def heard():
            assert text in self.output() or self.process.poll() is None, self.output()
            return text in self.output()

        wait_until(heard, LIMIT)

    def end(self) -> int:
        return self.process.wait(LIMIT)


def environment(limits: dict | None = None) -> dict[str, str]:
    path = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    return (
        os.environ
        | {"PATH": path, "PYTHONPATH": ROOT, "CUDA_VISIBLE_DEVICES": ""}
        | ({VARIABLE: json.dumps(limits)} if limits else {})
    )


def run(options: list[str]) -> subprocess.CompletedProcess:
    """`howdah tune` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "howdah.cli", "tune", *options], cwd=ROOT, env=environment(),
        capture_output=True, text=True, timeout=LIMIT,
    )  # fmt: skip
