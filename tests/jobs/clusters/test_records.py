"""application.json of a run directory is another's letter: what it may not make a command do."""

import http.server
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest

from howdah import cli
from howdah.cli import jobs as commands
from howdah.config import loader
from howdah.core.processes import boot_id, process_start
from howdah.errors import ClusterError, DataError
from howdah.jobs import record
from howdah.jobs.clusters import application as control
from howdah.jobs.clusters.application import listed
from howdah.jobs.record import Record
from howdah.jobs.status.text import LISTING_SECONDS, status_lines
from howdah.jobs.submit import Claims
from howdah.storage import retry
from howdah.training.run.local_dir import RunLock
from howdah.yarn import cluster as yarn_cluster


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HOWDAH_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def victim():
    """A process of the operator's that no job has started."""
    with subprocess.Popen(["sleep", "3000"]) as process:
        yield process
        process.kill()


def letter(tmp_path, **values):
    """application.json as any user with write permission in the run directory could write it."""
    fields = {
        "token": "t", "kind": "training", "user": "", "application": "local-1", "on": "local",
        "run_directory": str(tmp_path / "run"), "directory": str(tmp_path / "theirs"),
        "fingerprint": "f", "submitted": time.time(),
        "host": socket.gethostname(), "boot": boot_id(), "pid": 1, "start": 1, **values,
    }  # fmt: skip
    folder = tmp_path / "run" / "job"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "application.json").write_text(json.dumps(fields))
    return fields


def named(tmp_path, victim, monkeypatch, **values):
    monkeypatch.setattr(control, "_STOP_SECONDS", 0.1)
    letter(tmp_path, pid=victim.pid, start=process_start(victim.pid), **values)
    return commands.find(str(tmp_path / "run"), None)


def test_a_job_whose_run_directory_a_later_one_has_keeps_its_own_end(tmp_path, victim):
    directory = tmp_path / "cache" / "jobs" / "local-1"
    directory.mkdir(parents=True)
    letter(tmp_path, directory=str(directory), pid=victim.pid, start=process_start(victim.pid))
    job = commands.find(str(tmp_path / "run"), None)
    job.record.write(private=True)
    victim.kill()
    victim.wait()
    (tmp_path / "run" / "job" / "status.json").write_text(
        json.dumps({"application": "local-2", "state": "running", "updated": time.time()})
    )
    status = job.status()
    assert status["state"] == "LOST"
    assert "submit the job again" in "\n".join(status_lines(status))
    verdict = directory / "finish.json"
    verdict.write_text(json.dumps({"status": "KILLED", "diagnostics": "stopped on request"}))
    os.utime(verdict, (0, job.record.submitted + 90))
    status = job.status()
    assert (status["state"], round(status["elapsed_seconds"])) == ("KILLED", 90)
    lines = "\n".join(status_lines(status))
    assert "stopped on request" in lines
    assert "submit the job again" not in lines
    assert "nothing yet" not in lines


@pytest.mark.parametrize("application", ["local-1", "../../../run", "local-1/../local-1"])
def test_kill_signals_no_process_that_only_the_run_directory_names(
    tmp_path, victim, monkeypatch, application
):
    job = named(tmp_path, victim, monkeypatch, application=application)
    assert job.record.driver_lives
    with pytest.raises(ClusterError, match="names another user's job"):
        job.kill(save=False, save_seconds=1, progress=print)
    assert victim.poll() is None


def test_kill_signals_the_process_of_the_private_record(tmp_path, victim, monkeypatch):
    directory = tmp_path / "cache" / "jobs" / "local-1"
    directory.mkdir(parents=True)
    job = named(tmp_path, victim, monkeypatch, directory=str(directory))
    job.record.write(private=True)
    job.kill(save=False, save_seconds=1, progress=print)
    assert victim.wait(20) == -signal.SIGTERM


