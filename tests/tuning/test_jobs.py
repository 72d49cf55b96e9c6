"""Studies whose trials are jobs of `howdah submit`: on this machine, on Spark, on Ray (YARN:
test_jobs_yarn.py). `make test` has what a place refuses alone."""

from __future__ import annotations

import json
import os
import signal
import uuid

import pytest

from howdah import storage
from howdah.core.processes import marked
from howdah.jobs import record
from howdah.jobs.status.status_file import status_path
from tests.runs.studies import Studies, configuration, run
from tests.support.waiting import wait_until

MARK = "HOWDAH_STUDY_TEST"
full = pytest.mark.full
CLUSTERS = [
    "local",
    pytest.param("ray", marks=[full, pytest.mark.mpi]),
    pytest.param("spark", marks=[full, pytest.mark.spark]),
]
LONG = {"training.max_steps": 100_000, "training.logging_steps": 50, "evaluation.every_steps": 20}


class JobStudies(Studies):
    """Whose processes, drivers and a cluster's own among them, are known by a mark."""

    token = ""

    def job(self, number: int) -> record.Record | None:
        return record.read(str(self.trial(number)))

    def living(self) -> list[int]:
        return marked(MARK, self.token)

    def wait_until_nothing_is_left(self) -> None:
        wait_until(lambda: not self.living(), 60)

    def status_of_job(self, number: int) -> dict:
        return storage.read_json(status_path(str(self.trial(number))))

    def rank(self, number: int) -> int:
        """Process of the only rank of a trial's job."""

        def pid() -> int | None:
            return next((one["pid"] for one in self.status_of_job(number)["ranks"]), None)

        return wait_until(pid)

    def close(self) -> None:
        super().close()
        for pid in self.living():
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def studies(tmp_path, tiny_dataset, tiny_model_dir, monkeypatch):
    """Makes a study of jobs; what is left of it is killed after the test."""
    made: list[JobStudies] = []
    token = uuid.uuid4().hex
    monkeypatch.setenv("HOWDAH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(MARK, token)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)

    def go(on: str, *, tune=None, **settings) -> JobStudies:
        sections = configuration(
            tmp_path, dataset=tiny_dataset.path, base=tiny_model_dir,
            tune={"on": on, **(tune or {})},
            **{"job.workers": 1, "job.max_restarts": 0, "data.spark.master": "local[1]",
               "data.spark.driver_memory": "512m", **settings},
        )  # fmt: skip
        made.append(JobStudies(tmp_path, sections))
        made[-1].token = token
        return made[-1]

    yield go
    for each in made:
        each.close()


@pytest.mark.full
@pytest.mark.parametrize("on", CLUSTERS)
def test_a_lost_trial_is_tried_again_and_the_study_ends_with_its_jobs(studies, on):
    """The only rank of the first trial is killed: its job has one attempt and fails."""
    study = studies(
        on, tune={"trials": 1}, **LONG | {"training.max_steps": 24, "evaluation.every_steps": 8}
    )
    worker = study.start("--json")
    study.wait_for_checkpoint(0)
    first = study.job(0)
    os.kill(study.rank(0), signal.SIGKILL)
    assert worker.end() == 0, worker.output()
    assert "trial 0: lost" in worker.output() and "attempt 2, from its newest" in worker.output()
    assert (study.job(0).on, study.job(0).driver_lives) == (on, False)
    assert study.job(0).application != first.application
    made = study.run_json(0)
    assert (made["status"], made["steps"]) == ("finished", 24)
    assert made["attempts"][-1]["resumed_at_step"] >= 4
    best = json.loads((study.study / "best.json").read_text())["best"]
    assert best["value"] == made["metrics"]["validation"]["loss"]
    (trial,) = study.status()["all"]
    assert sorted(trial["evaluations"], key=int) == ["1", "2", "3"]
    assert [study.lease(0, attempt)["state"] for attempt in (1, 2)] == ["lost", "released"]
    study.wait_until_nothing_is_left()


@full
@pytest.mark.parametrize("on", CLUSTERS)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stop_saves_and_ends_the_jobs_and_the_same_command_goes_on(studies, on, number, code):
    study = studies(on, tune={"trials": 1}, **LONG)
    worker = study.start("--json")
    study.wait_for_checkpoint(0)
    worker.process.send_signal(number)
    assert worker.end() == code, worker.output()
    assert not study.job(0).driver_lives
    study.wait_until_nothing_is_left()
    assert study.run_json(0)["status"] == "interrupted"
    assert study.lease(0, 1)["state"] == "released"
    (saved,) = study.steps_saved(0)[:1]
    again = study.start()
    wait_until(lambda: "resumed_at_step" in (*study.run_json(0)["attempts"], {}, {})[1], 240)
    assert study.run_json(0)["attempts"][1]["resumed_at_step"] == saved
    again.process.send_signal(number)
    again.end()


@full
@pytest.mark.parametrize("on", CLUSTERS)
def test_a_second_signal_kills_the_jobs_without_saving(studies, on):
    study = studies(on, tune={"trials": 1}, **LONG | {"checkpoint.grace_seconds": 600})
    worker = study.start()
    study.wait_for_checkpoint(0)
    os.kill(study.rank(0), signal.SIGSTOP)  # it can save nothing
    worker.process.send_signal(signal.SIGINT)
    wait_until(lambda: study.status_of_job(0)["state"] == "stopping")
    worker.process.send_signal(signal.SIGINT)
    assert worker.end() == 130, worker.output()
    study.wait_until_nothing_is_left()


@full
@pytest.mark.parametrize("on", CLUSTERS)
def test_a_killed_workers_job_is_ended_and_another_worker_goes_on_with_the_trial(studies, on):
    # It must still train when the second worker has started.
    study = studies(on, tune={"trials": 1}, **LONG | {"training.max_steps": 1500})
    first = study.start()
    study.wait_for_checkpoint(0)
    job = study.job(0)
    second = study.start("--join")
    second.wait_for("study tiny")
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.wait()
    assert second.end() == 0, second.output()
    assert not job.driver_lives and study.job(0).application != job.application
    assert "attempt 2, from its newest checkpoint" in second.output()
    assert "lost" not in second.output()
    assert study.run_json(0)["attempts"][1]["resumed_at_step"] >= 4
    study.wait_until_nothing_is_left()


@full
@pytest.mark.parametrize("on", CLUSTERS)
def test_a_trial_whose_driver_was_killed_is_tried_again(studies, on):
    study = studies(on, tune={"trials": 1}, **LONG | {"training.max_steps": 300})
    worker = study.start()
    study.wait_for_checkpoint(0)
    os.kill(study.job(0).pid, signal.SIGKILL)
    assert worker.end() == 0, worker.output()
    assert "trial 0: lost: the job ended as LOST" in worker.output()
    assert study.run_json(0)["attempts"][1]["resumed_at_step"] >= 4
    study.wait_until_nothing_is_left()


@full
@pytest.mark.parametrize("on", CLUSTERS)
def test_a_job_that_is_behind_is_pruned_in_order_and_keeps_its_checkpoint(studies, on):
    low, high = 1e-7, 1e-2
    space = {"training.learning_rate": {"choices": [low, high]}}
    study = studies(
        on,
        tune={"space": space, "trials": 2, "pruner": "asha", "sampler": "random", "seed": 4},
        **LONG | {"training.max_steps": 300},
    )
    worker = study.start("--json")
    assert worker.end() == 0, worker.output()
    trials = study.status()["all"]
    assert [one["params"]["training.learning_rate"] for one in trials] == [low, high]
    assert [one["state"] for one in trials] == ["finished", "pruned"]
    assert study.run_json(1)["status"] == "pruned"
    assert study.steps_saved(1) and study.steps_saved(1)[0] < 300
    study.wait_until_nothing_is_left()


@full
def test_a_job_whose_command_was_killed_as_well_is_attached_to(studies):
    """Worker and command die at once, as with their machine; the job goes on meanwhile."""
    study = studies("local", tune={"trials": 1}, **LONG | {"training.max_steps": 300})
    first = study.start()
    study.wait_for_checkpoint(0)
    job = study.job(0)
    command = next(
        pid for pid in study.living()
        if b"submit" in open(f"/proc/{pid}/cmdline", "rb").read().split(b"\0")  # noqa: SIM115
    )  # fmt: skip
    os.kill(first.process.pid, signal.SIGSTOP)  # it must not end the job that its command has left
    os.kill(command, signal.SIGKILL)
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.wait()
    second = study.start("--join")
    assert second.end() == 0, second.output()
    assert study.job(0).application == job.application
    assert len(study.run_json(0)["attempts"]) == 1
    study.wait_until_nothing_is_left()


def test_what_a_place_refuses_ends_the_study_with_its_own_error(studies):
    study = studies("spark", **{"data.spark.master": "yarn"})
    done = run(["--config", str(study.config), "--json"])
    assert done.returncode == 2, done.stderr
    assert "one that every node sees" in done.stdout and "Traceback" not in done.stderr
    done = run(["--config", str(study.config), "--set", "tune.on=local", "--np", "2", "--json"])
    assert done.returncode == 2 and "job.workers" in json.loads(done.stdout)["what"]
    done = run(["--config", str(study.config), "--set", "tune.on=slurm", "--json"])
    assert done.returncode == 2 and "tune.on" in done.stdout
