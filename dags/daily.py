"""A new day each day: its partition, its scores, their drift, the alarm: wiring only."""

from __future__ import annotations

from airflow.sdk import DAG

from howdah.airflow.alerts.callbacks import ON_FAILURE
from howdah.airflow.assets import DRIFT
from howdah.airflow.daily import form, schedules
from howdah.airflow.daily.check import CheckDayOperator
from howdah.airflow.daily.operators import (
    AlarmOperator,
    DriftOperator,
    NotifyOperator,
    ScoreOperator,
)
from howdah.airflow.daily.sensor import PartitionSensor
from howdah.airflow.retries import RETRIES
from howdah.policy import rules as policy

DOC = """
**check** which day: the partition of the form, of the event of `howdah_data` that started the run,
else of the run's date. **partition** waits for it (only for a date). **score** classifies its rows
with the published model. **drift** compares them with the rows that the model was made of. Only
where they have drifted: **alarm** gives the Asset `howdah_drift` an event, **notify** informs by
the Connection's notifiers. The run ends well in both cases: skipped, or run, is what `alarm` shows.

A partition that this model has scored is skipped, so clearing a task repeats no finished work.
The days before (`daily.again_days`) are looked at again: one whose rows came late is scored anew.
"""

SETTINGS = form.settings()

with DAG(
    "howdah_daily",
    description="Score a day's rows with the published model, and judge their drift.",
    doc_md=DOC,
    schedule=schedules.of_daily(SETTINGS),
    catchup=False,
    tags=["howdah"],
    default_args={**RETRIES, **ON_FAILURE},
) as dag:
    here = {"conn_id": "{{ params.conn_id }}"}
    check = CheckDayOperator(task_id="check", multiple_outputs=True, **here)
    day = check.output
    run = {**here, "config": day["config"]}
    asked = {name: day[name] for name in ("source", "partitions")}
    partition = PartitionSensor(
        task_id="partition",
        ready=day["ready"],
        wait=day["wait"],
        wait_hours=SETTINGS.wait_hours,
        first_pause_seconds=SETTINGS.first_pause_seconds,
        longest_pause_seconds=SETTINGS.longest_pause_seconds,
        **asked,
        **run,
    )
    score = ScoreOperator(
        task_id="score",
        model=day["model"],
        target=day["output"],
        since=day["since"],
        **asked,
        **run,
    )
    drift = DriftOperator(
        task_id="drift",
        scored=score.output,
        model=day["model"],
        directory=day["directory"],
        **run,
    )
    alarm = AlarmOperator(task_id="alarm", judged=drift.output, outlets=[DRIFT], **run)
    notify = NotifyOperator(task_id="notify", alarm=alarm.output, **run)

    check >> partition >> score >> drift >> alarm >> notify
# Set last: Airflow copies all of a DAG's params into each task that is made after them.
dag.params = form.params(policy.in_force()[0])