def test_a_driver_that_ends_just_before_its_signal_is_over(tmp_path, victim, monkeypatch):
    directory = tmp_path / "cache" / "jobs" / "local-1"
    directory.mkdir(parents=True)
    job = named(tmp_path, victim, monkeypatch, directory=str(directory))
    job.record.write(private=True)

    def ends(what):
        victim.kill()
        victim.wait()

    job._require_ours = ends
    assert job.kill(save=False, save_seconds=1, progress=print) == "LOST"


def test_a_link_to_the_run_directory_leads_to_the_same_job(tmp_path, victim, monkeypatch):
    """A home directory that is a link; a copy of the run is another one."""
    directory = tmp_path / "cache" / "jobs" / "local-1"
    directory.mkdir(parents=True)
    named(tmp_path, victim, monkeypatch, directory=str(directory)).record.write(private=True)
    (tmp_path / "link").symlink_to(tmp_path)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    copied = commands.find(str(tmp_path / "copy"), None)
    with pytest.raises(ClusterError, match="names another user's job"):
        copied.kill(save=False, save_seconds=1, progress=print)
    assert victim.poll() is None
    linked = commands.find(str(tmp_path / "link" / "run"), None)
    linked.kill(save=False, save_seconds=1, progress=print)
    assert victim.wait(20) == -signal.SIGTERM


def test_a_run_that_howdah_train_has_continued_is_no_job_any_more(tmp_path, victim, capsys):
    letter(tmp_path, pid=victim.pid, start=1, submitted=1000.0)
    attempts = [
        {"attempt": 1, "started": "1970-01-01T00:20:00+00:00", "submission": "local-1"},
        {"attempt": 2, "started": "1970-01-01T00:30:00+00:00", "submission": None},
    ]
    for count, continued in ((1, False), (2, True)):
        run = {"run_id": "r", "status": "running", "attempts": attempts[:count]}
        (tmp_path / "run" / "run.json").write_text(json.dumps(run))
        status = commands._of_train(str(tmp_path / "run"), None)
        assert (status is not None) == continued
    lock = RunLock(str(tmp_path / "run"), ".lock", "run")
    lock.take()
    code = cli.run(lambda: cli.app(["kill", str(tmp_path / "run")], standalone_mode=False))
    lock.release()
    assert code == 2 and "belongs to a `howdah train`" in capsys.readouterr().err


def test_ps_shows_what_runs_here_whatever_the_cluster_says(tmp_path, monkeypatch, capsys):
    directory = tmp_path / "cache" / "jobs" / "local-1"
    directory.mkdir(parents=True)
    (directory / "application.json").write_text(json.dumps(letter(tmp_path)))
    conf = tmp_path / "conf"
    conf.mkdir()
    monkeypatch.setenv("HADOOP_CONF_DIR", str(conf))
    property_ = "<property><name>{}</name><value>{}</value></property>"
    property_ = f"<configuration>{property_}</configuration>"
    (conf / "core-site.xml").write_text(property_.format("fs.defaultFS", "hdfs://localhost:9"))

    def ps() -> tuple[int, str, str]:
        code = cli.run(lambda: cli.app(["ps", "--all"], standalone_mode=False))
        return code, *capsys.readouterr()

    code, out, _ = ps()  # HDFS alone
    assert code == 0 and "local-1" in out

    def away(*_, **__):
        raise ClusterError("the ResourceManager does not answer")

    monkeypatch.setattr(yarn_cluster, "listed", away)
    monkeypatch.setattr(yarn_cluster, "user_of", lambda manager: "me")
    (conf / "yarn-site.xml").write_text(
        property_.format("yarn.resourcemanager.webapp.address", "localhost:9")
    )
    code, out, err = ps()
    assert code == 5 and "local-1" in out and "does not answer" in err


def test_logs_of_another_directory_are_not_read(tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "driver.log").symlink_to("/etc/hostname")
    letter(tmp_path)
    with pytest.raises(ClusterError, match="names another user's job"):
        commands.find(str(tmp_path / "run"), None).container_logs(print)


