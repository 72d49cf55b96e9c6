"""Orderly stops and lost ranks while storage is slow: rank 0's checkpoint is waited for.

A save takes far longer than the launchers wait by themselves (mpirun 1 s, horovodrun 5 s). In
`make test-all` it takes a minute, and with all launchers in both frameworks.
"""

from __future__ import annotations

import json
import os
import signal

import pytest

from howdah.models.runs.metrics_log import read_metrics
from howdah.training.checkpoint.manager import Checkpoints
from tests.fixtures.dataset import build_dataset
from tests.fixtures.launched import ENDLESS, jobs, table
from tests.runs import fault_table
from tests.runs.jobs.local_jobs import LocalJob, kill
from tests.runs.training_runs import NO_DROPOUT, ROOT, SETTINGS
from tests.runs.training_runs import _nested as nested
from tests.support.waiting import wait_until

pytestmark = pytest.mark.mpi

SLOW = (
    18.0  # seconds of a save: mpirun leaves 1 by itself, horovodrun 5, a driver 12, a launcher 15
)
VERY_SLOW = 60.0
GRACE = 90.0
full = pytest.mark.full


def slow_worker(seconds: float, **more) -> dict[str, str]:
    path = os.pathsep.join([os.path.join(ROOT, "tests", "workers", "slow"), str(ROOT)])
    return {"PYTHONPATH": path, "SLOW": json.dumps({"save": seconds}), **more}


def begin(start, framework, kind, seconds=SLOW, grace=GRACE, **more):
    """A job whose first save is the one at its end."""
    more |= {"checkpoint.grace_seconds": grace, "checkpoint.every_steps": None,
             "checkpoint.every_minutes": None, "checkpoint.every_epoch": False,
             "evaluation.every_steps": 10**6}  # fmt: skip
    job = start(framework, kind, env=slow_worker(seconds), **more)
    wait_until(lambda: step_of(job.directory) >= 20 or job.process.poll() is not None, seconds=200)
    assert job.process.poll() is None, job.end() or job.stderr
    return job


def step_of(directory) -> int:
    try:
        return max((line["step"] for line in read_metrics(directory)), default=0)
    except FileNotFoundError:
        return 0


def check_saved(job) -> None:
    (newest,) = job.steps_saved()
    last = job.stderr.split("howdah: ")[-1]
    assert f"the newest checkpoint is step-{newest}" in last, job.stderr
    assert "cut short" not in last
    assert job.run_json()["status"] == "interrupted"
    assert max(line["step"] for line in read_metrics(job.directory)) == newest
    job.wait_until_nothing_is_left()


@full  # in every run for a job: test_howdah_kill_waits_for_a_slow_checkpoint
@pytest.mark.parametrize(("framework", "kind"), jobs(("torch", "horovod")))
def test_an_interrupt_waits_for_a_slow_checkpoint(start, framework, kind):
    job = begin(start, framework, kind)
    job.process.send_signal(signal.SIGINT)
    assert job.end() == 130, job.stderr
    check_saved(job)


@full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("kind", ["horovod"])
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_a_stop_waits_for_a_save_of_a_minute(start, framework, kind, number):
    job = begin(start, framework, kind, VERY_SLOW)
    job.process.send_signal(number)
    assert job.end() == {signal.SIGINT: 130, signal.SIGTERM: 143}[number], job.stderr
    check_saved(job)


@pytest.mark.parametrize(("framework", "kind"), jobs(("torch", "torch")))
def test_a_lost_rank_s_last_step_is_saved_however_slowly(start, framework, kind):
    job = begin(start, framework, kind, **{"job.max_restarts": 0})
    os.kill(job.rank(1), signal.SIGKILL)
    assert job.end() == 6, job.stderr
    job.wait_until_nothing_is_left()
    assert len(job.steps_saved()) == 1, job.stderr
    assert f"step-{job.steps_saved()[0]}" in job.stderr.split("howdah: ")[-1]


@pytest.mark.parametrize(("framework", "kind"), jobs(("torch", "horovod")))
def test_a_save_that_is_cut_short_is_said_to_be(start, framework, kind):
    job = begin(start, framework, kind, seconds=3600.0, grace=4.0)
    job.process.send_signal(signal.SIGTERM)
    assert job.end() == 143, job.stderr
    job.wait_until_nothing_is_left()
    last = job.stderr.split("howdah: ")[-1]
    assert "killed before they had saved; the save of step" in last, job.stderr
    assert "was cut short" in last
    assert "no checkpoint had been saved yet" in last
    assert job.steps_saved() == []


