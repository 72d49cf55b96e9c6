"""Driver, agents and real training processes on this machine: what light workers cannot show."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from howdah.models.runs.metrics_log import read_metrics
from howdah.models.runs.run_json import RunFile
from tests.fixtures.dataset import build_dataset
from tests.runs import fault_table
from tests.runs.jobs.local_jobs import LocalJob, kill
from tests.runs.training_runs import NO_DROPOUT, NOISE, SETTINGS, _nested
from tests.support.jobs.strangers import Strangers, resident_bytes
from tests.support.waiting import wait_until

pytestmark = pytest.mark.mpi

FRAMEWORKS = ["torch", pytest.param("tensorflow", marks=pytest.mark.full)]


@pytest.fixture
def job(tmp_path, tiny_model_dir):
    """Makes jobs, and ends them."""
    made = []
    rows = {"train": 240, "validation": 24}
    build_dataset(str(tmp_path / "data"), model_dir=tiny_model_dir, rows=rows)

    def make(framework, *, steps, job=None, env=None, **settings):
        values = SETTINGS | NO_DROPOUT | {
            "data.dataset": str(tmp_path / "data"), "model.base": tiny_model_dir,
            "training.framework": framework, "training.max_steps": steps,
            "training.num_train_epochs": 10**6, "checkpoint.every_steps": 100,
        } | settings  # fmt: skip
        one = LocalJob(
            tmp_path / "job", light=False, env=env or {"CUDA_VISIBLE_DEVICES": ""},
            job={"commit_every": 5, **(job or {})},
            **_nested(values),
        )  # fmt: skip
        made.append(one)
        return one

    yield make
    for one in made:
        one.__exit__()


def check_metrics(one):
    """Every step is there once: none lost, none doubled."""
    steps = [line["step"] for line in read_metrics(str(one.run_directory)) if "split" not in line]
    assert steps == list(range(1, len(steps) + 1))
    return steps


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_static_job(job, framework):
    one = job(framework, steps=12)
    code, verdict, status = one.end(200)
    assert (code, verdict["status"], status["state"]) == (0, "SUCCEEDED", "finished")
    assert (status["step"], status["total_steps"]) == (12, 12)
    values = RunFile(str(one.run_directory)).values
    assert (values["status"], values["world_size"]) == ("finished", 2)
    assert len(check_metrics(one)) == 12
    assert os.path.isdir(one.run_directory / "export")
    assert any("step" in line for _, line in status["lines"])
    logs = list(one.job.glob("containers/*/**/training.1.log"))
    assert len(logs) == 2
    assert [found[0] for log in logs if (found := NOISE.search(log.read_text()))] == []


def test_a_static_job_over_torch_distributed_ends_with_a_lost_rank(job):
    """Its ranks meet through the job's rendezvous; no Horovod is imported."""
    one = job("torch", steps=10**6, **{"training.comm": "torch"})
    one.trains(2, seconds=120)
    maps = [Path(f"/proc/{rank['pid']}/maps").read_text() for rank in one.status["ranks"]]
    assert not [text for text in maps if "horovod" in text]
    kill(one.rank(1)["pid"])
    code, verdict, status = one.end(120)
    assert (code, verdict["status"], status["state"]) == (6, "FAILED", "failed")
    assert "rank 1" in verdict["diagnostics"]
    check_metrics(one)


def test_a_job_over_torch_distributed_divides_a_model(job):
    one = job("torch", steps=12, **{"training.comm": "torch", "training.parallel.shard": "full"})
    code, verdict, status = one.end(200)
    assert (code, verdict["status"], status["step"]) == (0, "SUCCEEDED", 12)
    values = RunFile(str(one.run_directory)).values
    assert "torch.distributed" in json.dumps(values)
    assert len(check_metrics(one)) == 12
    # The job's page has the evaluations, those during training and those of the exported model.
    newest = status["evaluations"][-1]
    assert newest["metrics"]["accuracy"] == values["metrics"][newest["split"]]["accuracy"]
    assert {one["split"] for one in status["evaluations"]} >= set(values["metrics"])
    assert status["started"] < status["last_checkpoint"]["time"] <= status["updated"]


