"""The tasks of a day one by one: a hook that answers as `howdah` does stands in for commands."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest
import yaml

from howdah.airflow.runner.runners import CommandResult
from howdah.errors import ConfigError
from tests import ROOT

pytestmark = pytest.mark.airflow

CONFIG = {"run": {"name": "words"}}
SCORED = {
    "model": "/models/words", "version": 3, "output": "db.scored", "source": "db.t",
    "files": False, "partitions": [{"partition": "ds=1"}, {"partition": "ds=2"}],
}  # fmt: skip
ALARM = {
    "error": "CheckFailed", "what": "drift: 1 column has moved", "exit_code": 1,
    "problems": [{"error": "HowdahError", "what": "PSI of lengths", "where": "length"}],
}  # fmt: skip
QUIET = {"state": "ok", "alarms": []}


class Hook:
    """Answers commands in turn; `.asked` has them."""

    def __init__(self, *answers, **settings):
        from howdah.airflow.runner.settings import from_extra

        self.answers, self.asked, self.conn_id = list(answers), [], "test"
        self.settings = from_extra(settings, "test")
        self.run_root = "/runs"

    def call(self, arguments, **more):
        self.asked.append(list(arguments))
        answer = self.answers.pop(0)
        return CommandResult(answer.get("exit_code", 0), answer, ())

    def run(self, arguments, **more):
        from howdah.airflow import failures

        done = self.call(arguments)
        if done.code:
            raise failures.failed(done.result, done.code)
        return done.result

    def error_of(self, arguments, done):
        return done.result

    @property
    def log(self):
        import logging

        return logging.getLogger("hook")


class Ti:
    """A task instance as far as these operators ask it."""

    dag_id, run_id, task_id, map_index, log_url = "d", "r", "t", -1, "http://log"

    def __init__(self):
        self.xcoms = {}

    def xcom_push(self, key, value):
        self.xcoms[key] = value


class Store(dict):
    """A task's state."""

    def set(self, key, value):
        self[key] = value

    def delete(self, key):
        self.pop(key, None)


@pytest.fixture
def context(monkeypatch):
    from howdah.airflow import links

    monkeypatch.setattr(links, "push", lambda where, link, url: None)
    following = SimpleNamespace(get_flat_relatives=lambda upstream: [])
    return {"ti": Ti(), "task": following, "task_state_store": Store(), "params": {}}


def made(kind, hook, **more):
    operator = kind(task_id="t", config=CONFIG, **more)
    operator._hook = hook
    return operator


# ------------------------------------------------------------------------------------------ drift
def drift(hook, context, scored=SCORED):
    from howdah.airflow.daily.operators import DriftOperator

    task = made(DriftOperator, hook, scored=scored, model="/models/words", directory="/runs/d/r")
    skipped = []
    task.skip = lambda ti, tasks: skipped.append(tasks)
    return task.execute(context), skipped


def test_an_alarm_goes_on_and_names_partitions_columns_and_page(context):
    hook = Hook(QUIET, ALARM, files_url="http://files")
    result, skipped = drift(hook, context)
    assert not skipped
    assert (result["alarm"], result["columns"], result["version"]) == (True, ["length"], 3)
    assert [each["state"] for each in result["partitions"]] == ["ok", "alarm"]
    assert result["page"] == "http://files/d/r/drift/ds%3D2/drift.html"
    assert hook.asked[1][3:7] == ["--table", "db.scored", "--partition", "ds=2"]


def test_without_an_alarm_what_follows_is_skipped_and_the_result_is_kept(context):
    hook = Hook(QUIET, {"state": "too few rows", "alarms": []})
    _, skipped = drift(hook, context)
    assert len(skipped) == 1
    kept = context["ti"].xcoms["return_value"]
    assert kept["alarm"] is False
    assert [each["state"] for each in kept["partitions"]] == ["ok", "too few rows"]


