"""The DAG howdah_retrain: append a labelled day and train the published model on. Wiring only."""

from __future__ import annotations

from airflow.sdk import DAG

from howdah.airflow.alerts.callbacks import ON_FAILURE
from howdah.airflow.daily import form, schedules
from howdah.airflow.daily.retraining import CheckRetrainOperator, TurnSensor
from howdah.airflow.daily.sensor import PartitionSensor
from howdah.airflow.retries import RETRIES
from howdah.airflow.wiring.publishing import publishing
from howdah.policy import rules as policy

DOC = """
**turn** waits until all other runs have ended. **check** chooses the day's partition and the
published version that the training begins from. **partition** waits for the day (only for a date).
**etl** appends the day to the dataset and checks it by `data.expect`; old rows keep their splits,
and the test split is frozen. Then **train**, **evaluate** on that test split, **gate** against the
published model on the same rows, **approve** (only with the param `approval`), **publish**,
**teardown**.

A run that an alarm starts within the cool-down (`daily.retrain.cooldown_hours`) is skipped.
For past days: `airflow backfill create --dag-id howdah_retrain ...` (docs/daily.md).
"""

SETTINGS = form.settings()

with DAG(
    "howdah_retrain",
    description="Append a labelled day, continue training the published model, and publish.",
    doc_md=DOC,
    schedule=schedules.of_retrain(SETTINGS),
    catchup=False,
    max_active_runs=1,
    tags=["howdah"],
    default_args={**RETRIES, **ON_FAILURE},
) as dag:
    here = {"conn_id": "{{ params.conn_id }}"}
    turn = TurnSensor(task_id="turn", last="teardown")
    check = CheckRetrainOperator(task_id="check", multiple_outputs=True, **here)
    day = check.output
    partition = PartitionSensor(
        task_id="partition",
        wait_hours=SETTINGS.wait_hours,
        first_pause_seconds=SETTINGS.first_pause_seconds,
        longest_pause_seconds=SETTINGS.longest_pause_seconds,
        config=day["config"],
        **{name: day[name] for name in ("source", "partitions", "ready", "wait")},
        **here,
    )
    turn >> check >> partition >> publishing(day, here)
# Set last: Airflow copies a DAG's params into each task that is created after them.
dag.params = form.retrain_params(policy.in_force()[0])