@pytest.mark.parametrize(("framework", "kind"), table(("torch", "horovodrun")))
def test_a_bare_launcher_s_last_line_says_what_is_whole(start, framework, kind):
    job = begin(start, framework, kind, seconds=3600.0, bare=True)
    os.kill(job.rank(1), signal.SIGKILL)
    assert job.end() != 0
    output = job.stdout + job.stderr + job.log_of_rank_0()
    assert (
        "the last one completed; until the save is complete, the newest checkpoint is none"
        in output
    )
    job.wait_until_nothing_is_left()


def test_a_stop_during_an_evaluation_saves_and_the_evaluation_is_done_later(start):
    """Here one kind alone: the loops call the same code."""
    slow = slow_worker(0.0, SLOW=json.dumps({"evaluate": 80.0}))
    few = {"evaluation.every_steps": 10, "checkpoint.every_steps": None,
           "checkpoint.every_epoch": False, "checkpoint.grace_seconds": 40}  # fmt: skip
    job = start("torch", "auto", env=slow, **few)
    wait_until(lambda: step_of(job.directory) >= 10 or job.process.poll() is not None, seconds=200)
    job.process.send_signal(signal.SIGINT)
    assert job.end() == 130, job.stderr
    assert job.steps_saved() == [10], job.stderr
    again = start("torch", "auto", **(few | {"training.max_steps": 12}))
    assert again.end() == 0, again.stderr
    evaluated = [line["step"] for line in read_metrics(job.directory) if "split" in line]
    assert 10 in evaluated


# ------------------------------------------------------------------------------- under agents
KINDS = [
    (framework, controller, elastic)
    for framework in ("torch", "tensorflow")
    for controller, elastic in (("gloo", False), ("mpi", False), ("gloo", True))
]


@pytest.fixture
def local(tmp_path, tiny_model_dir):
    made = []
    build_dataset(str(tmp_path / "data"), model_dir=tiny_model_dir, rows={"train": 240})

    def make(framework, controller, elastic, seconds=SLOW, grace=GRACE):
        values = SETTINGS | NO_DROPOUT | ENDLESS | {
            "data.dataset": str(tmp_path / "data"), "model.base": tiny_model_dir,
            "training.framework": framework, "training.num_train_epochs": 10**6,
            "checkpoint.every_steps": None, "checkpoint.every_epoch": False,
            "checkpoint.grace_seconds": grace, "job.workers": 2, "job.controller": controller,
            "evaluation.splits": [],
        }  # fmt: skip
        if elastic:
            values |= {"job.min_workers": 1, "job.max_workers": 2}
        env = slow_worker(seconds, CUDA_VISIBLE_DEVICES="")
        made.append(LocalJob(tmp_path / "job", light=False, env=env, **nested(values)))
        return made[-1]

    yield make
    for one in made:
        one.__exit__()


def saved(one) -> list[int]:
    return [
        checkpoint.step for checkpoint in Checkpoints(str(one.run_directory / "checkpoints")).list()
    ]


@full  # in every run: tests/jobs/clusters/test_clusters.py kills a job; slow saves above
@pytest.mark.parametrize("seconds", [SLOW, VERY_SLOW])
@pytest.mark.parametrize(("framework", "controller", "elastic"), KINDS)
def test_howdah_kill_waits_for_a_slow_checkpoint(local, framework, controller, elastic, seconds):
    one = local(framework, controller, elastic, seconds)
    one.trains(2, seconds=150)
    one.ask(type="stop", save=True)
    code, verdict, status = one.end(200)
    assert (code, verdict["status"]) == (143, "KILLED")
    assert saved(one) == [status["last_checkpoint"]["step"]]
    kind = f"{'elastic' if elastic else 'static'}, {controller}"
    fault_table.add_local(framework, f"{kind}: stopped, a save of {seconds:.0f} s", None, "saved")
    wait_until(lambda: not one.processes())


@full  # in every run for a launcher (above); the words: tests/jobs/driver/test_page.py
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_a_job_says_that_its_last_save_was_cut_short(local, framework):
    one = local(framework, "gloo", False, seconds=3600.0, grace=1.0)
    one.trains(2, seconds=150)
    kill(one.rank(1)["pid"])
    code, verdict, status = one.end(200)
    assert code == 6
    sentence = "was cut short; newest complete one: an earlier attempt's, if any"
    assert sentence in status["error"]["what"]
    assert sentence in verdict["diagnostics"]
    assert saved(one) == []
    wait_until(lambda: not one.processes())


@full  # in every run under a launcher: test_a_lost_rank_s_last_step_is_saved_however_slowly
@pytest.mark.parametrize("controller", ["gloo", "mpi"])
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_a_static_job_that_loses_a_rank_saves_however_slowly(local, framework, controller):
    one = local(framework, controller, elastic=False)
    one.trains(2, seconds=150)
    kill(one.rank(1)["pid"])
    code, _, status = one.end(200)
    assert code == 6
    assert "rank 1 on" in status["error"]["what"]
    assert len(saved(one)) == 1
    wait_until(lambda: not one.processes())