def test_a_failure_of_drift_is_no_alarm(context):
    from howdah.airflow.failures import HowdahCommandRefused

    refused = {"error": "ModelError", "what": "the model has no profile", "exit_code": 4}
    with pytest.raises(HowdahCommandRefused, match="no profile"):
        drift(Hook(refused), context)
    # A crash exits with 1 as well.
    with pytest.raises(Exception, match="crashed") as caught:
        drift(Hook({"what": "it crashed", "exit_code": 1}), context)
    assert not isinstance(caught.value, HowdahCommandRefused)


def test_files_are_scored_by_predict_and_judged_by_their_texts(context):
    from howdah.airflow.daily.operators import ScoreOperator

    hook = Hook({"run_id": "r1", "version": 3, "rows": 5, "errors": 1}, QUIET)
    task = made(
        ScoreOperator,
        hook,
        model="/m",
        source="/in/1.csv",
        partitions=["ds=1"],
        target="/out.parquet",
    )
    scored = task.execute(context)
    assert scored["rows"] == 5 and scored["partitions"][0]["state"] == "scored"
    assert hook.asked[0][0] == "predict" and "--overwrite" in hook.asked[0]
    drift(hook, context, scored)
    # ... by the version that scored them, whichever is current by then.
    assert hook.asked[1][1:5] == ["--model", "/models/words/v=3", "--source", "/in/1.csv"]


def test_a_tables_partitions_are_scored_in_one_command(context):
    from howdah.airflow.daily.operators import ScoreOperator

    answer = {"version": 3, "run_id": "r", "partitions": [
        {"partition": "ds=1", "state": "skipped", "rows": 4, "errors": 0, "seconds": 1},
        {"partition": "ds=2", "state": "scored", "rows": 6, "errors": 1, "labels": {}},
    ]}  # fmt: skip
    hook = Hook(answer)
    task = made(
        ScoreOperator, hook, model="/m", source="db.t", partitions=["ds=1", "ds=2"],
        target="db.scored", force="True",
    )  # fmt: skip
    scored = task.execute(context)
    assert (scored["rows"], scored["version"]) == (10, 3)
    assert hook.asked == [[
        "score", "--model", "/m", "--source", "db.t", "--output", "db.scored", "--partition",
        "ds=1", "--partition", "ds=2", "--drift", "--force", "--json",
    ]]  # fmt: skip
    touched = task.lineage()
    assert touched.outputs[0].rows == 10 and touched.facts["version"] == "3"


# ------------------------------------------------------------------------------------------ alarm
def test_the_alarms_event_names_the_day_for_the_retraining(context):
    from howdah.airflow.assets import DRIFT
    from howdah.airflow.daily import days
    from howdah.airflow.daily.operators import AlarmOperator

    judged, _ = drift(Hook(ALARM, QUIET), context)
    events = {DRIFT: SimpleNamespace(extra=None)}
    task = made(AlarmOperator, Hook(), judged=judged, outlets=[DRIFT])
    extra = task.execute({**context, "outlet_events": events})
    assert events[DRIFT].extra == extra
    assert extra["partitions"] == ["ds=1"] and extra["columns"] == ["length"]
    assert days.of_events([extra]) == ["ds=1"]
    json.dumps(extra)


# --------------------------------------------------------------------------------------- notifiers
SENT: list[dict] = []


def notifier_class():
    from airflow.sdk import BaseNotifier

    class Recorder(BaseNotifier):
        template_fields = ("message",)

        def __init__(self, message="", broken=False):
            super().__init__()
            self.message, self.broken = message, broken

        def notify(self, context):
            if self.broken:
                raise OSError("the chat is away")
            SENT.append({"message": self.message, "event": context["howdah"]["event"]})

    return Recorder


@pytest.fixture
def recorder(monkeypatch):
    """A notifier that can be imported as airflow.providers.pretend.Recorder."""
    import sys
    from types import ModuleType

    SENT.clear()
    module = ModuleType("airflow.providers.pretend")
    module.Recorder, module.NoNotifier = notifier_class(), int
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return "airflow.providers.pretend.Recorder"


