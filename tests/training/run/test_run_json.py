"""What run.json says of attempts: who, where, of what, and how each ended."""

import datetime

from howdah import storage
from howdah.config.loader import from_dict
from training.checkpoint.identity import Identity
from training.evaluation import report
from training.run import run_json
from training.run.run_json import RunFile

IDENTITY = Identity(
    base_model="weights",
    dataset="rows",
    tokenizer="t",
    labels=("x",),
    plan="p",
    dataset_path="/d/v1",
)


def begun(directory, attempt=1):
    file = RunFile(directory)
    config = from_dict({"run": {"directory": directory}})
    file.begin(config, world_size=2, attempt=attempt)
    return file


def test_an_attempt_has_a_user_and_an_end(tmp_path, monkeypatch):
    monkeypatch.setenv("LOGNAME", "alice")
    file = begun(str(tmp_path))
    file.of(IDENTITY)
    began = datetime.datetime.fromisoformat(file.values["attempts"][0]["started"])
    later = (began + datetime.timedelta(seconds=90)).isoformat()
    monkeypatch.setattr(run_json, "_now", lambda: later)
    file.end("finished", None)
    run = storage.read_json(str(tmp_path / "run.json"))
    assert (run["dataset"], run["dataset_hash"], run["model_hash"]) == ("/d/v1", "rows", "weights")
    assert (run["status"], run["error"], run["finished"]) == ("finished", None, later)
    [attempt] = run["attempts"]
    assert (attempt["user"], attempt["ended"], attempt["seconds"]) == ("alice", later, 90.0)
    assert attempt["status"] == "finished"
    page = report.render(run, [], "")
    assert "/d/v1" in page and "alice on " in page and "finished after 90 s" in page


def test_an_end_written_again_by_the_launcher_keeps_its_time(tmp_path, monkeypatch):
    file = begun(str(tmp_path))
    file.end("failed", "the loss is not finite")
    ended = file.values["attempts"][0]["ended"]
    monkeypatch.setattr(run_json, "_now", lambda: "2999-01-01T00:00:00+00:00")
    launcher = RunFile(str(tmp_path))
    launcher.end("interrupted", "stopped")
    assert launcher.values["attempts"][0]["ended"] == ended
    assert (launcher.values["status"], launcher.values["error"]) == ("interrupted", "stopped")
    assert "finished" not in launcher.values


def test_a_killed_attempt_has_no_end_and_the_page_says_so(tmp_path):
    begun(str(tmp_path))
    file = begun(str(tmp_path), attempt=2)
    file.end("finished", None)
    first, second = file.values["attempts"]
    assert "ended" not in first and second["status"] == "finished"
    page = report.render(file.values, [], "")
    assert "no end on record" in page


def test_a_container_without_a_name_for_its_user_gives_a_number(tmp_path, monkeypatch):
    def none():
        raise KeyError("getpwuid(): uid not found: 4711")

    monkeypatch.setattr("getpass.getuser", none)
    monkeypatch.setattr("os.getuid", lambda: 4711)
    assert begun(str(tmp_path)).values["attempts"][0]["user"] == "4711"
