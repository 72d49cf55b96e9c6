"""The DAG howdah_daily: a day's partition, its scores, their drift, the alarm. Wiring only."""

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
**check** chooses the day: the partition from the form, or from the event of `howdah_data` that
started the run, or else of the run's date. **partition** waits for it (only for a date). **score**
classifies its rows with the published model. **drift** compares them with the model's training
data. Only if they have drifted, **alarm** sends an event of the Asset `howdah_drift`, and
**notify** uses the Connection's notifiers. The run succeeds in both cases.

A partition that this model has scored is skipped, so clearing a task does not repeat finished work.
Earlier days (`daily.again_days`) are checked again: a day with late rows is scored again.
"""

SETTINGS = form.settings()

with DAG(
    "howdah_daily",
    description="Score a day's rows with the published model, and check their drift.",
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
    rows = {name: day[name] for name in ("source", "partitions")}
    partition = PartitionSensor(
        task_id="partition",
        ready=day["ready"],
        wait=day["wait"],
        wait_hours=SETTINGS.wait_hours,
        first_pause_seconds=SETTINGS.first_pause_seconds,
        longest_pause_seconds=SETTINGS.longest_pause_seconds,
        **rows,
        **run,
    )
    score = ScoreOperator(
        task_id="score",
        model=day["model"],
        target=day["output"],
        since=day["since"],
        **rows,
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
# Set last: Airflow copies a DAG's params into each task that is created after them.
dag.params = form.params(policy.in_force()[0])
