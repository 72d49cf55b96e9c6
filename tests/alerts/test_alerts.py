"""Alerts reach a real command, once an event, and never fail what they report."""

import json
import os
import subprocess
import sys

import pytest

from howdah import alerts, storage
from howdah.config.loader import from_dict, load
from howdah.errors import (
    CheckFailed,
    ConfigError,
    DataError,
    Interrupted,
    StorageFull,
    StorageUnavailable,
    Terminated,
    UsageError,
)
from howdah.policy import rules as policies
from howdah.policy.check import Judge
from howdah.storage import retry
from tests import ROOT
from tests.alerts.receiver import receiving
from tests.runs.jobs.cluster_jobs import runs
from tests.support.waiting import wait_until


def config_of(tmp_path, **section):
    return from_dict(
        {"run": {"name": "zoo", "directory": str(tmp_path / "run")},
         "publish": {"directory": str(tmp_path / "models")}, "alerts": section}
    )  # fmt: skip


@pytest.fixture
def lines():
    return []


def test_a_command_gets_one_object_for_each_event(tmp_path, lines):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text(json.dumps({"run_id": "zoo-1"}))
    with receiving() as receiver:
        config = config_of(tmp_path, command=receiver.command)
        error = DataError("a shard is truncated", where="a.tfrecord", got="password=hunter2")
        alerts.of_error(config, "train", error, say=lines.append)
        alerts.of_error(config, "train", error, say=lines.append)  # the retry fails the same way
        alerts.of_error(config, "train", DataError("another fault"), say=lines.append)
        first, second = receiver.alerts
    assert (first["kind"], first["what"]) == ("failure", "a shard is truncated")
    assert first["where"] == "a.tfrecord"
    assert first["run"] == {"name": "zoo", "directory": str(tmp_path / "run"), "id": "zoo-1"}
    assert first["error"]["exit_code"] == 3
    assert "hunter2" not in json.dumps(first)
    assert second["what"] == "another fault"
    assert len(os.listdir(tmp_path / "run" / "alerts")) == 2
    assert [line for line in lines if line.startswith("alert sent")]


def test_an_alert_waits_for_a_storage_that_is_away_only_shortly(tmp_path, lines, monkeypatch):
    """It may be what the alert is about: a driver's storage is retried for half an hour."""
    monkeypatch.setenv(retry.ENVIRONMENT, "1800")
    limits = []

    def away(*_, **__):
        limits.append(retry.limit_seconds())
        raise StorageUnavailable("no answer")

    with receiving() as receiver:
        config = config_of(tmp_path, command=receiver.command)
        for name in ("read_json", "make_dirs", "exists", "is_dir"):
            monkeypatch.setattr(storage, name, away)
        assert alerts.run_error(config) is None
        alerts.low_disk(config, say=lines.append)
        alerts.succeeded(config, "train", say=lines.append)
        alerts.of_error(config, "train", StorageUnavailable("no answer"), say=lines.append)
        assert [one["what"] for one in receiver.alerts] == ["no answer"]
    assert len(limits) == 5 and max(limits) <= 10
    assert retry.limit_seconds() == 1800


KINDS = [
    (DataError("x"), "train", "failure"),
    (StorageFull("x"), "train", "disk"),
    (CheckFailed("x"), "gate", "gate"),
    (CheckFailed("x"), "publish", "gate"),
    (CheckFailed("x"), "drift", "drift"),
    (CheckFailed("x"), "score", "drift"),
    (RuntimeError("x"), "etl", "failure"),
    (UsageError("x"), "train", None),
    (Interrupted("x"), "train", None),
    (Terminated("x"), "train", None),
    (KeyboardInterrupt(), "train", None),
]


def test_a_command_without_a_run_tells_two_days_apart_and_an_old_event_is_news(tmp_path, lines):
    """`howdah etl` has no run.json: without what it found, two nights would be one event."""

    def fails(day: str) -> None:
        error = DataError("the table has no such partition", where="data.partitions", got=day)
        alerts.of_error(config, "etl", error, say=lines.append)

    with receiving() as receiver:
        config = config_of(tmp_path, command=receiver.command)
        fails("ds=2026-11-01")
        fails("ds=2026-11-01")  # a retry
        fails("ds=2026-11-02")
        assert [one["error"]["got"] for one in receiver.alerts] == [
            "ds=2026-11-01",
            "ds=2026-11-02",
        ]
        markers = tmp_path / "run" / "alerts"
        for marker in markers.iterdir():
            old = marker.stat().st_mtime - 13 * 3600
            os.utime(marker, (old, old))
        fails("ds=2026-11-01")
        assert len(receiver.alerts) == 3
        fails("ds=2026-11-01")
        assert len(receiver.alerts) == 3


def test_a_success_in_between_makes_the_next_failure_news(tmp_path, lines):
    with receiving() as receiver:
        config = config_of(tmp_path, command=receiver.command)
        for command in ("etl", "score"):
            alerts.of_error(config, command, DataError("too many rows"), say=lines.append)
        alerts.of_error(config, "drift", CheckFailed("moved"), say=lines.append)
        alerts.succeeded(config, "etl", say=lines.append)
        alerts.succeeded(config, "drift", say=lines.append)
        for command in ("etl", "score"):
            alerts.of_error(config, command, DataError("too many rows"), say=lines.append)
        alerts.of_error(config, "drift", CheckFailed("moved"), say=lines.append)
        commands = [one["command"].split()[1] for one in receiver.alerts]
    # `score` has not succeeded: its failure is the same event.
    assert commands == ["etl", "score", "drift", "etl", "drift"]


