"""Scoring, drift, alarm and notifiers of a day, one by one, with a stand-in for `howdah`."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from howdah.errors import ConfigError
from tests.support.airflow.day_tasks import Hook, made

pytestmark = pytest.mark.airflow

SCORED = {
    "model": "/models/words", "version": 3, "output": "db.scored", "source": "db.t",
    "files": False, "partitions": [{"partition": "ds=1"}, {"partition": "ds=2"}],
}  # fmt: skip
ALARM = {
    "error": "CheckFailed", "what": "drift: 1 column has moved", "exit_code": 1,
    "problems": [{"error": "HowdahError", "what": "PSI of lengths", "where": "length"}],
}  # fmt: skip
QUIET = {"state": "ok", "alarms": []}


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
    assert hook.asked[1][1:5] == ["--model", "/models/words@3", "--source", "/in/1.csv"]


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
        "ds=1", "--partition", "ds=2", "--force", "--json",
    ]]  # fmt: skip
    touched = task.lineage()
    assert touched.outputs[0].rows == 10 and touched.facts["version"] == "3"


# ------------------------------------------------------------------------------------------ alarm
def test_days_whose_rows_came_late_are_scored_again_and_judged(context):
    from howdah.airflow.daily.operators import ScoreOperator

    days = [("ds=2026-11-01", "scored"), ("ds=2026-11-02", "skipped"), ("ds=2026-11-03", "scored")]
    answer = {"version": 3, "partitions": [
        {"partition": name, "state": state, "rows": 4, "errors": 0} for name, state in days
    ]}  # fmt: skip

    def task(*answers):
        hook = Hook(*answers)
        return hook, made(
            ScoreOperator, hook, model="/m", source="db.t", partitions=["ds=2026-11-03"],
            target="db.scored", since="ds=2026-10-31",
        )  # fmt: skip

    hook, scoring = task(answer)
    scored = scoring.execute(context)
    words = hook.asked[0]
    assert words[words.index("--since") + 1] == "ds=2026-10-31"
    assert words[words.index("--until") + 1] == "ds=2026-11-03" and "--partition" not in words
    assert [one["partition"] for one in scored["partitions"]] == ["ds=2026-11-01", "ds=2026-11-03"]
    # The day itself must be there: a walk from an earlier day does not miss it.
    answer = {**answer, "partitions": answer["partitions"][:2]}
    with pytest.raises(Exception, match="does not have the partition"):
        task(answer)[1].execute(context)


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
    message = str(caught.value)
    for part in ("rule `notifiers`", "os.system", "not an Airflow BaseNotifier", "massage"):
        assert part in message
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
    assert SENT == [{"message": "d.t failed: no space left", "event": "failure"}]

    listed[0]["arguments"] = {"broken": True}
    connection("howdah_informs", {"notifiers": listed})
    callbacks.task_failed({**context, "task": task, "exception": error})
    assert len(SENT) == 1
    # A field that was not rendered: the param.
    task = SimpleNamespace(conn_id="{{ params.conn_id }}")
    assert callbacks.connection_of({"task": task, "params": {"conn_id": "x"}}) == "x"
