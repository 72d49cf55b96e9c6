"""Jobs on this machine, Spark and Ray by the command line: the same driver, agents and commands.

`make test` runs them on this machine and, a killed rank, on Ray; `make test-all` alone on Spark.
"""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys

import pytest

from howdah.core.user import user
from howdah.errors import ClusterError, ConfigError
from howdah.jobs import record
from howdah.jobs.clusters import application as control
from howdah.jobs.clusters.application import ProcessApplication
from tests import ROOT
from tests.jobs.clusters import listening
from tests.jobs.test_local_nodes import small_disk
from tests.runs.jobs.local_jobs import kill, parent
from tests.runs.jobs.submitted_jobs import NO_HOROVOD, SubmittedJob, gone
from tests.support.jobs.steps import check_state
from tests.support.waiting import wait_until

full = pytest.mark.full
CLUSTERS = [
    "local",
    pytest.param("spark", marks=pytest.mark.spark),
    pytest.param("ray", marks=pytest.mark.mpi),
]
LOCAL_AND_FULL = [
    "local", *(pytest.param(one.values[0], marks=[*one.marks, full]) for one in CLUSTERS[1:])
]  # fmt: skip
ENDLESS = 10**6


@pytest.fixture
def job(tmp_path, tiny_dataset, tiny_model_dir):
    """Submits jobs, and ends what they leave."""
    made = []

    def make(
        on, *, steps=ENDLESS, master="local[3]", conf=(), light=True, env=None, training=(),
        ranks_env=None, **job_keys
    ):  # fmt: skip
        one = SubmittedJob(
            tmp_path, on, light=light, env=env,
            data={"dataset": tiny_dataset.path, "max_length": 64,
                  "spark": {"master": master, "driver_memory": "512m", "conf": dict(conf)}},
            model={"base": tiny_model_dir},
            training={"max_steps": steps, "global_batch_size": 12, "framework": "torch",
                      "logging_steps": 1, **dict(training)},
            evaluation={"splits": ["validation"]}, tracking={"tensorboard": False},
            job={"commit_every": 5, "env": ranks_env or {}, **job_keys},
        )  # fmt: skip
        made.append(one)
        return one

    yield make
    for one in made:
        one.__exit__()


def test_a_job_whose_disk_is_full_can_be_killed(tmp_path, tiny_dataset, tiny_model_dir):
    """A request to save cannot be written: the driver gets a signal."""
    with small_disk(tmp_path / "run", kilobytes=8_000):
        os.chmod(tmp_path / "run", 0o755)
        with SubmittedJob(
            tmp_path, "local", data={"dataset": tiny_dataset.path},
            model={"base": tiny_model_dir}, training={"max_steps": ENDLESS},
            job={"workers": 2, "commit_every": 5},
        ) as one:  # fmt: skip
            one.trains(2)
            started = one.descendants()
            with contextlib.suppress(OSError), open(tmp_path / "run" / "full", "wb") as file:
                while file.write(b"x" * 1024):
                    file.flush()
            done = one.command("kill", one.application, "--save")
            assert done.returncode == 0 and "no checkpoint can be requested" in done.stderr, done
            gone(started)


