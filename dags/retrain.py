"""A labelled day appended, and a model that goes on from the published one: wiring only."""

from __future__ import annotations

import os

from airflow.sdk import DAG, TaskGroup

from howdah.airflow.alerts.callbacks import ON_FAILURE
from howdah.airflow.approval import ApproveOperator
from howdah.airflow.assets import MODEL
from howdah.airflow.daily import form, schedules
from howdah.airflow.daily.retraining import CheckRetrainOperator, TurnSensor
from howdah.airflow.dataset import DatasetOperator
from howdah.airflow.operators import (
    CleanUpOperator,
    EtlOperator,
    EvaluateOperator,
    GateOperator,
    PreflightOperator,
    PublishOperator,
)
from howdah.airflow.retries import RETRIES, TRAINING_RETRIES
from howdah.airflow.train import HowdahTrainOperator
from howdah.policy import rules as policy

DOC = """
**turn** waits until no other run is under way. **check** decides the day's partition and the
published version that the training begins from. **etl** appends the day to the dataset and holds it
against `data.expect`; old rows stay where they are, the test split is frozen. Then **train**,
**evaluate** on that test split, **gate** against the published model on the same rows, **approve**
(only with the param `approval`), **publish**, **teardown**.

An alarm within the cool-down (`daily.retrain.cooldown_hours`) starts nothing: the run is skipped.
For days of the past: `airflow backfill create --dag-id howdah_retrain ...` (docs/daily.md).
"""

SETTINGS = form.settings()
POOL = os.environ.get("HOWDAH_AIRFLOW_POOL", "default_pool")

with DAG(
    "howdah_retrain",
    description="Append a labelled day, train on from the published model, and publish.",
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
    backend = check.output["backend"]
    ranks = {"np": "{{ params.np }}", "launcher": "{{ params.launcher }}"}
    run = {**here, "config": check.output["config"]}

    preflight = PreflightOperator(task_id="preflight", backend=backend, **ranks, **run)
    with TaskGroup("etl") as etl:
        build = EtlOperator(task_id="build", **run)
        DatasetOperator(task_id="quality", made=build.output, **run)
    train = HowdahTrainOperator(
        task_id="train", backend=backend, pool=POOL, retries=TRAINING_RETRIES, **ranks, **run
    )
    evaluate = EvaluateOperator(task_id="evaluate", **run)
    gate = GateOperator(task_id="gate", **run)
    approve = ApproveOperator(
        task_id="approve",
        asked="{{ params.approval }}",
        verdict=gate.output,
        run_directory=check.output["run_directory"],
    )
    publish = PublishOperator(
        task_id="publish",
        note="{{ (ti.xcom_pull(task_ids='approve') or {}).get('note', '') }}",
        outlets=[MODEL],
        trigger_rule="none_failed",
        **run,
    )
    teardown = CleanUpOperator(task_id="teardown", backend=backend, **run)

    turn >> check >> preflight >> etl >> train >> evaluate >> gate >> approve >> publish >> teardown
    gate >> publish
    teardown.as_teardown(setups=preflight)
# Set last: Airflow copies all of a DAG's params into each task that is made after them.
dag.params = form.retrain_params(policy.in_force()[0])
