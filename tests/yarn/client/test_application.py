"""Status, control and logs of jobs, with files of a run directory and a stand-in for YARN."""

import json
import re
import threading
import time

import pytest

from howdah import storage
from howdah.cli import jobs as commands
from howdah.cli.jobs import _scale_arguments
from howdah.config import loader
from howdah.errors import ClusterError, NotFound, TrainingError, UsageError
from howdah.hadoop.conf import HadoopConf
from howdah.jobs.record import Record
from howdah.jobs.status.text import log_lines, ps_lines, status_lines
from howdah.yarn import application as control
from howdah.yarn import logs
from howdah.yarn.application import YarnApplication, listed
from howdah.yarn.cluster import YarnCluster

APP = "application_1_0001"


class Manager:
    """A ResourceManager with one application; it calls `on_kill` at each request to kill it."""

    conf = HadoopConf(None)
    user = None

    def __init__(self, state="RUNNING", final="UNDEFINED"):
        self.state, self.final = state, final
        self.killed = 0
        self.on_kill = self._end

    def _end(self):
        self.state, self.final = "KILLED", "KILLED"

    def application(self, application):
        return {
            "id": application, "state": self.state, "finalStatus": self.final, "name": "tiny",
            "user": "me", "queue": "default", "priority": 0, "elapsedTime": 61_000,
            "progress": 50.0, "diagnostics": "its diagnostics\n", "trackingUrl": "http://rm/proxy/1/",
        }  # fmt: skip

    def job_page(self, report):
        return report.get("trackingUrl", "http://rm/proxy/")

    def applications(self, **filters):
        return [self.application(APP)]

    def kill(self, application, why=""):
        self.killed += 1
        self.on_kill()
        return self.state


@pytest.fixture
def directory(tmp_path):
    return str(tmp_path)


def job_of(manager, directory, application=APP):
    return YarnApplication(manager, application, directory)


@pytest.fixture
def job(directory):
    return job_of(Manager(), directory)


def write_status(job, **status):
    path = storage.join(job.directory, "job", "status.json")
    storage.write_whole(path, json.dumps({"application": APP, **status}).encode())


RUNNING = {
    "state": "running", "world_size": 2, "wanted": 3, "step": 40, "total_steps": 100, "epoch": 1,
    "loss": 0.5, "examples_per_second": 12.5, "eta_seconds": 3700, "restarts": 1, "preemptions": 2,
    "last_checkpoint": {"step": 30, "path": "hdfs://nn/checkpoints/step-30"},
    "ranks": [
        {"rank": 0, "node": "n1", "container": "c1", "phase": "compute", "step": 40,
         "step_seconds": 0.1, "wait_seconds": 0.4, "straggler": False,
         "data": {"local_bytes": 3 * 2**20, "remote_bytes": 0, "fetches": 3}},
        {"rank": 1, "node": "n2", "container": "c2", "phase": "evaluate", "step": 40,
         "doing": "evaluating test: 31,000 of 100,000 rows",
         "step_seconds": 0.5, "wait_seconds": None, "straggler": True,
         "data": {"local_bytes": 0, "remote_bytes": 2**20, "fetches": 1}},
    ],
    "events": [{"time": 1.0, "what": "first"}, {"time": 2.0, "what": "second"}],
    "lines": [[1, "step 10"], [2, "step 20"]],
}  # fmt: skip


# -------------------------------------------------------------------------------------- status
def test_status_joins_yarns_report_and_the_drivers_status(job):
    write_status(job, **RUNNING)
    status = job.status()
    assert (status["state"], status["job"]["step"], status["elapsed_seconds"]) == (
        "RUNNING",
        40,
        61.0,
    )
    text = "\n".join(status_lines(status))
    for part in (
        "1 min 01 s", "2 of 3 workers", "step 40/100", "loss 0.5000", "12.5 examples/s",
        "1 h 01 min left", "step-30", "restarts 1, preemptions 2", "its diagnostics",
        "4 shards fetched, 3.0 MiB from the local node, 1.0 MiB over",
    ):  # fmt: skip
        assert part in text
    slow = [line for line in text.splitlines() if "SLOW" in line]
    assert len(slow) == 1
    assert "rank 1" in slow[0]
    assert slow[0].endswith("evaluating test: 31,000 of 100,000 rows")