def test_logs_do_not_follow_a_link(tmp_path):
    directory = tmp_path / "cache" / "jobs" / "local-1"
    directory.mkdir(parents=True)
    (directory / "driver.log").symlink_to("/etc/hostname")
    letter(tmp_path, directory=str(directory))
    job = commands.find(str(tmp_path / "run"), None)
    job.record.write(private=True)
    with pytest.raises(OSError, match="symbolic"):
        job.container_logs(print)


@pytest.mark.parametrize(
    "text", ["[]", "7", '{"application": 1}', '{"application": "local-1"}', "{", '{"start": null}']
)
def test_another_shape_is_said_and_ps_lists_the_others(tmp_path, text):
    fields = letter(tmp_path)
    good = tmp_path / "cache" / "jobs" / "local-1"
    bad = tmp_path / "cache" / "jobs" / "local-2"
    good.mkdir(parents=True)
    bad.mkdir()
    (good / "application.json").write_text(json.dumps(fields))
    (bad / "application.json").write_text(text)
    assert [one["application"] for one in listed(finished=True)] == ["local-1"]
    (tmp_path / "run" / "job" / "application.json").write_text(text)
    with pytest.raises(DataError, match=r"application\.json|JSON|malformed"):
        commands.find(str(tmp_path / "run"), None)


@pytest.mark.parametrize(("key", "value"), [("on", "slurm"), ("kind", "notebook")])
def test_a_record_of_an_unknown_cluster_or_kind_is_malformed(tmp_path, key, value):
    letter(tmp_path, **{key: value})
    with pytest.raises(DataError, match="is malformed") as caught:
        commands.find(str(tmp_path / "run"), None)
    assert key in caught.value.where and value in caught.value.got


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"state": "running", "step": "x", "total_steps": 5},
        {"state": "running", "loss": "high"},
        {"state": "running", "events": [{"what": "no time"}]},
        {"state": "running", "lines": [1]},
        {"state": "running", "ranks": [1]},
        {"state": "running", "ranks": [{"data": {"fetches": "x"}}]},
        {"state": "failed", "error": {"what": "x", "exit_code": "y"}},
        {"state": "running", "last_checkpoint": "step-3"},
    ],
)
def test_a_status_of_another_shape_is_said_and_ps_lists_the_others(tmp_path, status):
    fields = letter(tmp_path)
    for name in ("local-1", "local-2"):
        folder = tmp_path / "cache" / "jobs" / name
        folder.mkdir(parents=True)
        text = json.dumps({**fields, "application": name})
        (folder / "application.json").write_text(text)
    path = tmp_path / "run" / "job" / "status.json"
    path.write_text(json.dumps({"application": "local-1", **status}))
    states = {one["application"]: one["state"] for one in listed(finished=True)}
    assert states == {"local-1": "UNKNOWN", "local-2": "LOST"}
    job = commands.find(str(tmp_path / "run"), None)
    with pytest.raises(DataError, match=r"status\.json is malformed"):
        job.status()


def test_ps_reads_no_storage_of_jobs_that_have_ended(tmp_path, victim, monkeypatch):
    folder = tmp_path / "cache" / "jobs"
    for name, pid in (("local-1", 2**22 + 1), ("local-2", victim.pid)):
        fields = letter(
            tmp_path, application=name, pid=pid, start=process_start(pid) or 1,
            run_directory=str(tmp_path / name),
        )  # fmt: skip
        (folder / name).mkdir(parents=True)
        (folder / name / "application.json").write_text(json.dumps(fields))
    reads, read = [], record.read
    monkeypatch.setattr(record, "read", lambda path: reads.append(path) or read(path))
    listed(finished=False)
    assert reads == [str(tmp_path / "local-2")]
    listed(finished=True)
    assert len(reads) == 3


