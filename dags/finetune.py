"""From the trigger form, or from new data, to a published model: wiring only."""

from __future__ import annotations

import os

from airflow.sdk import DAG, TaskGroup

from howdah.airflow.alerts.callbacks import ON_FAILURE
from howdah.airflow.approval import ApproveOperator
from howdah.airflow.assets import DATA, MODEL
from howdah.airflow.dataset import DatasetOperator
from howdah.airflow.form import trigger_form
from howdah.airflow.operators import (
    CheckOperator,
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

DEFAULTS = trigger_form.installed_defaults()
POLICY, _ = policy.in_force()
POOL = os.environ.get("HOWDAH_AIRFLOW_POOL", "default_pool")

DOC = """
Fine-tunes DistilBERT: **check** what was sent, **preflight**, **etl** (Spark; an unchanged dataset
is found and not made again, without `data.source` it is taken as it is), **train** (Horovod, on
this machine or on YARN), **evaluate** the export, **gate**, **approve** (only with the param
`approval`), **publish**, **teardown**.

A retried or cleared task resumes: the run directory belongs to the DAG run. Fields are the keys of
Howdah's configuration; `howdah config explain KEY` explains each.
"""


def finetune(dag_id: str, schedule, description: str) -> DAG:
    """The DAG; its tasks are the same for the form and for new data."""
    with DAG(
        dag_id,
        description=description,
        doc_md=DOC,
        schedule=schedule,
        catchup=False,
        tags=["howdah"],
        default_args={**RETRIES, **ON_FAILURE},
    ) as dag:
        here = {"conn_id": "{{ params.conn_id }}"}
        check = CheckOperator(task_id="check", multiple_outputs=True, **here)
        backend = check.output["backend"]
        ranks = {"np": "{{ params.np }}", "launcher": "{{ params.launcher }}"}
        run = {**here, "config": check.output["config"]}

        preflight = PreflightOperator(task_id="preflight", backend=backend, **ranks, **run)
        with TaskGroup("etl") as etl:
            build = EtlOperator(task_id="build", **run)
            # Without a source `build` is skipped, and the dataset is taken as it is.
            DatasetOperator(task_id="quality", made=build.output, trigger_rule="none_failed", **run)
        train = HowdahTrainOperator(
            task_id="train", backend=backend, pool=POOL, retries=TRAINING_RETRIES, **ranks, **run
        )
        evaluate = EvaluateOperator(
            task_id="evaluate",
            split="{{ ti.xcom_pull(task_ids='check', key='config')['gate']['split'] }}",
            **run,
        )
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

        check >> preflight >> etl >> train >> evaluate >> gate >> approve >> publish >> teardown
        gate >> publish
        # With setup and teardown, clearing a task also runs preflight before and teardown after it.
        teardown.as_teardown(setups=preflight)
    # Set last: Airflow copies all of a DAG's params into each task that is made after them.
    dag.params = trigger_form.params(defaults=DEFAULTS, policy=POLICY)
    return dag


on_demand = finetune("howdah_finetune", None, "Fine-tune and publish a model, from the form.")
on_data = finetune("howdah_finetune_on_data", [DATA], "The same whenever there is new data.")
