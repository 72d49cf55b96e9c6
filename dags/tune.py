"""The DAG howdah_tune: a study of hyperparameters, from data to the best model. Wiring only."""

from __future__ import annotations

from airflow.sdk import DAG, TaskGroup

from howdah.airflow.alerts.callbacks import ON_FAILURE
from howdah.airflow.assets import MODEL
from howdah.airflow.dataset import DatasetOperator
from howdah.airflow.form import trigger_form
from howdah.airflow.operators import CheckOperator, EtlOperator, PreflightOperator
from howdah.airflow.retries import RETRIES, TRAINING_RETRIES
from howdah.airflow.tune import TuneOperator
from howdah.airflow.wiring.publishing import pool
from howdah.policy import rules as policy

DOC = """
**check** the values that were sent, **preflight**, **etl**, **tune**: it trains the trials of the
section `tune` on the machine where commands run, writes the best one to best.json and study.html,
and with `tune.publish` publishes it through the gate.

The section `tune` is not in the form: it comes from the installation's defaults
(HOWDAH_AIRFLOW_DEFAULTS). A retried or cleared task continues its study.
"""

with DAG(
    "howdah_tune",
    description="Search for hyperparameters with many training runs.",
    doc_md=DOC,
    schedule=None,
    catchup=False,
    tags=["howdah"],
    default_args={**RETRIES, **ON_FAILURE},
) as dag:
    here = {"conn_id": "{{ params.conn_id }}"}
    check = CheckOperator(task_id="check", on="local", multiple_outputs=True, **here)
    ranks = {"np": "{{ params.np }}"}
    run = {**here, "config": check.output["config"]}
    preflight = PreflightOperator(task_id="preflight", **ranks, **run)
    with TaskGroup("etl") as etl:
        build = EtlOperator(task_id="build", **run)
        # Without a source `build` is skipped, and the existing dataset is used.
        DatasetOperator(task_id="quality", made=build.output, trigger_rule="none_failed", **run)
    tune = TuneOperator(
        task_id="tune",
        pool=pool(),
        retries=TRAINING_RETRIES,
        outlets=[MODEL],
        **ranks,
        **run,
    )
    check >> preflight >> etl >> tune
# Set last: Airflow copies a DAG's params into each task that is created after them.
dag.params = trigger_form.params(
    form_fields=("conn_id", "np"),
    defaults=trigger_form.installed_defaults(),
    policy=policy.in_force()[0],
)