def test_ps_waits_once_and_briefly_for_a_storage_that_is_away(tmp_path, monkeypatch):
    folder = tmp_path / "cache" / "jobs"
    for number in (1, 2, 3):
        name, away = f"local-{number}", f"webhdfs://localhost:9/runs/{number}"
        fields = letter(tmp_path, application=name, pid=2**22 + 1, run_directory=away)
        (folder / name).mkdir(parents=True)
        (folder / name / "application.json").write_text(json.dumps(fields))
    lines = []
    monkeypatch.setattr(retry, "say", lines.append)
    assert [one["state"] for one in listed(finished=True)] == ["UNKNOWN"] * 3
    assert len(lines) == 1 and f"for up to {LISTING_SECONDS:.0f} s" in lines[0]


def test_a_file_beside_the_jobs_hides_none(tmp_path):
    fields = letter(tmp_path)
    folder = tmp_path / "cache" / "jobs" / "local-1"
    folder.mkdir(parents=True)
    (folder / "application.json").write_text(json.dumps(fields))
    (folder.parent / "README").write_text("what these directories are")
    assert [one["application"] for one in listed(finished=True)] == ["local-1"]


def test_a_record_writes_nowhere_that_it_points_to(tmp_path):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    letter(tmp_path, run_directory=str(tmp_path / "other"), application="")
    own_record = record.read(str(tmp_path / "run"))
    own_record.write()
    assert own_record.run_directory == str(tmp_path / "run")
    assert not (tmp_path / "other").exists() and list(theirs.iterdir()) == []


# ----------------------------------------------------------------------- another machine's job
def elsewhere(tmp_path, *, clock=0.0, age=0.0):
    """A job on another machine, whose clock is wrong, and whose status is so old."""
    now = time.time()
    letter(tmp_path, host="another", submitted=now + clock - 600)
    status = tmp_path / "run" / "job" / "status.json"
    status.write_text(
        json.dumps({"application": "local-1", "state": "running", "updated": now + clock})
    )
    os.utime(status, (now - age, now - age))
    return commands.find(str(tmp_path / "run"), None).record, status


@pytest.mark.parametrize("clock", [-3600.0, -130.0, 0.0, 3600.0])
def test_a_live_job_lives_whatever_its_machines_clock_says(tmp_path, clock):
    job, _ = elsewhere(tmp_path, clock=clock, age=2.0)
    assert job.driver_lives
    ours = Record.of_this_process(token="y", on="local", run_directory=job.run_directory)
    local = commands.cluster_of(
        "local", loader.from_dict({"run": {"directory": job.run_directory}})
    )
    assert Claims(local, lambda name: local).acquire(ours) == job


@pytest.mark.parametrize("clock", [-3600.0, 0.0, 3600.0])
def test_a_dead_job_is_dead_whatever_its_machines_clock_says(tmp_path, clock):
    job, _ = elsewhere(tmp_path, clock=clock, age=150.0)
    assert not job.driver_lives


def test_a_status_that_changes_is_of_a_live_job(tmp_path):
    job, status = elsewhere(tmp_path, age=150.0)
    assert not job.driver_lives
    fields = json.loads(status.read_text())
    status.write_text(json.dumps({**fields, "updated": fields["updated"] + 5}))
    os.utime(status, (1.0, 1.0))  # as a storage may show it that copies times
    assert job.driver_lives


# ------------------------------------------------------------------- a server's address on YARN
def test_health_follows_no_redirect_and_asks_http_alone(tmp_path):
    """Without tokens any user who may write the model's directory can set the address."""
    from howdah.yarn.server import _health

    good = b'{"status": "ready"}'
    answers = [(200, good), (302, good), (200, b"[" * 65536), (200, b'{"models": ["zoo"]}')]

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            status, body = answers[len(paths)]
            paths.append(self.path)
            self.send_response(status)
            self.send_header("Location", "/elsewhere/health")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words):
            pass

    (tmp_path / "health").write_text('{"status": "ready"}')
    paths = []
    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert _health(url) == {"status": "ready"}
        assert _health(url) is None  # moved
        assert _health(url) is None  # nested more deeply than Python reads
        assert _health(url) is None  # a model is an object
        server.shutdown()
    assert paths == ["/health"] * 4
    assert _health(f"file://{tmp_path}") is None
    assert _health("http://127.0.0.1:99999") is None
