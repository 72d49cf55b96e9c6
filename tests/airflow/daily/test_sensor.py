"""The wait for a day's partitions: the sensor, and the trigger that looks at growing pauses."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest

from tests.support.airflow.day_tasks import CONFIG, Hook, made

pytestmark = pytest.mark.airflow

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
    for part in (
        "did not arrive before the deadline",
        "db.t",
        "missing after 7 checks: ds=1",
        "is away",
        "remedy",
    ):
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