def test_an_elastic_job_over_torch_distributed_survives_and_changes_its_size(job):
    one = job(
        "torch", steps=10**6, job={"min_workers": 1, "max_workers": 3, "hang_seconds": 10},
        **{"training.comm": "torch"},
    )  # fmt: skip
    status = one.trains(2, seconds=120)
    survivor = one.rank(0)["pid"]
    began = time.monotonic()
    kill(one.rank(1)["pid"])
    status = one.trains(1, status["generation"], 120)
    seconds = time.monotonic() - began
    fault_table.add_local("torch", "torch.distributed: rank 1 killed", seconds, "memory")
    status = one.trains(2, status["generation"] - 1, 120)
    assert one.rank(0)["pid"] == survivor
    one.ask(type="scale", workers=3)
    status = one.trains(3, status["generation"], 120)
    began = time.monotonic()
    kill(one.rank(2)["pid"], signal.SIGSTOP)
    status = one.trains(3, status["generation"], 120)
    seconds = time.monotonic() - began
    fault_table.add_local("torch", "torch.distributed: rank stopped (SIGSTOP)", seconds, "memory")
    assert one.rank(0)["pid"] == survivor
    assert any("the state of step" in event for event in one.events())
    one.ask(type="stop", save=True)
    code, verdict, status = one.end(120)
    assert (code, verdict["status"]) == (143, "KILLED")
    assert len(check_metrics(one)) == status["last_checkpoint"]["step"]


@pytest.mark.full  # in every run with light workers: test_strangers.py
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_job_trains_while_strangers_hold_all_connections_that_they_get(job, framework):
    one = job(framework, steps=60, job={"min_workers": 2, "max_workers": 2, "max_restarts": 1})
    place = one.job / "driver.json"
    wait_until(place.exists, 120)
    with Strangers(int(json.loads(place.read_text())["port"])):  # before its agents are there
        one.trains(2, seconds=300)
        before = resident_bytes(one.driver.pid)
        most = before

        def over(status):
            nonlocal most
            most = max(most, resident_bytes(one.driver.pid))
            return (status["step"] or 0) >= 50

        one.wait(over, "step 50", 300)
    code, verdict, status = one.end(200)
    assert (code, verdict["status"], status["restarts"]) == (0, "SUCCEEDED", 0)
    assert not [event for event in one.events() if " was lost" in event]
    assert status["generation"] == 1
    assert len(check_metrics(one)) == 60
    assert most - before < 30 * 2**20


@pytest.mark.parametrize("framework", ["torch", pytest.param("tensorflow", marks=pytest.mark.full)])
def test_a_framework_that_does_not_see_its_gpu_never_trains(job, framework):
    # Simulated: devices that the agent takes for GPUs, and a framework's CPU build.
    one = job(
        framework, steps=12, env={"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2"},
        job={"worker": {"gpus": 1, "memory": "2 GiB"}},
    )  # fmt: skip
    code, verdict, status = one.end(200)
    assert (code, verdict["status"], status["step"]) == (5, "FAILED", None)
    assert f"this worker has a GPU, and {framework} sees none" in verdict["diagnostics"]
    assert "on a (" in verdict["diagnostics"]  # the node
    assert "CUDA_VISIBLE_DEVICES='GPU-" in verdict["diagnostics"]


# The quick ones: tests/training/elastic/test_elastic.py, tests/yarn/test_faults.py.
@pytest.mark.full
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_an_elastic_job_survives_and_changes_its_size(job, framework):
    one = job(framework, steps=10**6, job={"min_workers": 1, "max_workers": 3, "hang_seconds": 10})
    status = one.trains(2, seconds=120)
    survivor = one.rank(1)["pid"]
    kill(one.rank(0)["pid"])
    status = one.trains(2, status["generation"], 120)
    assert one.rank(0)["pid"] == survivor
    one.ask(type="scale", workers=3)
    status = one.trains(3, status["generation"], 120)
    kill(one.rank(2)["pid"], signal.SIGSTOP)
    status = one.trains(3, status["generation"], 120)
    assert one.rank(0)["pid"] == survivor
    assert any("the state of step" in event for event in one.events())
    one.ask(type="stop", save=True)
    code, verdict, status = one.end(120)
    assert (code, verdict["status"]) == (143, "KILLED")
    assert len(check_metrics(one)) == status["last_checkpoint"]["step"]


@pytest.mark.full  # tests/jobs/test_local.py has the quick one
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_a_driver_that_is_stopped_for_20_seconds_loses_no_worker(job, framework):
    """As a machine that is moved, or a switch that fails over: training goes on meanwhile."""
    seconds = 20.0
    one = job(framework, steps=10**6, job={"min_workers": 1, "max_workers": 3})
    before = one.trains(2, seconds=120)
    pids = [rank["pid"] for rank in before["ranks"]]
    one.driver.send_signal(signal.SIGSTOP)
    until = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() > until)
    one.driver.send_signal(signal.SIGCONT)
    after = one.wait(lambda s: s["step"] and s["step"] > before["step"] + 50, "more steps", 120)
    assert [rank["pid"] for rank in after["ranks"]] == pids
    assert (after["generation"], after["restarts"]) == (before["generation"], 0)
    one.ask(type="stop", save=True)
    assert one.end(120)[0] == 143
    check_metrics(one)
    fault_table.add_local(framework, f"driver stopped for {seconds:.0f} s", None, "undisturbed")
