"""The driver's files in the run directory: requests, the status, and a later attempt's run."""

import dataclasses
import json
import os
import threading

import pytest

from howdah import storage
from howdah.attempts import Attempt
from howdah.config.model import Config
from howdah.errors import UsageError
from howdah.jobs import record, secret_file
from howdah.jobs.status.claim import Claim, Superseded
from howdah.jobs.status.status_file import StatusFile, status_path
from howdah.training.checkpoint.fence import Fence
from howdah.yarn import spec
from howdah.yarn.skein_backend import SkeinDriver
from tests.support.waiting import wait_until

APP, LATER_APP = "application_1_0001", "application_1_0002"


class Driver:
    """A driver's status file, without its job."""

    def __init__(self, run, number=1, application=APP, started=100.0):
        self.run = run
        self.requests, self.lines, self.later, self.state = [], [], [], "running"
        self.claim = Claim(
            status_path(str(run)), application=application, number=number, started=started
        )
        self.open()

    def open(self):
        self.file = StatusFile(
            str(self.run),
            claim=self.claim,
            status=self.status,
            on_request=self.requests.append,
            say=self.lines.append,
            superseded=self.later.append,
        )

    def status(self):
        return {"state": self.state}

    def start(self):
        self.file.start()
        wait_until(lambda: self.on_storage().items() >= self.claim.attempt.to_dict().items())
        return self

    def on_storage(self):
        try:
            with open(status_path(str(self.run))) as file:
                return json.load(file)
        except FileNotFoundError:
            return {}

    def ask(self, name, data):
        folder = self.run / "job" / "requests"
        part = folder / f"{name}.part"
        part.write_bytes(data)
        part.rename(folder / name)
        return folder / name


def of(application, **request):
    return json.dumps({**request, "application": application}).encode()


@pytest.fixture
def driver(tmp_path):
    one = Driver(tmp_path / "run").start()
    yield one
    one.file.close(0.0, None)


# ------------------------------------------------------------------------------------ requests
@pytest.mark.parametrize(
    "data",
    [
        b"{half",
        b"[1, 2]",
        b"\xff\xfe\x00",
        b"",
        b"[" * 40_000,
        b'{"type": "' + b"x" * 10**6 + b'"}',
    ],
    ids=["half", "no object", "no text", "empty", "nested", "too large"],
)
def test_a_request_that_cannot_be_read_is_removed_and_said(driver, data):
    bad = driver.ask("1.json", data)
    driver.ask("2.json", of(APP, type="stop"))
    wait_until(lambda: driver.requests)
    assert driver.requests == [{"type": "stop"}]
    assert not bad.exists()
    words = "removed a request that cannot be read"
    assert [line for line in driver.lines if words in line and "1.json" in line]
    driver.state = "stopping"
    driver.file.touch()
    wait_until(lambda: driver.on_storage()["state"] == "stopping")
    assert driver.file.close(30.0, None)


def test_the_thread_survives_a_defect(driver):
    right, failed = driver.status, threading.Event()

    def broken():
        if not failed.is_set():
            failed.set()
            raise KeyError("a defect")
        return right()

    driver.file._status = broken
    driver.state = "later"
    driver.file.touch()
    wait_until(lambda: driver.on_storage()["state"] == "later")
    assert any("thread status-file failed: KeyError" in line for line in driver.lines)


def test_close_says_whether_the_last_status_was_written(driver):
    folder = driver.run / "job"
    folder.rename(driver.run / "moved")
    folder.write_text("a file where the directory was")
    driver.state = "over"
    assert not driver.file.close(3.0, ("failed", "x"))
    assert any("cannot be written or read" in line for line in driver.lines)
    assert "over" not in (driver.run / "moved" / "status.json").read_text()


def test_requests_for_an_application_before_are_not_carried_out(tmp_path):
    first = Driver(tmp_path / "run").start()
    first.file.close(30.0, None)
    first.ask("1.json", of(APP, type="stop"))
    second = Driver(tmp_path / "run", application=LATER_APP).start()
    second.ask("2.json", of(LATER_APP, type="scale"))
    wait_until(lambda: second.requests)
    assert second.requests == [{"type": "scale"}]
    second.file.close(30.0, None)


