"""Jobs on a real YARN by skein: submitted, watched, ended, by the command line alone."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request

import pytest

from howdah import storage
from tests.yarn_jobs import LIMIT, ROOT, Jobs, place_data, settings

pytestmark = [pytest.mark.hadoop, pytest.mark.mpi]


@pytest.fixture(scope="module")
def home(cluster, tiny_model_dir):
    """A place on HDFS with the data."""
    url = f"{cluster.hdfs_url}/test/skein"
    place_data(url, tiny_model_dir)
    yield url
    storage.remove(url, recursive=True)


@pytest.fixture
def jobs(healthy_cluster, home, tmp_path, monkeypatch):
    """The command line; applications that a test leaves behind are ended."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(healthy_cluster.conf_dir))
    yield Jobs(healthy_cluster, tmp_path)
    healthy_cluster.end_applications()


def test_a_static_job_from_submission_to_its_end(jobs, home):
    config = jobs.config(settings(home, "static", yarn={"priority": 3, "tags": ["team-a"]}))
    started = jobs.start("submit", "--config", config, "--wait", "--json")
    out, err = started.communicate(timeout=LIMIT)
    assert started.returncode == 0, err
    told = json.loads(out)
    application = told["application"]
    assert f"submitted {application}" in err
    assert "step 12" in err.lower()
    assert told["status"]["final_status"] == "SUCCEEDED"

    status = jobs.status(application)
    assert (status["job"]["state"], status["job"]["step"]) == ("finished", 12)
    assert storage.read_json(f"{home}/runs/static/run.json")["world_size"] == 2
    assert storage.exists(f"{home}/runs/static/export/model.safetensors")
    listed = jobs.json("ps", "--all")["jobs"]
    assert [j["final_status"] for j in listed if j["application"] == application] == ["SUCCEEDED"]
    assert "rank" in jobs.run("logs", application, "--rank", "0").stdout
    assert jobs.json("kill", application)["state"] == "FINISHED"
    jobs.wait_until_gone(application, LIMIT)
    # Hadoop's own clients know it too
    report = jobs.cluster.run("yarn", "application", "-status", application).stdout
    assert "SUCCEEDED" in report
    assert "team-a" in report


def test_a_run_that_is_there_is_attached_to_or_refused_and_killed_in_time(jobs, home):
    held = settings(home, "twice", training={"max_steps": 100_000})
    config = jobs.config(held)
    first = jobs.json("submit", "--config", config)
    again = jobs.json("submit", "--config", config)
    assert (again["application"], again["attached"]) == (first["application"], True)
    other = jobs.config({**held, "training": {**held["training"], "max_steps": 7}})
    refused = jobs.json("submit", "--config", other, code=5)
    assert first["application"] in refused["got"]
    jobs.wait_for_step(first["application"], 2)

    page = jobs.status(first["application"])["job"]["page"]
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(page, timeout=30) as answer:
        assert b"<html" in answer.read().lower()
    texts = jobs.json("logs", first["application"])["logs"]
    assert len(texts) == 3  # the driver's container and two workers'
    began = time.monotonic()
    assert jobs.json("kill", first["application"])["state"] == "KILLED"
    assert time.monotonic() - began < 30  # what is promised, and what YARN is given for it
    jobs.wait_until_gone(first["application"], LIMIT)


def test_kill_with_save_keeps_what_was_learnt(jobs, home):
    held = settings(
        home, "saved", training={"max_steps": 100_000}, checkpoint={"every_steps": None}
    )
    config = jobs.config(held)
    application = jobs.json("submit", "--config", config)["application"]
    jobs.wait_for_step(application, 3)
    jobs.run("kill", application, "--save")
    saved = storage.find(f"{home}/runs/saved/checkpoints/step-*/manifest.json")
    assert saved
    jobs.wait_until_gone(application, LIMIT)


@pytest.mark.full
def test_ctrl_c_of_a_waiting_submission_ends_the_job(jobs, home):
    config = jobs.config(settings(home, "ctrl-c", training={"max_steps": 100_000}))
    process = jobs.start("submit", "--config", config, "--wait")
    for line in process.stderr:
        if line.startswith("submitted "):
            application = line.split()[1].rstrip(":")
            break
    jobs.wait_for_step(application, 1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=LIMIT)
    assert process.returncode == 130
    assert jobs.status(application)["state"] in ("KILLED", "FINISHED", "FAILED")
    jobs.wait_until_gone(application, LIMIT)


