"""A study whose trials are applications on YARN: lost, stopped, gone on with, pruned."""

from __future__ import annotations

import json
import os
import signal
import sys

import pytest

from howdah import storage
from howdah.hadoop.resourcemanager import OVER, ResourceManager
from howdah.training.checkpoint.manager import Checkpoints
from tests.runs.jobs.yarn_jobs import place_data
from tests.runs.studies import Studies, configuration
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.hadoop, pytest.mark.full]


@pytest.fixture
def study(healthy_cluster, hadoop_env, hdfs_dir, tiny_model_dir, tmp_path, monkeypatch):
    """One study on HDFS, whose storage is a file of this machine."""
    monkeypatch.setenv("HOWDAH_CACHE", str(tmp_path / "cache"))
    place_data(hdfs_dir, tiny_model_dir)
    directory = f"{hdfs_dir}/study"
    made = []

    def make(**settings) -> Studies:
        tune = {"on": "yarn", "storage": str(tmp_path / "journal"), **settings.pop("tune")}
        sections = configuration(
            tmp_path, dataset=f"{hdfs_dir}/set", base=f"{hdfs_dir}/model", tune=tune,
            **{"run.directory": directory, "data.max_length": 64, "job.workers": 1,
               "job.max_restarts": 0, "job.worker.memory": "1536 MiB",
               "yarn.driver.memory": "512 MiB",
               "yarn.python": sys.executable,
               "evaluation.every_steps": 20, **settings},
        )  # fmt: skip
        made.append(Studies(tmp_path, sections))
        return made[-1]

    yield make
    for one in made:
        one.close()
    for each in storage.list_dir(f"{directory}/trials"):
        assert over(application(each.path)), each.path


def run_json(trial: str) -> dict:
    return storage.read_json(f"{trial}/run.json")


def application(trial: str) -> str | None:
    """The id of a trial's application; None: its submission has not got one yet."""
    return storage.read_json(f"{trial}/job/application.json")["application"] or None


def over(app: str) -> bool:
    return ResourceManager().application(app)["state"] in OVER


def test_trials_are_applications_that_end_with_the_study(study, hdfs_dir):
    trial = f"{hdfs_dir}/study/trials/0"
    one = study(tune={"trials": 1}, **{"training.max_steps": 10**6, "training.logging_steps": 50})
    worker = one.start("--json")

    def saved() -> bool:
        assert worker.process.poll() is None, worker.output()
        return bool(Checkpoints(f"{trial}/checkpoints").list())

    wait_until(saved, 240)
    first, manager = application(trial), ResourceManager()
    manager.kill(first, "by the test")  # as an operator may
    worker.wait_for("trial 0: lost")
    worker.wait_for("attempt 2, from its newest checkpoint")
    wait_until(lambda: application(trial) not in (None, first), 120)
    wait_until(lambda: "resumed_at_step" in (*run_json(trial)["attempts"], {}, {})[1], 120)
    second = application(trial)
    assert run_json(trial)["attempts"][1]["resumed_at_step"] >= 4

    worker.process.send_signal(signal.SIGINT)
    assert worker.end() == 130, worker.output()
    assert over(second)
    assert run_json(trial)["status"] == "interrupted"

    again = one.start("--json")
    wait_until(lambda: application(trial) not in (None, first, second), 120)
    third = application(trial)
    wait_until(lambda: manager.application(third)["state"] == "RUNNING", 120)
    os.kill(again.process.pid, signal.SIGKILL)  # its command ends the application
    again.process.wait()
    wait_until(lambda: over(third), 120)


def test_an_application_that_is_behind_is_pruned(study, hdfs_dir):
    low, high = 1e-7, 1e-2
    space = {"training.learning_rate": {"choices": [low, high]}}
    one = study(
        tune={"space": space, "trials": 2, "pruner": "asha", "sampler": "random", "seed": 4},
        **{"training.max_steps": 400, "training.logging_steps": 50},
    )
    worker = one.start("--json")
    assert worker.end() == 0, worker.output()
    trials = one.status()["all"]
    assert [trial["state"] for trial in trials] == ["finished", "pruned"]
    pruned = f"{hdfs_dir}/study/trials/1"
    assert run_json(pruned)["status"] == "pruned"
    assert Checkpoints(f"{pruned}/checkpoints").list()
    best = json.loads(storage.read_text(f"{hdfs_dir}/study/best.json"))["best"]
    assert best["run"] == f"{hdfs_dir}/study/trials/0"