def test_notifiers_render_their_templates_and_one_that_fails_stops_no_other(context, recorder):
    from howdah.airflow.alerts import notifiers

    message = "{{ howdah.what }} by {{ ti.task_id }}"
    hook = Hook(notifiers=[
        {"path": recorder, "arguments": {"broken": True}},
        {"path": recorder, "arguments": {"message": message}},
        {"path": recorder, "events": ["failure"]},
    ])  # fmt: skip
    about = {"event": "drift", "what": "it moved"}
    with pytest.raises(notifiers.NotSent, match="the chat is away"):
        notifiers.notify(hook, "drift", context, about)
    assert SENT == [{"message": "it moved by t", "event": "drift"}]


def test_the_installations_policy_decides_which_notifiers_may_be_named(
    context, recorder, tmp_path, monkeypatch
):
    from howdah.airflow.alerts import notifiers

    monkeypatch.setenv("HOWDAH_AIRFLOW_POLICY", str(tmp_path / "policy.yaml"))
    (tmp_path / "policy.yaml").write_text("{}\n")
    wrong = [
        {"path": "os.system"}, {"path": "airflow.providers.pretend.NoNotifier"},
        {"path": recorder, "arguments": {"massage": "x"}},
    ]  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        notifiers.made(Hook(notifiers=wrong), "drift")
    said = str(caught.value)
    for part in ("rule `notifiers`", "os.system", "no notifier", "massage"):
        assert part in said
    assert len(notifiers.made(Hook(notifiers=[{"path": recorder}]), "drift")) == 1
    (tmp_path / "policy.yaml").write_text("notifiers: [my.chat.Tell]\n")
    with pytest.raises(ConfigError, match="rule `notifiers`"):
        notifiers.made(Hook(notifiers=[{"path": recorder}]), "drift")


def test_a_failed_task_informs_and_a_failing_notifier_raises_nothing(
    context, recorder, connection, caplog
):
    from howdah.airflow.alerts import callbacks

    listed = [{"path": recorder, "arguments": {"message": "{{ howdah.what }}"}}]
    connection("howdah_informs", {"notifiers": listed})
    task = SimpleNamespace(conn_id="howdah_informs")
    error = RuntimeError("no space left\nmore")
    callbacks.task_failed({**context, "task": task, "exception": error})
    assert SENT == [{"message": "d.t has failed: no space left", "event": "failure"}]

    listed[0]["arguments"] = {"broken": True}
    connection("howdah_informs", {"notifiers": listed})
    callbacks.task_failed({**context, "task": task, "exception": error})
    assert len(SENT) == 1
    # A field that was not rendered: the param.
    task = SimpleNamespace(conn_id="{{ params.conn_id }}")
    assert callbacks.connection_of({"task": task, "params": {"conn_id": "x"}}) == "x"


# -------------------------------------------------------------------------------------- the sensor
MISSING = {"there": False, "missing": ["ds=1"]}
THERE = {"there": True, "missing": []}
AWAY = {"error": "ClusterError", "what": "the metastore is away", "exit_code": 5}
NO_TABLE = {"error": "DataError", "what": "there is no such table", "exit_code": 3}


def sensor(hook, **more):
    from howdah.airflow.daily.sensor import PartitionSensor

    return made(PartitionSensor, hook, partitions=["ds=1"], source="db.t", **more)


def test_a_partition_that_is_there_is_not_waited_for(context):
    assert sensor(Hook(THERE)).execute(context) == {"source": "db.t", "partitions": ["ds=1"]}
    hook = Hook()
    assert sensor(hook, wait="False").execute(context)["partitions"] == ["ds=1"]
    assert hook.asked == []