@pytest.mark.parametrize(("error", "command", "kind"), KINDS)
def test_what_kind_of_alert_an_error_is(error, command, kind):
    assert alerts.kind_of(error, command) == kind


def test_kinds_that_are_not_asked_for_are_not_sent(tmp_path, lines):
    with receiving() as receiver:
        config = config_of(tmp_path, command=receiver.command, on=["drift"])
        alerts.of_error(config, "train", DataError("x"), say=lines.append)
        alerts.of_error(config, "drift", CheckFailed("moved", where="t/ds=1"), say=lines.append)
        assert [alert["kind"] for alert in receiver.alerts] == ["drift"]
    assert os.listdir(tmp_path / "models" / "zoo" / "alerts")  # a model's, not a run's


def test_a_command_that_hangs_is_killed_with_what_it_started(tmp_path, lines, monkeypatch):
    monkeypatch.setattr(alerts, "_TIMEOUT_SECONDS", 3)
    script = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "open(sys.argv[1], 'w').write(f'{os.getpid()} {child.pid}')\n"
        "time.sleep(600)\n"
    )
    pids = tmp_path / "pids"
    config = config_of(tmp_path, command=[sys.executable, "-c", script, str(pids)])
    assert not alerts.send(config, "failure", "x", say=lines.append)
    for pid in pids.read_text().split():
        # A killed process is there for a moment; an orphan may wait for init to collect it.
        wait_until(lambda pid=pid: not runs(int(pid)))
    assert "took longer" in lines[-1]


def test_commands_that_fail_or_are_missing_are_lines(tmp_path, lines):
    failing = [sys.executable, "-c", "import sys; sys.exit('no route to the pager')"]
    assert not alerts.send(config_of(tmp_path, command=failing), "failure", "x", say=lines.append)
    assert "no route to the pager" in lines[-1]
    assert not os.listdir(tmp_path / "run" / "alerts")  # the next attempt sends it
    missing = config_of(tmp_path, command=["/no/such/program"])
    assert not alerts.send(missing, "failure", "y", say=lines.append)
    assert "/no/such/program" in lines[-1]


def test_without_room_for_the_marker_it_is_sent_all_the_same(tmp_path, lines):
    (tmp_path / "run").write_text("a file where the directory would be")
    with receiving() as receiver:
        config = config_of(tmp_path, command=receiver.command)
        assert alerts.send(config, "disk", "full", say=lines.append)
        assert len(receiver.alerts) == 1
    assert "may be sent again" in lines[0]


def test_a_disk_that_fills_up_is_said_once(tmp_path, lines, monkeypatch):
    monkeypatch.setattr(alerts, "_LEAST_FREE_BYTES", 900 * 2**40)
    with receiving() as receiver:
        config = config_of(tmp_path, command=receiver.command)
        alerts.low_disk(config, say=lines.append)
        alerts.low_disk(config, say=lines.append)
        assert [alert["kind"] for alert in receiver.alerts] == ["disk"]
        with monkeypatch.context() as roomy:
            roomy.setattr(alerts, "_LEAST_FREE_BYTES", 1)
            alerts.low_disk(config, say=lines.append)
        assert len(receiver.alerts) == 1
        alerts.low_disk(config, say=lines.append)  # there was room in between
        assert len(receiver.alerts) == 2


@pytest.mark.parametrize(
    "section",
    [
        {"command": []},
        {"on": ["everything"]},
    ],
)
def test_what_the_section_refuses(section):
    with pytest.raises(ConfigError) as caught:
        from_dict({"alerts": section})
    assert "alerts" in str(caught.value)


def test_users_of_a_form_may_not_say_where_alerts_go():
    judge = Judge(policies.from_dict({"keys": ["*"], "roots": ["*"]}), env={})
    problems = list(judge.config(load(None, ['alerts.command=["sh","-c","id"]'])))
    assert any("where alerts go" in problem.what for problem in problems)
    base = {"alerts": {"command": ["/opt/page"]}}
    judge = Judge(policies.from_dict({"keys": ["*"], "roots": ["*"], "defaults": base}), env={})
    assert not list(judge.config(from_dict(base)))
    assert list(judge.config(load(None, [])))  # nor take the installation's away


def howdah(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "howdah.cli", *arguments], cwd=ROOT, capture_output=True, text=True
    )


def test_commands_alert_at_their_end_and_keep_their_exit_code(tmp_path):
    with receiving() as receiver:
        run = tmp_path / "run.yaml"
        run.write_text(
            json.dumps(
                {"run": {"name": "zoo", "directory": str(tmp_path / "run")},
                 "publish": {"directory": str(tmp_path / "models")},
                 "alerts": {"command": receiver.command}}
            )
        )  # fmt: skip
        done = howdah("gate", "--config", str(run), "--json")
        assert done.returncode == 4, done.stderr
        assert json.loads(done.stdout)["error"] == "ModelError"
        alert = receiver.wait()[0]
        assert (alert["kind"], alert["command"]) == ("failure", "howdah gate")
        assert howdah("gate", "--config", str(run)).returncode == 4
        assert howdah("gate", "--no-such-option").returncode == 2
        assert len(receiver.alerts) == 1
    missing = ["--set", "alerts.command=[/no/such/program]"]
    done = howdah(
        "gate", "--config", str(run), "--set", f"run.directory={tmp_path}/other", *missing
    )
    assert done.returncode == 4
    assert "the alert did not reach the command" in done.stderr
