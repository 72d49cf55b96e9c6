"""A job that makes its dataset first, in the Spark application that then trains on it."""

import contextlib
import json
import os

import psutil
import pytest

from tests.jobs.clusters.test_clusters import ENDLESS
from tests.runs.jobs.local_jobs import kill, parent
from tests.runs.jobs.submitted_jobs import SubmittedJob, gone
from tests.support.jobs.steps import check_state
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark]
full = pytest.mark.full


@pytest.fixture
def job(tmp_path, tiny_model_dir):
    """Submits jobs whose source is a CSV file of `rows`, and ends what they leave."""
    made = []

    def make(*, master, rows=120, light=True, steps=ENDLESS, training=(), data=(), **job_keys):
        lines = [f"text of row {n} and {n * 7919},{'ab'[n % 2]}" for n in range(rows)]
        source = tmp_path / "rows.csv"
        source.write_text("\n".join(["text,label", *lines, ""]))
        one = SubmittedJob(
            tmp_path, "spark", light=light, words=("--etl",),
            data={"source": str(source), "dataset": str(tmp_path / "dataset"), "max_length": 64,
                  "spark": {"master": master, "driver_memory": "512m"}, **dict(data)},
            model={"base": tiny_model_dir},
            training={"max_steps": steps, "num_train_epochs": 10**6, "global_batch_size": 12,
                      "framework": "torch", "logging_steps": 1, "precision": "fp32",
                      "threads_per_rank": 1, **dict(training)},
            evaluation={"splits": ["validation"]}, tracking={"tensorboard": False},
            job={"commit_every": 5, "worker": {"memory": "1 GiB"}, **job_keys},
        )  # fmt: skip
        made.append(one)
        return one

    yield make
    for one in made:
        one.__exit__()


def versions(one):
    return sorted((one.directory / "dataset").glob("v=*"))


def gateways(processes):
    """The JVMs that a Python driver has started: one for each Spark application."""
    machines = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # short-lived ones; a zombie is one, too
            if "pyspark-shell" in process.cmdline():
                machines.append(process)
    return machines


@pytest.mark.parametrize(
    "framework", [pytest.param(name, marks=full) for name in ("torch", "tensorflow")]
)
def test_one_application_makes_the_dataset_and_trains_on_it(job, framework):
    one = job(
        master="local-cluster[2,1,1024]",
        light=False,
        min_workers=1,
        training={"framework": framework},
    )
    assert one.json("status", one.application)["state"] == "RUNNING"
    status = one.trains(2, seconds=300)
    [version] = versions(one)
    assert f"committed {version} " in one.log.read_text()
    assert len(gateways(one.descendants())) == 1
    survivor = one.rank(0)["pid"]
    kill(one.rank(1)["pid"])
    one.trains(2, status["generation"], 200)
    assert one.rank(0)["pid"] == survivor
    assert one.json("kill", one.application, "--save")["state"] == "KILLED"
    record = json.loads((one.run_directory / "run.json").read_text())
    assert record["attempts"][-1]["dataset"] == str(version)
    # Again: the dataset is there, the run goes on from its checkpoint, and ends.
    words = ("--config", str(one.config), "--on", "spark", "--etl", "--wait", "--set")
    done = one.command("submit", *words, f"training.max_steps={one.file['step'] + 5}")
    assert done.returncode == 0, done.stderr
    assert f"unchanged: {version}" in done.stderr
    assert json.loads((one.run_directory / "run.json").read_text())["status"] == "finished"


@pytest.mark.full
def test_a_killed_rank_is_replaced_in_the_application_that_has_made_the_dataset(job):
    one = job(master="local[2]", min_workers=1)
    status, survivor = one.trains(2, seconds=200), one.rank(0)["pid"]
    assert len(versions(one)) == 1
    kill(one.rank(1)["pid"])
    status = one.trains(2, status["generation"])
    assert (one.rank(0)["pid"], status["restarts"]) == (survivor, 1)
    started = one.descendants()
    assert one.json("kill", one.application, "--save")["state"] == "KILLED"
    check_state(one)
    gone(started)


@full
def test_an_executor_that_is_killed_is_replaced_though_spark_may_try_tasks_again(job):
    one = job(master="local-cluster[2,1,1024]", min_workers=1)
    status = one.trains(2, seconds=200)
    victim = one.rank(1)
    kill(parent(parent(parent(parent(victim["pid"])))))  # agent, pyspark's worker, daemon, JVM
    one.trains(2, status["generation"])
    wait_until(lambda: not os.path.exists(f"/proc/{victim['pid']}"))
    assert one.rank(1)["container"] != victim["container"]
    check_state(one)


@full
def test_a_job_is_killed_while_its_dataset_is_made(job):
    one = job(master="local[2]", rows=40_000)
    one.wait(lambda s: s["state"] == "etl" and len(s["events"]) > 1, "the ETL's second line")
    started = one.descendants()
    assert "still making its dataset" in one.command("scale", one.application, "3").stderr
    assert one.json("kill", one.application, "--save")["state"] == "KILLED"
    gone(started)
    left = [path for path in (one.directory / "dataset").rglob("*") if path.is_file()]
    assert not left


@full
def test_an_etl_that_fails_is_the_job_s_own_error(job):
    data = {"quality": {"max_reject_fraction": 0.0}, "labels": ["a"]}  # b's rows are rejected
    one = job(master="local[2]", data=data)
    one.wait(lambda s: s["state"] == "failed", "the job's end", 120)
    wait_until(lambda: one.driver.poll() is not None)
    done = one.command("status", one.application, "--json")
    shown = json.loads(done.stdout)
    assert (shown["state"], shown["job"]["exit_code"]) == ("FAILED", 3)
    assert versions(one) == []