def test_a_worker_that_has_no_rank_yet_is_shown_as_one(job):
    worker = {"rank": None, "node": "n1", "container": "c1", "phase": "import"}
    write_status(job, **{**RUNNING, "ranks": [worker]})
    assert "  no rank yet  n1  c1  import" in status_lines(job.status())


def test_a_status_has_the_scalar_metrics_of_the_run(job):
    assert job.status()["run"] is None
    of_a = {"precision": 1.0, "recall": 1.0, "f1": 1.0, "support": 3}
    figures = {"validation": {"accuracy": 0.5, "labels": ["a"], "per_class": {"a": of_a}}}
    status = {"run_id": "r-1", "status": "finished", "mlflow_run_id": "m-1", "metrics": figures}
    path = storage.join(job.directory, "run.json")
    storage.write_whole(path, json.dumps({**status, "attempts": [{}]}).encode())
    assert job.status()["run"] == {
        **status, "metrics": {"validation": {"accuracy": 0.5}}, "hours": None,
    }  # fmt: skip


def test_the_status_of_an_earlier_application_is_not_shown(job):
    write_status(job, **RUNNING)
    other = job_of(Manager(), job.directory, "application_1_0002")
    assert other.driver_status() == {}
    assert "the driver has reported nothing yet" in status_lines(other.status())


def test_status_of_a_job_that_yarn_has_forgotten_comes_from_its_run_directory(job):
    manager = Manager()

    def forgotten(application):
        raise NotFound("YARN has no such application or resource")

    manager.application = forgotten
    with pytest.raises(NotFound):
        job_of(manager, job.directory).status()
    write_status(job, **{**RUNNING, "state": "finished"})
    lines = status_lines(job_of(manager, job.directory).status())
    assert lines[0].split() == [APP, "FORGOTTEN"]
    assert any(line.startswith("finished:") for line in lines)


def test_a_job_is_found_by_its_configuration(tmp_path, monkeypatch):
    settings = loader.from_dict({"run": {"directory": str(tmp_path)}})
    bare = Manager()
    monkeypatch.setattr(YarnCluster, "manager", bare)
    own_record = Record(
        token="t", application="application_1_0009", on="yarn", run_directory=str(tmp_path)
    )
    own_record.write()
    assert commands.find(None, settings).id == own_record.application
    assert commands.find(str(tmp_path), None).id == own_record.application
    other = commands.find(APP, settings)
    assert (other.id, other.directory) == (APP, str(tmp_path))
    with pytest.raises(UsageError):
        commands.find(None, None)
    bare.applications = lambda **_: []
    empty = loader.from_dict({"run": {"directory": str(tmp_path / "other")}})
    with pytest.raises(NotFound, match="no job"):
        commands.find(None, empty)


def test_ps_shows_a_line_a_job():
    jobs = listed(Manager("FINISHED", "SUCCEEDED"), user="me", finished=True)
    head, line = ps_lines(jobs)
    assert head.split() == [
        "APPLICATION", "NAME", "USER", "QUEUE", "STATE", "DONE", "TIME", "WORKERS", "STEP",
        "CPU-H", "GPU-H",
    ]  # fmt: skip
    assert line.split()[:6] == [APP, "tiny", "me", "default", "FINISHED", "50%"]
    failed = listed(Manager("FINISHED", "FAILED"), user="me", finished=True)
    assert ps_lines(failed)[1].split()[4] == "FAILED"  # YARN has FINISHED where its driver ended
    assert ps_lines([]) == ["no jobs"]


# ------------------------------------------------------------------------------- kill and scale
def test_kill_returns_when_yarn_has_confirmed(job):
    manager = Manager()
    requests = []

    def slowly():
        requests.append(1)
        if len(requests) == 3:
            manager.state = "KILLED"

    manager.on_kill = slowly
    state = job_of(manager, job.directory).kill(save=False, save_seconds=0, progress=print)
    assert (state, len(requests)) == ("KILLED", 3)
    assert (
        job_of(manager, job.directory).kill(save=True, save_seconds=0, progress=print) == "KILLED"
    )
    assert len(requests) == 3  # what is over is left alone


