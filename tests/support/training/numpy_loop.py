"""A training loop whose "model" is numpy: the steps of loop_torch and loop_tf without a framework.

The model's logits are its classifier's bias, the same for every row: the further the bias is from
zero, the worse the loss. `AMPLITUDES[step]` says how far.
"""

from __future__ import annotations

import io
import os
import time

import numpy as np
import pytest
from safetensors.numpy import load_file

from howdah.config.loader import from_dict
from howdah.config.model import Config
from howdah.process.devices import CPU
from howdah.process.env import RankEnv
from howdah.training.checkpoint.elastic_state import ElasticState
from howdah.training.checkpoint.read import model_weights
from howdah.training.checkpoint.snapshots import Snapshots
from howdah.training.comm.base import SoloComm
from howdah.training.hooks.conclusion import conclude
from howdah.training.hooks.evaluator import Evaluator
from howdah.training.hooks.resumable import ResumableState
from howdah.training.hooks.saver import CheckpointSaver
from howdah.training.preparation.job import prepare
from howdah.training.resuming import resume
from howdah.training.run.run import Run

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
        try:
            self._prepare(config)
        except (
            BaseException
        ):  # as a rank's process ends: its run is closed, its signals are given back
            self.run.close("failed")
            raise

    def _prepare(self, config: Config) -> None:
        self.job = prepare(config, self.comm, self.run, device=CPU)
        self.weights: dict[str, np.ndarray] = {}
        memory = ElasticState(every=50)
        self.state, tensors, evaluation_due = resume(self.job, self.comm, self.run, memory)
        self.job = self.job.at(self.state)
        self.restore(model_weights(tensors).items())
        self.resumable = ResumableState(
            self.state,
            memory,
            Snapshots(),
            evaluation_due=evaluation_due,
            weights=self.weights.items,
            moments=lambda: [("adam_m/classifier.bias", np.zeros(4, np.float32))],
        )
        self.saver = CheckpointSaver(self.job, self.comm, self.run, self.resumable)
        self.evaluator = Evaluator(
            self.job, self.comm, self.run, self.resumable, self.saver, forward=self.forward
        )
        self.due = self.evaluator.due
        self.run.begin(self.state, total_steps=self.job.schedule.steps)

    def forward(self, ids_BT, mask_BT):
        return np.tile(self.weights["classifier.bias"], (len(ids_BT), 1))

    def restore(self, weights) -> None:
        self.weights.update({name: array.copy() for name, array in weights})

    def step(self, *, stop: bool = False, abort: bool = False) -> bool:
        """Take a step as a loop does; with `abort` only up to where a collective could hang."""
        state, planner = self.state, self.job.planner
        with self.run.update_lock:
            state.advance(planner, int(state.plan["epoch"]), int(state.plan["step"]))
            self.weights["classifier.bias"][:] = [AMPLITUDES[state.step], 0.0, 0.0, 0.0]
            self.evaluator.schedule()
        if abort:
            return False
        last = state.step >= self.job.schedule.steps
        self.saver.check(give_up=not stop)
        if stop:
            self.saver.save_and_stop()
        evaluated = self.evaluator.evaluate() if self.evaluator.due else None
        if self.saver.due(evaluated, last=last):
            self.saver.save(evaluated)
        return last or state.stopped_early

    def conclude(self) -> None:
        conclude(
            self.job, self.comm, self.run, self.resumable, self.saver,
            served=self.forward, restore=self.restore,
        )  # fmt: skip

    def catch_up(self) -> None:
        """Do what a loop does before its first step when an evaluation is due."""
        self.saver.reopen()
        self.saver.replace(self.evaluator.evaluate())

    def go(self) -> Training:
        """To the end."""
        if self.evaluator.due:
            self.catch_up()
        over = self.state.step >= self.job.schedule.steps or self.state.stopped_early
        while not over:
            over = self.step()
        self.conclude()
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


@pytest.fixture(name="begin")
def fixture_begin(tmp_path, tiny_dataset, tiny_model_dir):
    return lambda name="run", **values: Training(
        str(tmp_path / name), tiny_dataset, tiny_model_dir, **values
    )


def settled_step(training: Training) -> None:
    """A step, and wait for the save that it began."""
    training.step()
    while training.run.checkpoints.busy:
        time.sleep(0.01)
