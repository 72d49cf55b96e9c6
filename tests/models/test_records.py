"""Records that a user has edited, or that a machine has damaged: which error names them."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from howdah.config.loader import from_dict
from howdah.errors import DataError, ModelError
from howdah.models import server_file
from howdah.models.profile.profile import PROFILE, read
from howdah.models.registry import VersionIdentity, decision_hash, identity
from howdah.models.runs.run_json import RunFile, git_state
from howdah.models.runs.settings import already_finished, of_finished

CONFIG = from_dict({"run": {"name": "a"}, "data": {"dataset": "x"}})


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"attempts": 5}, "attempts"),
        ({"attempts": ["x"]}, "attempts[0]"),
        ({"attempts": [{"usage": 5}]}, "attempts[0].usage"),
        ({"hours": 5}, "hours"),
        ({"hours": {"applications": 5}}, "hours.applications"),
    ],
)
def test_attempts_that_cannot_be_continued_are_named(tmp_path, body, field):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(body))
    with pytest.raises(DataError, match="is malformed") as caught:
        RunFile(str(tmp_path)).begin(CONFIG, world_size=1, attempt=2)
    assert caught.value.where == f"{path}: {field}"
    assert json.loads(path.read_text()) == body


@pytest.mark.parametrize("body", [{"attempts": None, "hours": None}, [], {}])
def test_a_record_without_attempts_gets_the_first(tmp_path, body):
    (tmp_path / "run.json").write_text(json.dumps(body))
    file = RunFile(str(tmp_path))
    assert not file.has_begun("s") and file.dataset_of("s") is None
    file.begin(CONFIG, world_size=1, attempt=1)
    assert len(file.values["attempts"]) == 1


@pytest.mark.parametrize("attempts", [5, "x", [5]])
def test_a_finished_run_whose_attempts_are_damaged_is_not_taken_for_finished(tmp_path, attempts):
    (tmp_path / "run.json").write_text(json.dumps({"status": "finished", "attempts": attempts}))
    config = CONFIG.model_copy(
        update={"run": CONFIG.run.model_copy(update={"directory": str(tmp_path)})}
    )
    assert already_finished(config) is None
    assert of_finished(config, on="local")["application"] is None


@pytest.mark.parametrize("decision", [5, "x", True, ["temperature"]])
def test_a_decision_that_is_not_an_object_has_no_identity(decision):
    assert decision_hash({"decision": decision}) is None


@pytest.mark.parametrize("started", [None, "yesterday", "2026-01-01T00:00:00"])
def test_an_attempt_without_a_time_of_its_beginning_has_no_seconds(tmp_path, started):
    (tmp_path / "run.json").write_text(json.dumps({"attempts": [{"started": started}]}))
    file = RunFile(str(tmp_path))
    file.end("failed", "killed")
    assert file.values["attempts"][0]["seconds"] is None and file.values["attempts"][0]["ended"]


def test_a_clock_that_was_set_back_gives_no_negative_hours(tmp_path):
    file = RunFile(str(tmp_path))
    file.begin(CONFIG, world_size=1, attempt=1)
    file.update_attempt(started="2999-01-01T00:00:00+00:00")
    assert file.values["hours"]["wall"] == 0.0
    file.end("finished", None)
    assert file.values["attempts"][0]["seconds"] == file.values["hours"]["wall"] == 0.0


def test_a_changed_file_whose_name_is_not_text_makes_the_checkout_dirty(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"caf\xe9.txt")
    (tmp_path / name).write_text("x")
    options = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init"], ["config", "core.quotePath", "false"], ["add", "."]):
        subprocess.run(["git", *command], check=True, capture_output=True)
    subprocess.run(["git", *options, "commit", "-m", "x"], check=True, capture_output=True)
    assert git_state()["dirty"] is False
    (tmp_path / name).write_text("y")
    state = git_state()
    assert state["dirty"] is True and len(state["commit"]) == 40


@pytest.mark.parametrize("body", ["", "[]", "{}", '{"value": 5, "seals": []}', '{"value": "x"}'])
def test_a_damaged_address_of_a_server_is_a_model_error_with_its_remedy(tmp_path, body):
    path = tmp_path / server_file.FILE
    path.write_text(body)
    with pytest.raises(ModelError) as caught:
        server_file.read(str(path), [])
    assert caught.value.where.startswith(str(path)) and "howdah kill" in caught.value.remedy


@pytest.mark.parametrize("body", ["", "[]", "{}"])
def test_a_damaged_profile_is_a_model_error_with_its_remedy(tmp_path, body):
    path = tmp_path / PROFILE
    path.write_text(body)
    with pytest.raises(ModelError) as caught:
        read(str(path))
    assert caught.value.where.startswith(str(path))
    assert "--make-reference" in caught.value.remedy


def test_an_export_and_a_record_of_it_have_the_same_identity():
    info = {"run_id": "a", "weights_sha256": "w", "decision": {"reject_below": 0.5, "rows": 3}}
    record = {**identity(info)._asdict(), "version": 3}
    assert VersionIdentity.of(record) == identity(info)
    other = identity(info | {"decision": {"reject_below": 0.6}})
    assert other != identity(info)
    assert other.without_decision == identity(info).without_decision
    assert identity({"run_id": "a"}) == ("a", None, None)
