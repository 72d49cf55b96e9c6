"""Airflow and YARN, both real, while parts of them are killed: one application a task, none left.

Whatever dies in Airflow, training on YARN does not notice; what a user ends is ended.
"""

import contextlib
import json
import os
import re
import signal
import time
import urllib.request

import pytest

from howdah import storage
from howdah.hadoop.resourcemanager import OVER
from tests.runs.jobs.airflow_jobs import ROWS, TASK, TrainingTasks
from tests.runs.jobs.yarn_jobs import place_data
from tests.support.hadoop.planted import MARK
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.airflow, pytest.mark.hadoop]

LONG = {"training": {"max_steps": 100_000}}  # for what is ended before its end
KILL_SECONDS = 30.0


@pytest.fixture(scope="module")
def home(cluster, tiny_model_dir):
    """A place on HDFS with the data."""
    url = f"{cluster.hdfs_url}/test/airflow"
    place_data(url, tiny_model_dir, ROWS)
    yield url
    storage.remove(url, recursive=True)


@pytest.fixture(scope="module")
def made(airflow_standalone, cluster, home):
    """The DAGs and the Connection."""
    return TrainingTasks(airflow_standalone, cluster, home)


@pytest.fixture
def tasks(made, healthy_cluster, monkeypatch):
    """The same with everything well; applications that a test leaves behind are ended."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(healthy_cluster.conf_dir))
    for component in ("scheduler", "triggerer"):
        if made.airflow.components.problem(names=[component]):
            made.airflow.components.restart(component)
    yield made
    healthy_cluster.end_applications()


def finished_as_one(task, result, *, tries=1):
    """One application did each step once."""
    steps = task.config["training"]["max_steps"]
    assert [a["id"] for a in task.applications()] == [result["application"]], task.story()
    assert task.steps() == list(range(1, steps + 1))
    assert task.task["try_number"] == tries


def rank_0s_lines(log):
    return re.findall(r"^\[rank 0\] (.*)$", log, re.M)


# --------------------------------------------------------------------------- from start to end
@pytest.mark.full  # the next test defers, follows and ends an application in every run
def test_a_training_outlives_its_triggerer_and_is_followed_by_its_log_and_links(tasks):
    task = tasks.start("followed")
    application = task.deferred()
    task.trains()
    task.wait(lambda: rank_0s_lines(task.log()), "lines of rank 0 in the task's log")
    # The values are the Connection's.
    assert any("-m\0howdah.training\0" in words for words in task.having_secrets())
    links = task.airflow.links(task.dag, task.run, TASK)
    urls = tasks.manager.urls[0]
    assert links["YARN application"] == f"{urls}/cluster/app/{application}"
    assert links["Training job"] == f"{urls}/proxy/{application}/pages/job/"
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
        links["Training job"], timeout=30
    ) as page:
        assert b"<title>followed:" in page.read()
    assert application.removeprefix("application_") in links["Logs on YARN"]
    assert "/explorer.html#" in links["Report"]

    task.airflow.components.kill("triggerer", group=True)
    task.airflow.components.restart("triggerer")
    result = task.ends()
    finished_as_one(task, result)
    assert 0 <= result["metrics"]["validation"]["accuracy"] <= 1
    assert result["run_directory"] == task.directory
    log = task.log()
    assert f"watching {application} again" in log
    lines = [line for line in rank_0s_lines(log) if re.match(r"step \d+", line)]
    assert lines
    assert len(set(lines)) == len(lines), "logged twice"
    assert log.count(f"{application} is RUNNING") == 1
    assert task.airflow.links(task.dag, task.run, TASK) == links
    assert "Traceback" not in log
    shown = json.dumps([result, task.task])  # XCom; rendered fields are the task's
    assert task.task["rendered_fields"] and MARK not in shown + log


def test_a_deferred_task_that_is_marked_failed_ends_its_application(tasks):
    task = tasks.start("marked", **LONG)
    application = task.deferred()
    task.trains()
    marked = time.monotonic()
    task.airflow.mark(task.dag, task.run, TASK, "failed")
    report = task.over(application, KILL_SECONDS)
    assert report["state"] == "KILLED"
    assert time.monotonic() - marked < KILL_SECONDS
    assert task.key.tag in report["diagnostics"]
    assert len(task.applications()) == 1
    links = task.airflow.links(task.dag, task.run, TASK)
    assert links["YARN application"].endswith(application)


# ------------------------------------------------------------------------------ what dies
@pytest.mark.full
def test_a_try_that_dies_between_submission_and_record_leaves_one_application(tasks):
    task = tasks.start("unrecorded", "dies")
    result = task.ends()
    finished_as_one(task, result, tries=2)
    assert "this task has an application already" in task.log(2)


@pytest.mark.full
@pytest.mark.parametrize("late", [False, True], ids=["back at once", "back after its threshold"])
def test_a_scheduler_that_is_killed_costs_no_step(tasks, late):
    task = tasks.start(f"scheduler-{late:d}", training={"max_steps": 900})
    task.deferred()
    task.trains()
    task.airflow.components.kill("scheduler", group=True)
    if late:
        wait_until_missed(task)
    task.airflow.components.restart("scheduler")
    finished_as_one(task, task.ends())


@pytest.mark.full
def test_a_scheduler_that_is_killed_while_the_task_submits_leaves_one_application(tasks):
    task = tasks.start("submitting", "retries", training={"max_steps": 1500})  # outlasts the gap
    task.submits()
    task.airflow.components.kill("scheduler", group=True)
    wait_until_missed(task)
    task.airflow.components.restart("scheduler")
    result = task.ends()
    live = [a for a in task.applications() if a["state"] not in OVER]
    assert live == []
    done = [a["id"] for a in task.applications() if a["finalStatus"] == "SUCCEEDED"]
    assert done == [result["application"]], f"{done} {result}\n{task.story()}"
    assert task.steps() == list(range(1, task.config["training"]["max_steps"] + 1))


@pytest.mark.full
def test_a_resourcemanager_that_restarts_is_waited_for(tasks, healthy_cluster):
    task = tasks.start("rm-restart", training={"max_steps": 900})
    application = task.deferred()
    task.trains()
    healthy_cluster.kill("resourcemanager")
    task.wait(lambda: "does not answer" in task.log(), "the log says so")
    healthy_cluster.start("resourcemanager")
    result = task.ends()
    assert result["application"] == application
    assert "answers again" in task.log()


# ------------------------------------------------------------------------------ what users do
@pytest.mark.full
def test_a_task_that_is_cleared_while_deferred_goes_on_with_its_application(tasks):
    task = tasks.start("cleared", training={"max_steps": 900})
    task.deferred()
    task.trains()
    task.airflow.clear(task.dag, task.run, [TASK])
    finished_as_one(task, task.ends(), tries=2)


@pytest.mark.full
def test_an_application_not_taken_over_after_a_clear_is_killed_and_the_next_resumes(tasks):
    task = tasks.start("abandoned", training={"max_steps": 900})
    application = task.deferred()
    saved = task.trains()
    with no_slots(task.airflow):
        task.airflow.clear(task.dag, task.run, [TASK])
        assert task.over(application, 2 * KILL_SECONDS)["state"] == "KILLED"
    result = task.ends()
    assert result["application"] != application
    again = [int(n) for n in re.findall(r"^\[rank 0\] step (\d+)/", task.log(2), re.M)]
    assert min(again) > saved
    assert sorted(set(task.steps())) == list(range(1, 901))


@pytest.mark.full
def test_a_task_that_succeeded_and_is_cleared_is_submitted_anew(tasks):
    task = tasks.start("again", training={"max_steps": 8})
    first = task.ends()
    task.airflow.clear(task.dag, task.run, [TASK])
    second = task.ends()
    assert second["application"] != first["application"]
    assert second["metrics"] == first["metrics"]


@pytest.mark.full
def test_a_task_that_is_marked_failed_while_it_submits_leaves_nothing(tasks):
    task = tasks.start("early", **LONG)
    task.submits()
    assert task.submitters(), "it should still submit"
    task.airflow.mark(task.dag, task.run, TASK, "failed")
    task.wait(lambda: not task.submitters(), "the end of howdah submit")
    for report in task.applications():
        assert task.over(report["id"], KILL_SECONDS)["state"] == "KILLED"


@pytest.mark.full
def test_a_time_limit_ends_the_application(tasks):
    task = tasks.start("limited", "hurry", **LONG)
    application = task.deferred()
    report = task.over(application)
    assert report["state"] == "KILLED"
    task.ends("failed")
    assert "execution_timeout is over" in task.log()


@pytest.mark.full
def test_a_trigger_that_cannot_run_leaves_no_application_unattended(tasks):
    task = tasks.start("unwatched", "loses", **LONG)
    task.ends("failed")
    # YARN takes a moment to carry a kill out.
    wait_until(lambda: [a["state"] for a in task.applications()] == ["KILLED"])
    assert "its trigger could not run" in task.log()


@pytest.mark.full
def test_two_runs_at_once_do_not_mix(tasks):
    both = [tasks.start(name) for name in ("left", "right")]
    results = [task.ends() for task in both]
    for task, one in zip(both, results, strict=True):
        finished_as_one(task, one)
    assert results[0]["application"] != results[1]["application"]


# ---------------------------------------------------------------------------- what goes wrong
@pytest.mark.full
def test_a_rank_that_dies_is_reported_with_its_last_lines_and_the_retry_resumes(tasks):
    task = tasks.start("crash", "retries", training={"max_steps": 900})
    first = task.deferred()
    saved = task.trains()
    os.kill(rank_of(task), signal.SIGKILL)
    result = task.ends()
    log = task.log(1)
    assert "rank 0" in log
    assert "killed by signal 9" in log
    assert "the last lines of its log" in log
    assert "YARN's diagnostics" in log
    assert result["application"] != first
    again = [int(n) for n in re.findall(r"^\[rank 0\] step (\d+)/", task.log(2), re.M)]
    assert min(again) > saved
    assert sorted(set(task.steps())) == list(range(1, 901))
    assert task.task["try_number"] == 2


@pytest.mark.full
def test_an_error_that_a_retry_would_repeat_is_not_retried(tasks):
    task = tasks.start("permanent", "retries", data={"dataset": f"{tasks.data}/no-such-set"})
    task.ends("failed")
    assert task.task["try_number"] == 1
    assert "no-such-set" in task.log()
    assert task.applications() == []


@contextlib.contextmanager
def no_slots(airflow):
    """No task is started."""

    def set_slots(slots):
        airflow.api("PATCH", "/pools/default_pool", json={"slots": slots},
                    params={"update_mask": "slots"})  # fmt: skip

    before = airflow.api("GET", "/pools/default_pool")["slots"]
    set_slots(0)
    try:
        yield
    finally:
        set_slots(before)


def wait_until_missed(task):
    """A scheduler that was killed is missed: one that comes now takes its tasks for orphans."""
    scheduler = lambda: task.airflow.health()["scheduler"]["status"]  # noqa: E731
    task.wait(lambda: scheduler() != "healthy", "the scheduler is missed")


def rank_of(task):
    """The process of rank 0."""
    path = storage.join(task.directory, "job", "status.json")
    return storage.read_json(path)["ranks"][0]["pid"]