def test_a_request_that_came_before_its_driver_is_carried_out(tmp_path):
    folder = tmp_path / "run" / "job" / "requests"
    folder.mkdir(parents=True)
    for name, application in (("1.json", LATER_APP), ("2.json", APP), ("3.json", None)):
        text = json.dumps({"type": "stop", "save": name == "2.json", "application": application})
        (folder / name).write_text(text)
    (folder / "4.json").write_text("{half")
    one = Driver(tmp_path / "run").start()
    one.ask("5.json", of(APP, type="scale"))
    wait_until(lambda: len(one.requests) > 1)
    assert one.requests == [{"type": "stop", "save": True}, {"type": "scale"}]
    assert os.listdir(folder) == []
    one.file.close(30.0, None)


def test_a_request_for_another_application_is_not_carried_out(driver):
    late = driver.ask("1.json", json.dumps({"type": "stop", "application": LATER_APP}).encode())
    driver.ask("2.json", json.dumps({"type": "scale", "application": APP}).encode())
    wait_until(lambda: driver.requests)
    assert driver.requests == [{"type": "scale"}]
    assert not late.exists()
    assert any(LATER_APP in line and "1.json" in line for line in driver.lines)


def test_a_request_that_is_refused_is_said_with_what_was_wrong(driver):
    def refuse(request):
        raise UsageError("unknown request", got=str(request))

    driver.file._on_request = refuse
    driver.ask("1.json", of(APP, type="dance"))
    wait_until(lambda: driver.lines)
    assert driver.lines == ["a request was refused: unknown request ({'type': 'dance'})"]


def test_an_outage_and_its_end_are_an_event_each(driver):
    folder, moved = driver.run / "job", driver.run / "moved"
    for count in (1, 2):
        folder.rename(moved)
        folder.write_text("a file where the directory was")
        turns, right = [], driver.file._turn

        def turn(closing, touched, turns=turns, right=right):
            turns.append(True)
            return right(closing, touched)

        driver.file._turn = turn
        driver.file.touch()
        wait_until(lambda turns=turns: len(turns) > 3)
        assert len(driver.lines) == 2 * count - 1
        folder.unlink()
        moved.rename(folder)
        wait_until(lambda count=count: len(driver.lines) == 2 * count)
        assert driver.lines[-2].startswith("the run directory cannot be written or read: ")
        assert driver.lines[-1] == "the run directory can be written again"


def test_a_text_that_utf8_cannot_encode_is_written_and_read_back(driver):
    driver.state = "a row has \ud83d"
    (driver.run / "run.json").write_text('{"status": "running"}')
    assert driver.file.close(30.0, ("failed", driver.state))
    assert driver.on_storage()["state"] == driver.state
    assert json.loads((driver.run / "run.json").read_text())["error"] == driver.state


# ---------------------------------------------------------------------------- later attempts
def everything(run):
    return {path.relative_to(run): path.read_bytes() for path in run.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("number", "application"), [(2, APP), (1, LATER_APP)])
def test_a_driver_that_wakes_after_the_next_attempt_s_end_changes_nothing(
    tmp_path, number, application
):
    run = tmp_path / "run"
    zombie = Driver(run).start()
    zombie.file.close(30.0, None)  # as good as stopped
    # The clock of the later application's submitter is behind.
    later = Driver(run, number, application, started=50.0).start()
    Fence.take(str(run), of=later.claim.attempt)
    (run / "run.json").write_text('{"status": "finished", "metrics": {"test": {"accuracy": 0.9}}}')
    (run / "metrics.jsonl").write_text('{"step": 1}\n')
    later.state = "finished"
    assert later.file.close(30.0, None)
    zombie.ask("1.json", of(APP, type="stop"))
    before = everything(run)
    zombie.open()
    zombie.file.start()
    assert not zombie.file.close(30.0, ("failed", "its agents were silent"))
    assert everything(run) == before
    assert (len(zombie.later), zombie.requests) == (1, [])
    assert f"attempt {number} of {application}" in zombie.later[0].got