def test_a_cache_that_cannot_be_written_is_named(tmp_path, tiny_dataset, tiny_model_dir):
    (tmp_path / "file").write_text("")
    config = {
        "run": {"directory": str(tmp_path / "run")}, "data": {"dataset": tiny_dataset.path},
        "model": {"base": tiny_model_dir}, "training": {"max_steps": 1},
    }  # fmt: skip
    (tmp_path / "run.yaml").write_text(json.dumps(config))
    done = subprocess.run(
        [sys.executable, "-m", "howdah.cli", "submit", "--on", "local", "--config", "run.yaml"],
        env=os.environ | {"HOWDAH_CACHE": str(tmp_path / "file/cache")}, cwd=tmp_path,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 5 and "Traceback" not in done.stderr, done.stderr
    assert "cannot make the job's directory" in done.stderr


@pytest.mark.parametrize(
    "on", [pytest.param("spark", marks=[pytest.mark.spark, full]), CLUSTERS[2]]
)
def test_a_killed_rank_is_replaced_and_a_kill_saves(job, on):
    one = job(on, min_workers=1, master="local[2]")
    status, survivor = one.trains(2), one.rank(0)["pid"]
    listening.check(one, on)
    kill(one.rank(1)["pid"])
    status = one.trains(2, status["generation"])
    assert (one.rank(0)["pid"], status["restarts"]) == (survivor, 1)
    started = one.descendants()
    assert one.json("kill", one.application, "--save")["state"] == "KILLED"
    last = [row for row in one.did() if row["what"] == "step"][-1]
    assert one.file["last_checkpoint"]["step"] == last["step"]
    check_state(one)
    gone(started)


@pytest.mark.parametrize("on", LOCAL_AND_FULL)
def test_a_job_survives_a_killed_rank_is_scaled_and_killed_with_a_checkpoint(job, on):
    one = job(on, min_workers=1, max_workers=3)
    run, status = str(one.run_directory), one.trains(2)
    assert one.application.startswith(f"{on}-")
    listening.check(one, on)
    survivor = one.rank(0)["pid"]
    kill(one.rank(1)["pid"])
    status = one.trains(2, status["generation"])
    assert (one.rank(0)["pid"], status["restarts"]) == (survivor, 1)
    one.json("scale", run, "3")
    one.trains(3, status["generation"])
    started = one.descendants()
    shown = one.json("status", run)
    assert (shown["state"], shown["on"], len(shown["job"]["ranks"])) == ("RUNNING", on, 3)
    [listed] = one.json("ps")["jobs"]
    assert (listed["application"], listed["state"]) == (one.application, "RUNNING")
    assert listed["user"] == user()
    assert one.submit()["attached"]
    assert one.json("kill", "--config", str(one.config), "--save")["state"] == "KILLED"
    last = [row for row in one.did() if row["what"] == "step"][-1]
    assert one.file["last_checkpoint"]["step"] == last["step"]
    check_state(one)
    gone(started)
    wait_until(lambda: not one.processes())
    assert one.command("logs", run).returncode == 0
    assert one.json("kill", one.application)["state"] == "KILLED"  # again: nothing more to do


def test_ranks_that_find_no_horovod_end_the_job_at_once_and_say_so(job):
    """The submitter cannot know it, as on nodes with a Python of their own."""
    ranks_env = {"PYTHONPATH": f"{NO_HOROVOD}{os.pathsep}{ROOT}"}
    one = job(
        "local", light=False, min_workers=1, max_restarts=2, ranks_env=ranks_env,
        training={"comm": "horovod"},
    )  # fmt: skip
    wait_until(lambda: one.driver.poll() is not None)
    status = one.json("status", one.application)
    assert (status["state"], status["job"]["restarts"]) == ("FAILED", 0)
    error = status["job"]["error"]
    assert error["what"].startswith("Horovod for torch is not installed")
    assert "tools/build_horovod.py" in error["remedy"]
    assert error["exit_code"] == status["job"]["exit_code"] == ConfigError.exit_code
    words = ("is excluded", "is being replaced", "is released")
    assert not any(word in event for event in one.events() for word in words)


@full
@pytest.mark.parametrize("on", CLUSTERS)
def test_a_static_job_goes_on_from_its_checkpoint_after_its_driver_was_killed(job, on):
    one = job(on, workers=2)
    saved = one.wait(lambda s: s["last_checkpoint"], "a checkpoint")["last_checkpoint"]["step"]
    started = one.descendants()
    one.driver.kill()
    gone(started)
    wait_until(lambda: not one.processes())
    assert one.json("status", str(one.run_directory))["state"] == "LOST"
    before = {row["pid"] for row in one.did()}
    one.submit()
    one.trains(2)
    first = next(r for r in one.did() if r["what"] == "step" and r["pid"] not in before)
    assert first["step"] > saved
    assert first["step"] % 20 == 1  # right after a checkpoint
    check_state(one)


@full
@pytest.mark.parametrize("on", CLUSTERS)
def test_a_killed_agent_s_container_is_replaced(job, on):
    one = job(on, min_workers=1, max_workers=2)
    status = one.trains(2)
    victim = one.rank(1)
    kill(parent(victim["pid"]))
    one.trains(2, status["generation"])
    wait_until(lambda: not os.path.exists(f"/proc/{victim['pid']}"))
    assert one.rank(1)["container"] != victim["container"]
    check_state(one)


@full
@pytest.mark.parametrize("on", CLUSTERS[1:])
def test_the_cluster_s_own_process_of_a_worker_is_killed(job, on):
    """A Ray actor's process; the executor's JVM of a Spark of several processes."""
    one = job(on, min_workers=1, max_workers=2, master="local-cluster[2,1,1024]")
    status = one.trains(2)
    victim = one.rank(1)
    holder = parent(parent(victim["pid"]))  # the process that ran the agent
    if on == "spark":
        holder = parent(parent(holder))  # pyspark's worker, its daemon, the executor
    kill(holder)
    one.trains(2, status["generation"])
    wait_until(lambda: not os.path.exists(f"/proc/{victim['pid']}"))
    assert one.rank(1)["container"] != victim["container"]
    check_state(one)


@full
@pytest.mark.parametrize("on", CLUSTERS)
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_real_training_survives_a_killed_rank_and_ends_well(job, on, framework):
    one = job(on, light=False, steps=ENDLESS, min_workers=1, max_workers=2, training={
        "framework": framework, "num_train_epochs": 10**6, "precision": "fp32",
        "threads_per_rank": 1})  # fmt: skip
    status = one.trains(2, seconds=200)
    listening.check(one, on)
    survivor, victim = one.rank(1)["pid"], one.rank(0)["pid"]
    kill(victim)
    one.trains(2, status["generation"], 200)
    assert one.rank(0)["pid"] == survivor
    assert any("the state of step" in event for event in one.events())
    assert not os.path.exists(f"/proc/{victim}")
    assert one.json("kill", str(one.run_directory), "--save")["state"] == "KILLED"
    record = json.loads((one.run_directory / "run.json").read_text())
    assert record["status"] == "interrupted"
    done = one.command("submit", "--config", str(one.config), "--on", on, "--wait", "--set",
                       f"training.max_steps={one.file['step'] + 5}")  # fmt: skip
    assert done.returncode == 0, done.stderr
    record = json.loads((one.run_directory / "run.json").read_text())
    assert (record["status"], record["world_size"]) == ("finished", 2)
    assert (one.run_directory / "export").is_dir()


@full
@pytest.mark.parametrize("on", CLUSTERS)
def test_a_stopped_rank_is_named_and_replaced(job, on):
    one = job(on, min_workers=1, hang_seconds=5)
    status = one.trains(2)
    victim = one.rank(1)
    kill(victim["pid"], signal.SIGSTOP)
    one.trains(2, status["generation"])
    assert any(f"({victim['container']}) hangs: stopped" in event for event in one.events())
    check_state(one)


def test_a_submission_that_meets_a_job_being_stopped_waits_and_starts_its_own(job):
    one = job("local", min_workers=1)
    first = one.trains(2) and one.application
    slow = one.rank(0)["pid"]
    kill(slow, signal.SIGSTOP)  # its checkpoint takes as long as we like
    words = [sys.executable, "-m", "howdah.cli"]
    kills = subprocess.Popen(
        [*words, "kill", first, "--save"], env=one.env, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wait_until(lambda: one.file["state"] == "stopping")
    again = subprocess.Popen(
        [*words, "submit", "--config", str(one.config), "--on", "local", "--json"],
        env=one.env, cwd=one.directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    line = again.stderr.readline()
    assert line == f"waiting for the end of {first}, which is being stopped\n"
    kill(slow, signal.SIGCONT)
    answer = json.loads(again.communicate(timeout=120)[0])
    assert kills.wait(60) == 0
    assert not answer["attached"] and answer["application"] != first
    assert one.submit()["application"] == answer["application"]  # attaches
    one.trains(2)


@full  # the same without processes: tests/jobs/driver/test_status_file.py
def test_a_kill_from_another_machine_reaches_a_driver_that_is_starting(job, tmp_path, monkeypatch):
    one = job("local", min_workers=1)
    one.command("kill", one.application)
    again = subprocess.Popen(
        [sys.executable, "-m", "howdah.cli", "submit", "--config", str(one.config),
         "--on", "local", "--json"],
        env=one.env, cwd=one.directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    run = str(one.run_directory)
    wait_until(lambda: record.read(run).application not in ("", one.application))
    starting = record.read(run)
    kill(starting.pid, signal.SIGSTOP)
    assert ProcessApplication(starting).driver_status() == {}
    monkeypatch.setattr(control, "_STOP_SECONDS", 0.1)
    elsewhere = dataclasses.replace(starting, host="another")
    with pytest.raises(ClusterError, match="has not ended") as caught:
        ProcessApplication(elsewhere).kill(save=False, save_seconds=0, progress=print)
    kill(starting.pid, signal.SIGCONT)
    again.communicate(timeout=120)
    wait_until(lambda: one.json("status", run)["state"] == "KILLED")
    wait_until(lambda: not starting.driver_lives)  # it says so before it ends
    assert "is still starting" in caught.value.got


@pytest.mark.parametrize("on", LOCAL_AND_FULL)
def test_an_interrupt_of_the_command_that_waits_saves_and_ends_the_job(job, on):
    one = job(on, min_workers=1)
    one.trains(2)
    started = one.descendants()
    words = ["submit", "--config", str(one.config), "--on", on, "--wait"]  # attaches
    waits = subprocess.Popen(
        [sys.executable, "-m", "howdah.cli", *words], env=one.env, cwd=one.directory,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    lines = [waits.stderr.readline()]
    while "is already submitted" not in lines[-1]:
        assert lines[-1], lines
        lines.append(waits.stderr.readline())
    lines.append(waits.stderr.readline())  # the job's first event: it follows
    waits.send_signal(signal.SIGINT)
    rest = waits.communicate(timeout=120)[1]
    assert waits.returncode == 130, rest
    assert "saved " in rest
    assert one.file["state"] == "killed"
    gone(started)
