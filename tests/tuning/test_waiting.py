"""A worker that takes a trial over whose earlier training still saves; real processes and locks."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from howdah.config import loader
from howdah.errors import Interrupted, TrainingError
from howdah.training.run.local_dir import RunLock
from howdah.tuning import study as studies
from howdah.tuning.ways import Way
from howdah.tuning.worker import Worker
from tests.runs.studies import configuration
from tests.support.waiting import wait_until

TRAINING = """
import json, os, sys, yaml
directory = yaml.safe_load(open(sys.argv[1]))["run"]["directory"]
with open(os.path.join(directory, "metrics.jsonl"), "a") as file:
    for step in (1, 2):
        line = {"attempt": 1, "step": step, "split": "validation", "metrics": {"loss": 1.0}}
        print(json.dumps(line), file=file)
with open(os.path.join(directory, "run.json"), "w") as file:
    json.dump({"status": "finished", "metrics": {"validation": {"loss": 1.0}}}, file)
"""


class Short(Way):
    """A trial's command that writes what a training does, and ends."""

    ending_seconds = 0.0

    def command(self, config: str) -> list[str]:
        return [sys.executable, "-c", TRAINING, config]


class Nothing(Way):
    """A command that ends with exit code 0 and has trained nothing."""

    ending_seconds = 0.0

    def command(self, config: str) -> list[str]:
        return [sys.executable, "-c", "pass"]


@pytest.fixture
def worker(tmp_path, tiny_dataset, tiny_model_dir):
    """Makes (a worker, the study, what it says)."""

    def go(grace: float, *, way: Way | None = None, **tune):
        sections = configuration(
            tmp_path, dataset=tiny_dataset.path, base=tiny_model_dir, tune=tune,
            **{"checkpoint.grace_seconds": grace},
        )  # fmt: skip
        config, log = loader.from_dict(sections), []
        made = studies.create(config, {tiny_dataset.path: tiny_dataset.path})
        return Worker(config, made, way=way or Short(), say=log.append), made, log

    return go


@contextlib.contextmanager
def saving(study: Path, number: int):
    """Hold the lock of a trial's run directory, as a training does that a killed worker has left
    and that still saves."""
    directory = study / "trials" / str(number)
    directory.mkdir(parents=True)
    lock = RunLock(str(directory), ".lock", str(directory))
    lock.take()
    try:
        yield lock
    finally:
        lock.release()


def states(study) -> list[str]:
    return [trial.state.name for trial in study.get_trials()]


@contextlib.contextmanager
def meanwhile(act):
    """Run `act` in a thread, while this one works; raises its error."""
    errors, over = [], threading.Event()

    def run():
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)
            if not over.is_set():
                os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        if errors:
            raise errors[0]


def test_other_trials_go_on_while_an_earlier_training_saves(worker, tmp_path):
    one, study, log = worker(25.0, parallel=2)
    with saving(tmp_path / "study", 0) as lock:

        def act():
            wait_until(lambda: states(study)[1] == "COMPLETE", 15)
            assert states(study)[0] == "RUNNING"
            assert "trial 0: waiting for its earlier training to save: " in "\n".join(log)
            lock.release()

        with meanwhile(act):
            one.run()
    assert states(study) == ["COMPLETE", "COMPLETE"]


@pytest.mark.parametrize("signals", [1, 2])
def test_a_stop_is_answered_while_an_earlier_training_saves(worker, tmp_path, signals):
    one, study, log = worker(25.0, trials=1)
    with saving(tmp_path / "study", 0) as lock:

        def act():
            wait_until(
                lambda: any("waiting for its earlier training to save" in line for line in log), 15
            )
            for _ in range(signals):
                os.kill(os.getpid(), signal.SIGINT)

        with meanwhile(act), pytest.raises(Interrupted):
            one.run()
        assert lock.fileno()  # the earlier training was left alone
    assert states(study) == ["RUNNING"]
    lease = (tmp_path / "study" / "leases" / "0.1.json").read_text()
    assert '"state": "released"' in lease
    assert not (tmp_path / "study" / "trials" / "0" / "run.json").exists()


def test_a_trial_that_is_still_trained_after_its_time_leaves_its_place_to_others(worker, tmp_path):
    """Its worker is suspended: with one place, the others are trained before it is tried again."""
    one, study, log = worker(0.5, trials=3)
    with saving(tmp_path / "study", 0) as lock:

        def act():
            wait_until(lambda: states(study)[1:] == ["COMPLETE", "COMPLETE"], 15)
            assert states(study)[0] == "RUNNING"
            lock.release()

        with meanwhile(act):
            one.run()
    assert any(line.startswith("trial 0: its earlier training still runs") for line in log)
    assert states(study) == ["COMPLETE"] * 3


def test_an_exit_code_alone_is_no_finished_trial(worker):
    one, made, _ = worker(1.0, trials=1, way=Nothing())
    with pytest.raises(TrainingError, match="does not say finished"):
        one.run()
    assert [str(trial.state) for trial in made.trials if trial.value is not None] == []