def test_a_kill_that_yarn_does_not_confirm_is_an_error(job, monkeypatch):
    monkeypatch.setattr(control, "KILL_SECONDS", 1.0)
    manager = Manager()
    manager.on_kill = lambda: None
    with pytest.raises(ClusterError, match="not confirmed"):
        job_of(manager, job.directory).kill(save=False, save_seconds=0, progress=print)


@pytest.mark.parametrize("saves", [True, False])
def test_kill_with_save_waits_for_the_drivers_checkpoint(job, saves):
    """A stand-in for the driver reads the request and writes a status with its checkpoint."""
    write_status(job, **RUNNING)
    manager, lines = Manager(), []

    def driver():
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            for path in storage.find(storage.join(job.directory, "job", "requests", "*.json")):
                assert storage.read_json(path) == {
                    "type": "stop", "save": True, "application": job.id,
                }  # fmt: skip
                saved = {"step": 41, "path": "hdfs://nn/checkpoints/step-41"}
                more = {"last_checkpoint": saved} if saves else {}
                write_status(job, **{**RUNNING, "state": "killed", **more})
                return
            time.sleep(0.02)

    thread = threading.Thread(target=driver)
    thread.start()
    assert (
        job_of(manager, job.directory).kill(save=True, save_seconds=60, progress=lines.append)
        == "KILLED"
    )
    thread.join()
    if saves:
        assert lines == ["saved hdfs://nn/checkpoints/step-41"]
        return
    [line] = lines
    newest = "newest complete checkpoint: hdfs://nn/checkpoints/step-30"
    assert re.fullmatch(rf"no new checkpoint after \d s; {newest}", line)


def test_scale_writes_a_request_for_the_driver(job):
    job.scale(4)
    [path] = storage.find(storage.join(job.directory, "job", "requests", "*.json"))
    request = {"type": "scale", "workers": 4, "application": job.id}
    assert storage.read_json(path) == request
    write_status(job, state="running", fewest_workers=1, most_workers=4)
    job.scale(4)
    with pytest.raises(UsageError, match="cannot have 5 workers") as error:
        job.scale(5)
    assert error.value.expected.startswith("1 to 4 workers")
    with pytest.raises(ClusterError, match="is over"):
        job_of(Manager("FAILED", "FAILED"), job.directory).scale(4)
    with pytest.raises(ClusterError, match="not known"):
        job_of(Manager(), None).scale(4)


def test_scale_takes_an_optional_application_and_a_positive_number():
    assert _scale_arguments(["3"]) == (None, 3)
    assert _scale_arguments([APP, "3"]) == (APP, 3)
    for arguments in (["x"], ["0"], [APP, APP, "3"], ["3", APP]):
        with pytest.raises(UsageError):
            _scale_arguments(arguments)


# ---------------------------------------------------------------------------------------- wait
def test_wait_shows_each_line_and_event_once_and_ends_with_the_job(job):
    write_status(job, **RUNNING)
    manager, lines = Manager(), []

    def say(line):
        lines.append(line)
        if line == "step 20":
            more = [[2, "step 20"], [3, "step 30"]]
            write_status(job, **{**RUNNING, "state": "finished", "lines": more, "exit_code": 0})
            manager.state, manager.final = "FINISHED", "SUCCEEDED"

    status = job_of(manager, job.directory).wait(say)
    assert status["final_status"] == "SUCCEEDED"
    assert [s for s in lines if s.startswith(("step", "first", "second"))] == [
        "first", "second", "step 10", "step 20", "step 30",
    ]  # fmt: skip


def test_wait_shows_the_lines_of_a_second_attempt_from_its_first_one_on(job):
    """Each attempt's driver numbers its lines from 1."""
    write_status(job, **RUNNING, attempt=1)
    manager, lines = Manager(), []

    def say(line):
        lines.append(line)
        if line == "step 20":
            write_status(job, **{**RUNNING, "attempt": 2, "events": [], "lines": [[1, "resumed"]]})
            manager.state, manager.final = "FINISHED", "SUCCEEDED"

    job_of(manager, job.directory).wait(say)
    assert lines[-2:] == ["resumed", f"{APP} is FINISHED"]