def test_the_deadline_is_of_the_first_try_and_ends_with_a_clear_failure(context):
    from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

    deadlines = []
    for _ in range(2):  # a second try
        with pytest.raises(TaskDeferred) as caught:
            sensor(Hook(AWAY), wait_hours=1.0).execute(context)
        deadlines.append(caught.value.trigger.deadline)
    assert deadlines[0] == deadlines[1]
    event = {"there": False, "looks": 7, "missing": ["ds=1"], "problem": "the metastore is away"}
    with pytest.raises(AirflowFailException) as failed:
        sensor(Hook()).execute_complete(context, event)
    for part in ("did not come in time", "db.t", "missing: ds=1; looks: 7", "is away", "remedy"):
        assert part in str(failed.value)
    assert context["task_state_store"] == {}  # cleared, it waits anew
    with pytest.raises(AirflowFailException, match="no such table"):
        sensor(Hook(NO_TABLE)).execute(context)


def watched(monkeypatch, hook, deadline=1000.0):
    """(its event, the pauses) of a trigger whose clock is its sleep."""
    from howdah.airflow.daily import waiting

    now, pauses = [0.0], []

    async def sleep(seconds):
        pauses.append(round(seconds, 2))
        now[0] += seconds

    monkeypatch.setattr(waiting, "HowdahHook", lambda conn_id: hook)
    monkeypatch.setattr(waiting.asyncio, "sleep", sleep)
    monkeypatch.setattr(waiting, "time", SimpleNamespace(time=lambda: now[0]))
    before = waiting.PartitionTrigger(
        conn_id="test", config=CONFIG, partitions=["ds=1"], source="db.t", ready=None,
        deadline=deadline, pause_seconds=60.0, longest_seconds=150.0, key={"dag_id": "d"},
    )  # fmt: skip
    path, kept = before.serialize()
    assert path == "howdah.airflow.daily.waiting.PartitionTrigger"  # a format: see its docstring
    trigger = waiting.PartitionTrigger(**json.loads(json.dumps(kept)))

    async def first():
        return [event async for event in trigger.run()]

    (event,) = asyncio.run(first())
    return event.payload, pauses


def test_a_trigger_looks_at_growing_pauses_and_outlives_a_metastore_that_is_away(monkeypatch):
    event, pauses = watched(monkeypatch, Hook(MISSING, AWAY, MISSING, MISSING, THERE))
    assert event == {"there": True, "looks": 5}
    assert pauses == [60.0, 90.0, 135.0, 150.0, 150.0]


def test_a_trigger_ends_at_its_deadline_after_a_last_look_or_when_it_is_refused(monkeypatch):
    event, pauses = watched(monkeypatch, Hook(MISSING, MISSING, AWAY), deadline=200.0)
    assert event["there"] is False and event["looks"] == 3 and "is away" in event["problem"]
    assert sum(pauses) == 200.0
    event, _ = watched(monkeypatch, Hook(MISSING, NO_TABLE))
    assert event["code"] == 3 and "no such table" in event["error"]["what"]


# ------------------------------------------------------------------------------------- the checks
@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Writes this installation's defaults."""

    def write(**values):
        (tmp_path / "defaults.json").write_text(json.dumps(values))
        monkeypatch.setenv("HOWDAH_AIRFLOW_DEFAULTS", str(tmp_path / "defaults.json"))

    return write


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
    with pytest.raises(ConfigError, match="which day"):
        day_of(dated(), pattern, None)


def test_what_is_asked_comes_from_the_form_and_the_installation(installed):
    from howdah.airflow.daily import days, form

    installed(
        data={"source": "news.texts", "format": "hive"},
        publish={"directory": "hdfs:///models", "name": "news"},
        daily={"ready": "/w/ds={ds}/_SUCCESS"},
    )
    day = days.Day(partitions=("ds=1",), by="the date")
    asked = form.asked({}, day, "/runs/r")
    assert (asked["source"], asked["output"]) == ("news.texts", "news.texts_scored")
    assert (asked["model"], asked["wait"]) == ("hdfs:///models/news", True)
    files = form.asked({"source": "/in/{ds}.csv"}, day, "/runs/r")
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
    said = str(caught.value)
    for part in ("unknown key 'x'", "model is refused", "source is refused", "output is refused"):
        assert part in said


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
        found = task.decided({**context, **dated("2026-11-01")}, sent)
        waits.append(task._awaited)
        return found

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