def test_a_driver_that_wakes_while_the_next_attempt_trains_ends(tmp_path):
    run = tmp_path / "run"
    zombie = Driver(run).start()
    later = Driver(run, 2).start()
    zombie.file.verify(30.0)
    assert isinstance(zombie.later[0], Superseded)
    assert not zombie.file.close(30.0, ("failed", "x"))
    assert later.on_storage()["application_attempt"] == 2
    assert later.file.close(30.0, None)


def test_an_attempt_that_comes_late_does_not_begin(tmp_path):
    Driver(tmp_path / "run", 2).start().file.close(30.0, None)
    with pytest.raises(Superseded, match="a later attempt"):
        Driver(tmp_path / "run", 1)


def test_the_cluster_s_own_files_count(tmp_path):
    later = []
    claim = Claim(
        status_path(str(tmp_path)), application=APP, number=1, started=1.0,
        superseded=lambda: later[0] if later else None,
    )  # fmt: skip
    claim.write(str(tmp_path / "yarn.json"), b"1")
    later.append(f"attempt 2 of {APP}")
    with pytest.raises(Superseded, match="attempt 2"):
        claim.check()


def test_on_yarn_a_later_driver_s_file_and_another_submission_s_claim_count(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CONTAINER_ID", "container_1_0001_01_000001")
    monkeypatch.setenv(spec.SUBMISSION, "ours")
    (tmp_path / spec.SECRET).write_text(secret_file.JobSecrets(secret="s" * 64).text())
    yarn = tmp_path / "run" / "job"
    yarn.mkdir(parents=True)
    owner = yarn / "application.json"
    ours = record.Record(token="ours", on="yarn", run_directory="run", submitted=17.5)
    owner.write_bytes(ours.as_json())
    backend = SkeinDriver(Config(run={"directory": str(tmp_path / "run")}))
    assert (backend.application, backend.attempt, backend.started) == (APP, 1, 17.5)
    (yarn / f"driver-{APP}-1.json").touch()
    (yarn / f"driver-{LATER_APP}-7.json").touch()  # left by another application
    assert backend.superseded() is None
    (yarn / f"driver-{APP}-2.json").touch()
    assert backend.superseded() == f"attempt 2 of {APP}"
    (yarn / f"driver-{APP}-2.json").unlink()
    theirs = dataclasses.replace(ours, token="theirs", application=LATER_APP, user="bob")
    owner.write_bytes(theirs.as_json())
    assert backend.superseded() == f"{LATER_APP}, submitted later by bob"
    owner.write_text("{half")
    assert backend.superseded() is None


@pytest.mark.parametrize("later", [None, Attempt(APP, 100.0, 2)], ids=["no cluster", "attempt 2"])
def test_the_run_of_a_later_attempt_is_not_closed(tmp_path, later):
    """Before the later one's driver has written a status: training's fence tells as much."""
    run = tmp_path / "run"
    one = Driver(run).start()
    Fence.take(str(run), of=one.claim.attempt)
    Fence.take(str(run), of=later)
    (run / "run.json").write_text('{"status": "running"}')
    assert one.file.close(30.0, ("failed", "x"))
    assert (run / "run.json").read_text() == '{"status": "running"}'


@pytest.mark.parametrize("held", [True, False])
def test_the_own_run_is_closed(tmp_path, held):
    run = tmp_path / "run"
    one = Driver(run, 2).start()
    Fence.take(str(run), of=Attempt(APP, 100.0, 1))
    if held:
        Fence.take(str(run), of=one.claim.attempt)
    (run / "run.json").write_text('{"status": "running", "run_id": "x"}')
    assert one.file.close(30.0, ("failed", "why"))
    run_file = json.loads((run / "run.json").read_text())
    assert run_file == {"status": "failed", "run_id": "x", "error": "why"}


def test_what_rank_0_writes_in_the_same_moment_stays(tmp_path, monkeypatch):
    run = tmp_path / "run"
    one = Driver(run).start()
    path = run / "run.json"
    path.write_text('{"status": "running"}')
    read_bytes = storage.read_bytes

    def read_and_then_it_changes(where):
        contents = read_bytes(where)
        if where == str(path):
            path.write_text('{"status": "finished"}')
        return contents

    monkeypatch.setattr(storage, "read_bytes", read_and_then_it_changes)
    assert one.file.close(30.0, ("failed", "x"))
    assert path.read_text() == '{"status": "finished"}'
