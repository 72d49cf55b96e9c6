"""What form, date and installation ask of a day and of a retraining; the DAGs of both."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import yaml

from howdah.errors import ConfigError
from tests import ROOT
from tests.support.airflow.day_tasks import Hook, Ti, made

pytestmark = pytest.mark.airflow


def dated(date=None, events=()):
    from datetime import datetime

    extras = {"asset": [SimpleNamespace(extra=extra) for extra in events]} if events else {}
    run = SimpleNamespace(
        data_interval_start=date and datetime.fromisoformat(date), logical_date=None
    )
    return {"dag_run": run, "triggering_asset_events": extras}


def test_the_form_names_the_day_before_an_event_and_an_event_before_the_date():
    from howdah.airflow.daily.form import day_of

    event = {"howdah": {"data.partitions": {"ds": ["2026-11-02"]}}}
    where, pattern = dated("2026-11-03", [event]), "ds=%Y-%m-%d"
    assert day_of(where, pattern, "ds=x").partitions == ("ds=x",)
    assert day_of(where, pattern, None).partitions == ("ds=2026-11-02",)
    assert day_of(dated("2026-11-03", [{}]), pattern, None).name == "ds=2026-11-03"
    # At midnight UTC the day of Los Angeles is still open: the run is for the one before.
    west = day_of(dated("2026-11-03"), pattern, None, timezone="America/Los_Angeles", back=2)
    assert (west.name, west.since) == ("ds=2026-11-02", "ds=2026-10-31")
    east = day_of(dated("2026-11-03"), pattern, None, timezone="Asia/Tokyo", back=2)
    assert (east.name, east.since) == ("ds=2026-11-03", "ds=2026-11-01")
    with pytest.raises(ConfigError, match="day of this run"):
        day_of(dated(), pattern, None)


def test_what_is_asked_comes_from_the_form_and_the_installation(installed):
    from howdah.airflow.daily import days, form

    installed(
        data={"source": "news.texts", "format": "hive"},
        publish={"directory": "hdfs:///models", "name": "news"},
        daily={"ready": "/w/ds={ds}/_SUCCESS"},
    )
    day = days.Day(partitions=("ds=1",), by="the date")
    request = form.request({}, day, "/runs/r")
    assert (request["source"], request["output"]) == ("news.texts", "news.texts_scored")
    assert (request["model"], request["wait"]) == ("hdfs:///models/news", True)
    files = form.request({"source": "/in/{ds}.csv"}, day, "/runs/r")
    assert (files["source"], files["output"]) == ("/in/1.csv", "/runs/r/predictions.parquet")


def test_the_policy_judges_what_differs_from_the_installation(installed):
    from howdah.airflow.daily import form
    from howdah.policy.check import Judge
    from howdah.policy.rules import from_dict

    sections = {
        "data": {"source": "news.texts", "format": "hive"},
        "publish": {"directory": "/srv/models", "name": "m"},
    }
    installed(**sections)
    # As HowdahHook.policy: the installation's defaults are allowed.
    judge = Judge(from_dict({"tables": ["news.*"], "defaults": sections}))
    good = {"partition": "ds=1", "model": "/srv/models/m", "source": "news.other", "output": None}
    form.check(good, judge)
    bad = {"model": "/etc/x", "source": "hr.pay", "output": "hr.out", "conn_id": "c", "x": 1}
    with pytest.raises(ConfigError) as caught:
        form.check(bad, judge)
    message = str(caught.value)
    for part in ("unknown key 'x'", "model is refused", "source is refused", "output is refused"):
        assert part in message


def test_a_retraining_gets_the_days_rows_and_begins_from_the_version_of_its_first_try(
    installed, context, monkeypatch
):
    from howdah.airflow.daily import retraining

    kept = {}
    variable = SimpleNamespace(
        get=lambda key, **more: kept.get(key),
        set=lambda key, value, **more: kept.update({key: value}),
    )
    monkeypatch.setattr(retraining, "Variable", variable)
    installed(
        data={"source": "news.labelled", "format": "hive", "dataset": "/sets/news"},
        publish={"directory": "/models", "name": "news"},
        daily={"retrain": {"cooldown_hours": 5}},
    )
    published = {"model": "/models/news", "current": {"version": 7}}
    hook = Hook(
        published, {**published, "current": {"version": 8}}, {"model": "m", "current": None}
    )

    waits = []

    def decided(sent):
        task = made(retraining.CheckRetrainOperator, hook)
        decision = task.decided({**context, **dated("2026-11-01")}, sent)
        waits.append(task._awaited)
        return decision

    first = decided({"partition": None, "source": None})
    assert first == {
        "data.append.enabled": True, "data.source": "news.labelled",
        "data.partitions": {"ds": ["2026-11-01"]}, "data.append.frozen": ["test"],
        "gate.better_than_published": True, "model.init_from": "/models/news@7",
    }  # fmt: skip
    assert decided({})["model.init_from"] == "/models/news@7"  # its own publication made 8 current
    context["task_state_store"].clear()
    hook.answers.pop(0)
    assert "model.init_from" not in decided({"gate.better_than_published": False})
    files = decided({"source": "/in/{ds}.csv", "partition": "a=b/ds=3"})
    assert (files["data.source"], files["data.append.part"]) == ("/in/3.csv", "a=b,ds=3")
    assert files["data.format"] == "auto" and "data.partitions" not in files
    # Waited for is the day of the run's date, not one that the form names.
    table = {"source": "news.labelled", "partitions": ["ds=2026-11-01"], "ready": None}
    assert waits[0] == {**table, "wait": True}
    assert (waits[-1]["source"], waits[-1]["wait"]) == ("/in/{ds}.csv", False)

    # An alarm right after is skipped; one of this very run, tried again, is not.
    task = made(retraining.CheckRetrainOperator, hook)
    from howdah.airflow.assets import DATA, DRIFT

    later = SimpleNamespace(**{**vars(Ti), "run_id": "later"})
    assert task._cooling({"triggering_asset_events": {DRIFT: []}, "ti": later}) is not None
    assert task._cooling({"triggering_asset_events": {DRIFT: []}, "ti": Ti()}) is None
    assert task._cooling({"triggering_asset_events": {DRIFT: [], DATA: []}, "ti": later}) is None
    assert task._cooling({"triggering_asset_events": {}, "ti": later}) is None


def test_the_dags_are_wired_as_their_pages_say(installed):
    import runpy

    from airflow.sdk import AssetOrTimeSchedule

    installed(daily={"retrain": {"after": ["drift", "data"], "schedule": "0 0 * * *"}})
    daily = runpy.run_path(str(ROOT / "dags" / "daily.py"))["dag"]
    order = [task.task_id for task in daily.topological_sort()]
    assert order == ["check", "partition", "score", "drift", "alarm", "notify"]
    assert [a.name for a in daily.get_task("alarm").outlets] == ["howdah_drift"]
    assert isinstance(daily.timetable, AssetOrTimeSchedule)
    retrain = runpy.run_path(str(ROOT / "dags" / "retrain.py"))["dag"]
    order = [task.task_id for task in retrain.topological_sort()]
    assert order == [
        "turn", "check", "partition", "preflight", "etl.build", "etl.quality", "train", "evaluate",
        "gate", "approve", "publish", "teardown",
    ]  # fmt: skip
    assert retrain.max_active_runs == 1 and not retrain.catchup
    assert isinstance(retrain.timetable, AssetOrTimeSchedule)
    for dag in (daily, retrain):
        dag.params.validate()
        assert all(task.on_failure_callback for task in dag.tasks)


def test_commands_may_touch_what_the_installations_days_name(
    installed, hook, tmp_path, monkeypatch
):
    """The policy that the hook hands to commands, read back as they read it."""
    from howdah.policy import rules
    from howdah.policy.check import Judge

    monkeypatch.setenv("HOWDAH_AIRFLOW_POLICY", str(tmp_path / "policy.yaml"))
    (tmp_path / "policy.yaml").write_text("tables: [shop.*]\n")
    publish = {"directory": "models", "name": "news"}
    installed(data={"source": "news.texts", "format": "hive"}, publish=publish)
    text = rules.to_yaml(hook().policy)
    judge = Judge(rules.from_dict(yaml.safe_load(text)))

    def refused(kind, value):
        return bool(list(judge.value("--x", kind, value)))

    assert not refused("table", "news.texts") and not refused("table", "news.texts_scored")
    assert not refused("table", "shop.x") and refused("table", "news.other")
    # publish.directory is relative: to the directory of the Connection's commands.
    assert not refused("model", f"{tmp_path}/models/news") and refused("model", "/srv/models/news")