KILLED_BEFORE_RECORD = """
import os, signal
from yarn import submit
from yarn.owner import Owner
Owner.complete = lambda self, claim, application: os.kill(os.getpid(), signal.SIGKILL)
import sys
from howdah.cli import main
sys.argv = ["howdah", "submit", "--config", sys.argv[1]]
main()
"""


@pytest.mark.full
def test_a_submitter_killed_between_submission_and_record_is_attached_to(jobs, home):
    held = settings(home, "lost", training={"max_steps": 100_000})
    config = jobs.config(held)
    died = subprocess.run(
        [sys.executable, "-c", KILLED_BEFORE_RECORD, config], env=jobs.env, cwd=ROOT,
        capture_output=True, text=True, timeout=LIMIT,
    )  # fmt: skip
    assert died.returncode == -signal.SIGKILL, died.stderr
    again = jobs.json("submit", "--config", config)
    assert again["attached"]
    running = [j for j in jobs.json("ps")["jobs"] if j["name"] == "lost"]
    assert [j["application"] for j in running] == [again["application"]]
    jobs.run("kill", "--config", config)


@pytest.mark.full
@pytest.mark.parametrize("victim", ["driver", "master"])
def test_a_driver_or_master_that_is_killed_leaves_no_orphan_and_the_next_attempt_resumes(
    jobs, home, victim
):
    held = settings(
        home, f"dies-{victim}", training={"max_steps": 300}, checkpoint={"every_steps": 10},
        yarn={"attempts": 2},
    )  # fmt: skip
    config = jobs.config(held)
    application = jobs.json("submit", "--config", config)["application"]
    jobs.wait_for(
        application,
        lambda told: ((told["job"] or {}).get("last_checkpoint") or {}).get("step", 0) >= 10,
        "the first checkpoint",
    )
    mark = "-m yarn driver" if victim == "driver" else "com.anaconda.skein.ApplicationMaster"
    before = jobs.processes(application)
    for pid, words in before.items():
        if mark in words and "bash" not in words:
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while [pid for pid in before if pid in jobs.processes(application)]:
        assert time.monotonic() < deadline, "orphans of the first attempt"
        time.sleep(0.2)
    told = jobs.wait_for_end(application)
    assert told["final_status"] == "SUCCEEDED", told
    assert told["job"]["attempt"] == 2
    run = storage.read_json(f"{home}/runs/dies-{victim}/run.json")
    assert run["resumed_from"] if "resumed_from" in run else run["attempt"] == 2


def test_what_can_never_run_is_refused_before_yarn_is_asked(jobs, home):
    """All problems at once, each with both numbers; no application, no claim on the run."""
    held = settings(
        home, "refused", data={"dataset": f"{home}/no-such-set", "max_length": 64},
        yarn={"worker": {"memory": "100 GiB"}},
    )  # fmt: skip
    told = jobs.json("submit", "--config", jobs.config(held), code=5)
    kinds = {problem["error"]: problem for problem in told["problems"]}
    assert set(kinds) == {"ClusterError", "DataError"}
    assert "6,144 MiB" in kinds["ClusterError"]["expected"]
    assert "102,400 MiB" in kinds["ClusterError"]["got"]
    assert not storage.exists(f"{home}/runs/refused/yarn/owner.json")
    queue = settings(home, "refused", yarn={"queue": "nope"})
    told = jobs.json("submit", "--config", jobs.config(queue), code=5)
    assert "root.default" in told["expected"]
    assert not [j for j in jobs.json("ps", "--all")["jobs"] if j["name"] == "refused"]


def test_a_dry_run_shows_all_and_leaves_nothing(jobs, home):
    config = jobs.config(settings(home, "dry", yarn={"view_users": ["bob"]}))
    told = jobs.json("submit", "--config", config, "--dry-run")
    asked = told["application"]
    assert (asked["workers"], asked["worker"]["memory_mib"]) == (2, 2048)
    assert asked["nodes"] == ["localhost"]  # where the dataset's blocks are
    assert any("-m yarn driver" in line for line in told["commands"]["driver"])
    text = jobs.run("submit", "--config", config, "--dry-run").stdout
    assert "view_users: bob" in text
    assert not storage.exists(f"{home}/runs/dry/yarn/owner.json")
