"""Short real trainings in processes of their own, for the tests of loops."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass

import numpy as np

from howdah import storage
from howdah.models.runs.metrics_log import read_metrics
from howdah.training.checkpoint.read import load
from tests import ROOT as REPOSITORY
from tests.support.small_limits import divided

ROOT = str(REPOSITORY)
LAUNCH_SECONDS = 240  # detects a hang
NOISE = re.compile(r".*(cuda|cuInit|cuDNN|cuBLAS|cuFFT|absl|oneDNN|\b[IWE]0000 ).*", re.I)
"""What libraries write to a rank's log that is no user's concern where there is no GPU."""

# Few rows in a global batch and few tokens in a micro-batch: every step accumulates.
SETTINGS = {
    "data.max_length": 64,
    "training.global_batch_size": 12,
    "training.per_device_max_tokens": 128,
    "training.max_steps": 10,
    "training.learning_rate": 0.002,
    "training.precision": "fp32",
    "training.threads_per_rank": 1,
    "training.logging_steps": 1,
    "checkpoint.every_steps": 4,
    "checkpoint.keep": 5,
    "evaluation.splits": ["validation"],
    "tracking.tensorboard": False,
}
NO_DROPOUT = {"model.dropout": 0.0}

# For runs that must learn something: steps of 32 rows in few micro-batches.
LEARNING = {
    **NO_DROPOUT,
    "training.global_batch_size": 32,
    "training.per_device_max_tokens": 1024,
    "evaluation.splits": ["validation", "test"],
}


@dataclass(frozen=True)
class Finished:
    """What a training left."""

    directory: str
    returncode: int
    output: str
    """stdout and stderr together."""

    def losses(self) -> list[float]:
        """The loss of each step, in order."""
        lines = read_metrics(self.directory)
        return [line["loss"] for line in lines if "split" not in line]

    def run_json(self) -> dict:
        return storage.read_json(os.path.join(self.directory, "run.json"))

    def log(self) -> str:
        """What rank 0 logged."""
        return storage.read_text(os.path.join(self.directory, "logs", "rank.0"))

    def checkpoint(self, step: int) -> str:
        return os.path.join(self.directory, "checkpoints", f"step-{step}")

    def tensors(self, step: int) -> dict[str, np.ndarray]:
        return load(self.checkpoint(step)).tensors


def howdah(*words: str, stdin: str = "") -> str:
    """Output of a `howdah` command that must end well, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "howdah.cli", *words], cwd=ROOT, text=True, capture_output=True,
        env=os.environ | {"PYTHONPATH": ROOT, "CUDA_VISIBLE_DEVICES": ""}, input=stdin, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def launcher(kind: str, np_: int) -> list[str]:
    """The command in front of `python -m howdah.training`."""
    if np_ == 1:
        return []
    if kind == "mpirun":
        return ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
                "-np", str(np_)]  # fmt: skip
    if kind == "torchrun":
        return ["torchrun", "--nproc-per-node", str(np_), "--no-python"]
    return ["horovodrun", "--gloo", "-np", str(np_), "-H", f"localhost:{np_}"]


def train(
    directory: str,
    *,
    dataset: str,
    base: str,
    framework: str = "torch",
    np_: int = 1,
    kind: str = "mpirun",
    settings: dict | None = None,
    env: dict[str, str] | None = None,
    check: bool = True,
    module: str = "howdah.training",
) -> Finished:
    """Train in `directory` by the rank's module; fails unless it ends well or `check` is off."""
    os.makedirs(directory, exist_ok=True)
    values = SETTINGS | {
        "run.directory": directory,
        "data.dataset": dataset,
        "model.base": base,
        "training.framework": framework,
    }  # fmt: skip
    config = os.path.join(directory, "given.yaml")
    with open(config, "w", encoding="utf-8") as file:
        keys, limits = divided(values | (settings or {}))
        json.dump(_nested(keys), file)  # JSON is YAML
    path = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    done = subprocess.run(
        [*launcher(kind, np_), sys.executable, "-m", module, "--config", config],
        cwd=ROOT,
        env=os.environ
        | {"PATH": path, "PYTHONPATH": ROOT, "CUDA_VISIBLE_DEVICES": ""}
        | limits
        | (env or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LAUNCH_SECONDS,
    )
    finished = Finished(directory, done.returncode, done.stdout)
    if check and done.returncode != 0:
        raise RuntimeError(f"training ended with {done.returncode}:\n{done.stdout}")
    return finished


def _nested(values: dict) -> dict:
    result: dict = {}
    for key, value in values.items():
        *sections, last = key.split(".")
        at = result
        for section in sections:
            at = at.setdefault(section, {})
        at[last] = value
    return result
