"""Batch scoring with a published model: wiring only."""

from __future__ import annotations

from airflow.sdk import DAG

from howdah.airflow.alerts.callbacks import ON_FAILURE
from howdah.airflow.operators import PredictOperator
from howdah.airflow.retries import RETRIES
from howdah.airflow.scoring import CheckScoringOperator, params
from howdah.policy import rules as policy

with DAG(
    "howdah_score",
    description="Classify the rows of files or of a table with a published model.",
    doc_md="**check** the sent values, **predict** id, label, scores and the model's run id.",
    schedule=None,
    catchup=False,
    params=params(policy.in_force()[0]),
    tags=["howdah"],
    default_args={**RETRIES, **ON_FAILURE},
) as dag:
    here = {"conn_id": "{{ params.conn_id }}"}
    check = CheckScoringOperator(task_id="check", multiple_outputs=True, **here)
    names = (
        "model", "source", "target", "text_columns", "id_column", "batch", "master", "config",
        "overwrite",
    )  # fmt: skip
    PredictOperator(task_id="predict", **{name: check.output[name] for name in names}, **here)
