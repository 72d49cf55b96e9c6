"""The DAGs howdah_finetune (by the form) and howdah_finetune_on_data. Wiring only."""

from __future__ import annotations

from airflow.sdk import DAG

from howdah.airflow.alerts.callbacks import ON_FAILURE
from howdah.airflow.assets import DATA
from howdah.airflow.form import trigger_form
from howdah.airflow.operators import CheckOperator
from howdah.airflow.retries import RETRIES
from howdah.airflow.wiring.publishing import publishing
from howdah.policy import rules as policy

DEFAULTS = trigger_form.installed_defaults()
POLICY, _ = policy.in_force()

DOC = """
Fine-tunes a DistilBERT, BERT or RoBERTa: **check** the values that were sent, **preflight**,
**etl** (Spark; an unchanged dataset is not written again, and without `data.source` the existing
one is used), **train** (on this machine, or on YARN), **evaluate** the export,
**gate**, **approve** (only with the param `approval`), **publish**, **teardown**.

A retried or cleared task resumes: the run directory belongs to the DAG run. Fields are the keys of
Howdah's configuration; `howdah config explain KEY` explains each.
"""


def finetune(dag_id: str, schedule, description: str) -> DAG:
    """One of the two DAGs, which have the same tasks."""
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
        split = "{{ ti.xcom_pull(task_ids='check', key='config')['gate']['split'] }}"
        check >> publishing(check.output, here, split=split)
    # Set last: Airflow copies a DAG's params into each task that is created after them.
    dag.params = trigger_form.params(defaults=DEFAULTS, policy=POLICY)
    return dag


on_demand = finetune("howdah_finetune", None, "Fine-tune and publish a model, from the form.")
on_data = finetune("howdah_finetune_on_data", [DATA], "Fine-tune and publish, on new data.")
