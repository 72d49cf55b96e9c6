"""What the driver tells of its job: the status, its page and the loss curve."""

import math
import re
import subprocess
import sys

from howdah.jobs.driver.job_status import JobStatus
from howdah.jobs.status.page import page
from howdah.packaging import package
from tests.runs.jobs.driver_world import World

STATES = ("etl", "waiting", "starting", "running", "resizing", "restarting", "stopping",
          "finished", "killed", "failed")  # fmt: skip


def test_the_page_shows_names_as_text():
    w = World()
    w.come("<b>a</b>", "b", node="<script>alert(1)</script>")
    job_status = JobStatus("application_1_0001", 1)
    job_status.event("<i>lost</i>")
    status = job_status.status(w.job)
    text = page(status, [(1, 2.0), (2, 1.0)], "run & co")
    assert "&lt;script&gt;" in text
    assert text.count("<script") == 1  # the pages' own
    assert "<b>a" not in text
    assert "<i>" not in text
    assert "run &amp; co" in text
    assert "<svg" in text
    # Nothing is fetched from elsewhere: not even an icon, which YARN's proxy would refuse.
    assert set(re.findall(r'(?:src|href)="([^"]*)"', text)) == {"data:,", "status.json"}
    assert "default-src 'none'" in text and 'name="viewport"' in text
    assert '<meta http-equiv="refresh" content="5">' in text


def test_the_first_box_says_whether_the_job_goes_on_and_when_it_is_done():
    w = World()
    w.train("a", "b")
    job_status = JobStatus("application_1_0001", 1)
    job_status.take({"type": "checkpoint", "step": 100, "path": "hdfs://nn/step-100"})
    for step in (50, 100):
        metrics = {"loss": 1.0, "accuracy": step / 200}
        job_status.take(
            {"type": "evaluation", "step": step, "split": "validation", "metrics": metrics}
        )
    status = job_status.status(w.job)
    assert [one["metrics"]["accuracy"] for one in status["evaluations"]] == [0.25, 0.5]
    status |= {"step": 120, "total_steps": 1000, "eta_seconds": 725.0}
    status["updated"] = status["last_checkpoint"]["time"] + 192
    text = page(status, [(1, 2.0), (2, 1.0)], "run")
    assert "Running: step 120 of 1,000, about 12 min 5 s left" in text
    assert "Last checkpoint: step 100, 3 min 12 s ago" in text
    assert "<b>0</b><span>restarts" in text and "preemptions" not in text
    assert "accuracy" in text and "0.5000" in text
    assert text.count("<svg") == 2  # the loss, and the evaluations
    for state in STATES:
        assert page({**status, "state": state}, [(1, 2.0), (2, math.nan)], "run")


def test_the_page_says_what_ended_the_job_and_which_rank_was_slow():
    w = World()
    w.train("a", "b")
    job_status = JobStatus("application_1_0001", 1)
    status = job_status.status(w.job)
    assert "slower than the others" not in page(status, [], "run")
    status["error"] = {"what": "rank 1 was lost", "where": "<node>", "got": None}
    status["ranks"][1]["straggler"] = True
    status["ranks"][0]["stopped"] = True
    text = page(status, [(1, 2.0)], "run")
    assert "rank 1 was lost\nwhere: &lt;node&gt;</pre>" in text
    assert text.count("slower than the others") == 1
    assert "The process of rank 0 on n is stopped" in text
    assert "<svg" not in text  # of one point there is no curve
    assert "<b>–</b><span>training loss" in text


def test_a_driver_that_runs_from_the_shipped_wheel_has_its_page_and_loads_jinja2_for_it_alone(
    tmp_path,
):
    wheel = package.wheel(str(tmp_path)).path
    status = JobStatus("x", 1).status(World().job)
    script = f"""
import sys
sys.path.insert(0, {wheel!r})
import howdah.jobs.driver.driver, howdah.jobs.status.page
assert howdah.jobs.status.page.__file__.startswith({wheel!r})
assert "jinja2" not in sys.modules
howdah.jobs.status.page.page({status!r}, [], "run")
assert "jinja2" in sys.modules
"""
    subprocess.run([sys.executable, "-P", "-c", script], cwd=tmp_path, check=True, timeout=120)


def test_repeated_steps_replace_their_points_of_the_curve():
    w = World()
    w.train("a", "b")
    job_status = JobStatus("x", 1)
    for step in (1, 2, 3, 2, 3):
        w.job.members["a"].step = {"step": step, "loss": 1.0 / step, "total_steps": 10}
        done = job_status.progress(w.job)
    assert job_status.curve() == [(1, 1.0), (2, 0.5), (3, 1 / 3)]
    assert done == 0.3
    assert job_status.status(w.job)["state"] == "running"


def test_a_save_that_was_cut_short_is_known():
    w = World()
    job_status = JobStatus("x", 1)
    assert job_status.cut_short() == ""
    job_status.take({"type": "saving", "step": 100})
    assert job_status.status(w.job)["saving"] == 100
    assert "the save of step 100 was cut short; newest complete one: an earlier attempt's" in (
        job_status.cut_short()
    )
    job_status.take({"type": "checkpoint", "step": 100, "path": "hdfs://nn/step-100"})
    assert job_status.cut_short() == ""
    job_status.take({"type": "saving", "step": 200})
    assert "step 200 was cut short; newest complete one: hdfs://nn/step-100" in (
        job_status.cut_short()
    )
    job_status.take({"type": "saving", "step": None})  # storage did not take it
    assert job_status.cut_short() == ""


def test_the_run_in_mlflow_is_in_the_status():
    w = World()
    job_status = JobStatus("x", 1)
    assert job_status.status(w.job)["mlflow_run_id"] is None
    assert job_status.take({"type": "tracking", "mlflow_run_id": "abc", "process": 1})
    assert job_status.status(w.job)["mlflow_run_id"] == "abc"
