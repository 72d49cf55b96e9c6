"""From the trigger form, or from new data, to a published model: wiring only."""

from __future__ import annotations

import os
from datetime import timedelta

from airflow.sdk import DAG, TaskGroup

from howdah.airflow import form
from howdah.airflow.approval import ApproveOperator
from howdah.airflow.assets import DATA, MODEL
from howdah.airflow.dataset import DatasetOperator
from howdah.airflow.operators import (
    CheckOperator,
    CleanUpOperator,
    EtlOperator,
    EvaluateOperator,
    GateOperator,
    PreflightOperator,
    PublishOperator,
)
from howdah.airflow.train import HowdahTrainOperator

DEFAULTS = form.installed_defaults()
POOL = os.environ.get("HOWDAH_AIRFLOW_POOL", "default_pool")

DOC = """
Fine-tunes DistilBERT: **check** what was sent, **preflight**, **etl** (Spark; an unchanged dataset
is found and not made again, without `data.source` it is taken as it is), **train** (Horovod, on
this machine or on YARN), **evaluate** the export, **gate**, **approve** (only with the param
`approval`), **publish**, **teardown**.

A retried or cleared task goes on where it was: the run directory belongs to the DAG run. Fields
are the keys of Howdah's configuration; `howdah config explain KEY` tells about each.
"""


def finetune(dag_id: str, schedule, description: str) -> DAG:
    """The tasks, the same whatever starts them."""
    with DAG(
        dag_id,
        description=description,
        doc_md=DOC,
        schedule=schedule,
        catchup=False,
        tags=["howdah"],
        default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
    ) as dag:
        here = {"conn_id": "{{ params.conn_id }}"}
        check = CheckOperator(task_id="check", multiple_outputs=True, **here)
        backend, np = check.output["backend"], "{{ params.np }}"
        run = {**here, "config": check.output["config"]}

        preflight = PreflightOperator(task_id="preflight", backend=backend, np=np, **run)
        with TaskGroup("etl") as etl:
            build = EtlOperator(task_id="build", **run)
            # Without a source `build` is skipped, and the dataset is taken as it is.
            DatasetOperator(task_id="quality", made=build.output, trigger_rule="none_failed", **run)
        train = HowdahTrainOperator(
            task_id="train", backend=backend, np=np, pool=POOL, retries=3, **run
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
        # A cleared task is looked after again: preflight before it, the teardown after it.
        teardown.as_teardown(setups=preflight)
    # Not before: Airflow copies all of a DAG's params into each task that is made after them.
    dag.params = form.params(defaults=DEFAULTS)
    return dag


on_demand = finetune("howdah_finetune", None, "Fine-tune and publish a model, from the form.")
on_data = finetune("howdah_finetune_on_data", [DATA], "The same whenever there is new data.")