def test_wait_raises_the_jobs_own_error_with_its_exit_code(job):
    error = TrainingError("a rank was lost", where="rank 1", got="exit code -9").as_dict()
    write_status(
        job, **{**RUNNING, "state": "failed", "error": {**error, "exit_code": 4}, "exit_code": 4}
    )
    with pytest.raises(TrainingError, match="a rank was lost") as caught:
        job_of(Manager("FINISHED", "FAILED"), job.directory).wait(print)
    assert (caught.value.where, caught.value.exit_code) == ("rank 1", 4)
    error = NotFound("no dataset", where="hdfs://h/d").as_dict()
    write_status(job, **{**RUNNING, "state": "failed", "error": error, "exit_code": 5})
    with pytest.raises(NotFound, match="no dataset"):  # by its class others know what to do
        job_of(Manager("FINISHED", "FAILED"), job.directory).wait(print)


def test_wait_raises_yarns_diagnostics_if_the_driver_reported_no_error(job):
    with pytest.raises(ClusterError, match="KILLED") as caught:
        job_of(Manager("KILLED", "KILLED"), job.directory).wait(print)
    assert caught.value.got == "its diagnostics"


# ---------------------------------------------------------------------------------------- logs
def test_a_ranks_log_is_followed_to_the_end(job):
    path = storage.join(job.directory, "logs", "rank.1")
    storage.write_whole(path, b"one\ntw")
    manager, seen = Manager(), []

    def out(line):
        seen.append(line)
        if line == "one":
            storage.write_whole(path, b"one\ntwo\nthree\n")
        if line == "three":
            storage.write_whole(path, b"anew\n")  # by the next attempt
        if line == "anew":
            manager.state = "FINISHED"

    job_of(manager, job.directory).rank_log(1, follow=True, out=out)
    assert seen == ["one", "two", "three", "anew"]
    seen.clear()
    job.rank_log(1, follow=False, out=seen.append)
    assert seen == ["anew"]


def test_a_rank_without_a_published_log_is_looked_for_in_its_container(job, monkeypatch):
    write_status(job, **RUNNING)
    files = {"c2": {f"training.{number}.log": "old" for number in range(1, 10)}}
    files["c2"] |= {"training.10.log": "new\nlast\n", "worker.log": "x"}
    monkeypatch.setattr(logs, "of_containers", lambda manager, application, progress: files)
    seen = []
    job.rank_log(1, follow=False, out=seen.append)
    assert seen == ["new", "last"]
    with pytest.raises(NotFound, match="no log"):
        job.rank_log(0, follow=False, out=print)


def test_aggregated_logs_are_parsed_by_container_and_file():
    text = """Container: container_1_0001_01_000002 on localhost_1
LogAggregationType: AGGREGATED
=====
LogType:worker.log
LogLastModifiedTime:Sat Nov 21 16:17:47 +0000 2026
LogLength:10
LogContents:
a line
Container: of a liar
End of LogType:worker.log
***************************

Container: container_1_0001_01_000002 on localhost_1
LogType:prelaunch.out
LogLength:1
LogContents:
x
End of LogType:prelaunch.out
"""
    parsed = logs._parsed(text)
    assert parsed == {"container_1_0001_01_000002": {"worker.log": "a line\nContainer: of a liar"}}
    assert log_lines(parsed)[0] == "==== container_1_0001_01_000002 worker.log"


def test_a_hadoop_that_does_not_end_is_an_error(tmp_path, monkeypatch):
    program = tmp_path / "bin" / "yarn"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setenv("HADOOP_HOME", str(tmp_path))
    monkeypatch.setattr(logs, "_CALL_SECONDS", 0.2)
    with pytest.raises(ClusterError, match="has not ended") as caught:
        logs.of_containers(Manager("FINISHED"), APP, print)
    assert f"-applicationId {APP}" in caught.value.remedy
