"""Attempts in run.json: user, host, inputs, and how each ended."""

import copy
import datetime
import json
import os

import pytest

from howdah import storage
from howdah.config.loader import from_dict
from howdah.errors import DataError
from howdah.jobs.status.text import run_summary
from howdah.models.runs import record, run_json
from howdah.models.runs.identity import Identity
from howdah.models.runs.run_json import RunFile
from howdah.serving.registry.gate import finished_run
from howdah.serving.report import report

IDENTITY = Identity(
    base_model="weights",
    dataset="rows and replay",
    manifest="rows",
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
    monkeypatch.setattr(run_json, "utc_now", lambda: later)
    file.end("finished", None)
    run = storage.read_json(str(tmp_path / "run.json"))
    assert (run["dataset"], run["dataset_hash"], run["model_hash"]) == ("/d/v1", "rows", "weights")
    assert (run["status"], run["error"], run["finished"]) == ("finished", None, later)
    [attempt] = run["attempts"]
    assert (attempt["user"], attempt["ended"], attempt["seconds"]) == ("alice", later, 90.0)
    assert attempt["status"] == "finished"
    page = report.render(run, [], "")
    assert "/d/v1" in page and "alice on " in page and "finished after 1 min 30 s" in page


def test_an_end_written_again_by_the_launcher_keeps_its_time(tmp_path, monkeypatch):
    file = begun(str(tmp_path))
    file.end("failed", "the loss is not finite")
    ended = file.values["attempts"][0]["ended"]
    monkeypatch.setattr(run_json, "utc_now", lambda: "2999-01-01T00:00:00+00:00")
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


WHOLE = {
    "run_id": "a", "status": "finished", "base": {"source": "b"}, "versions": {"torch": "1"},
    "metrics": {
        "test": {
            "rows": 3, "loss": 1.0, "macro_f1": None, "labels": ["x", "y"],
            "confusion_matrix": [[1, 1], [0, 1]],
            "per_class": {
                name: {"precision": 1.0, "recall": 0.5, "f1": 0.7, "support": 2} for name in "xy"
            },
        }
    },
    "attempts": [{"attempt": 1, "dataset": "/d/v1"}],
}  # fmt: skip


def changed(*keys, to):
    """WHOLE with one value at a path of keys."""
    run = copy.deepcopy(WHOLE)
    at = run
    for key in keys[:-1]:
        at = at[key]
    at[keys[-1]] = to
    return run


@pytest.mark.parametrize(
    ("run", "field"),
    [
        (changed("metrics", to=5), "metrics"),
        (changed("metrics", "test", to=5), "metrics.test"),
        (changed("metrics", "test", "macro_f1", to="x"), "metrics.test.macro_f1"),
        (changed("metrics", "test", "loss", to=float("inf")), "metrics.test.loss"),
        (changed("metrics", "test", "labels", to=5), "metrics.test.labels"),
        (changed("metrics", "test", "labels", to=["y", "x"]), "metrics.test.per_class"),
        (changed("metrics", "test", "per_class", "x", to=5), "metrics.test.per_class.x"),
        (
            changed("metrics", "test", "per_class", to={"x": {}}),
            "metrics.test.per_class.x.precision",
        ),
        (changed("metrics", "test", "confusion_matrix", to=5), "metrics.test.confusion_matrix"),
        (changed("metrics", "test", "confusion_matrix", to=[[1]]), "metrics.test.confusion_matrix"),
        (changed("metrics", "test", "task", to="x"), "metrics.test.task"),
        (changed("base", to=5), "base"),
        (changed("dataset", to=5), "dataset"),
        (changed("versions", to=5), "versions"),
        (changed("attempts", to=5), "attempts"),
        (changed("attempts", 0, to=5), "attempts[0]"),
        (changed("hours", to={"cpu": "x"}), "hours.cpu"),
    ],
)
def test_a_run_json_of_another_shape_is_refused_by_its_field(tmp_path, run, field):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(run))
    for reader in (record.read, report.write, finished_run, run_summary):
        with pytest.raises(DataError, match=r"run\.json is (malformed|inconsistent)") as caught:
            reader(str(tmp_path))
        assert caught.value.where == f"{path}: {field}"
        assert caught.value.expected and caught.value.got and caught.value.remedy


def test_what_an_older_run_lacks_and_a_newer_one_has_more_is_fine(tmp_path):
    runs = [
        WHOLE, {}, {"metrics": None}, WHOLE | {"new": [5]}, changed("dataset", to=None),
        changed("metrics", "test", to={}), changed("metrics", "test", to={"loss": 1}),
    ]  # fmt: skip
    for run in runs:
        (tmp_path / "run.json").write_text(json.dumps(run))
        assert record.read(str(tmp_path)) == run
        assert os.path.exists(report.write(str(tmp_path)))


@pytest.mark.parametrize("body", ["5", "[]", "null"])
def test_a_run_json_that_is_no_object_is_refused(tmp_path, body):
    (tmp_path / "run.json").write_text(body)
    for reader in (record.read, report.write, finished_run, run_summary):
        with pytest.raises(DataError, match="no JSON object"):
            reader(str(tmp_path))
