"""The tasks from a checked configuration to a published model (howdah_finetune, howdah_retrain)."""

from __future__ import annotations

import howdah.airflow.required

import os
from typing import Any

from airflow.sdk import TaskGroup

from howdah.airflow.approval import ApproveOperator
from howdah.airflow.assets import MODEL
from howdah.airflow.dataset import DatasetOperator
from howdah.airflow.operators import (
    CleanUpOperator,
    EtlOperator,
    EvaluateOperator,
    GateOperator,
    PreflightOperator,
    PublishOperator,
)
from howdah.airflow.retries import TRAINING_RETRIES
from howdah.airflow.train import HowdahTrainOperator
from howdah.config.splits import TEST


def pool() -> str:
    """The pool of tasks that train."""
    return os.environ.get("HOWDAH_AIRFLOW_POOL", "default_pool")


def publishing(checked: Any, here: dict[str, Any], *, split: str = TEST) -> PreflightOperator:
    """Adds preflight, etl, train, evaluate, gate, approve, publish and teardown to the DAG.

    Args:
        checked: the output of the task `check`.
        here: the `conn_id` of all tasks.
        split: the split that the gate judges.
    Returns:
        The first task, which the others follow.
    """
    directory = checked["run_directory"]
    ranks = {"np": "{{ params.np }}"}
    run = {**here, "config": checked["config"]}

    preflight = PreflightOperator(task_id="preflight", **ranks, **run)
    with TaskGroup("etl") as etl:
        build = EtlOperator(task_id="build", **run)
        # Without a source `build` is skipped, and the existing dataset is used.
        DatasetOperator(task_id="quality", made=build.output, trigger_rule="none_failed", **run)
    train = HowdahTrainOperator(
        task_id="train", pool=pool(), retries=TRAINING_RETRIES, **ranks, **run
    )
    evaluate = EvaluateOperator(task_id="evaluate", split=split, **run)
    gate = GateOperator(task_id="gate", **run)
    approve = ApproveOperator(
        task_id="approve",
        required="{{ params.approval }}",
        verdict=gate.output,
        run_directory=directory,
    )
    publish = PublishOperator(
        task_id="publish",
        note="{{ (ti.xcom_pull(task_ids='approve') or {}).get('note', '') }}",
        outlets=[MODEL],
        trigger_rule="none_failed",
        **run,
    )
    teardown = CleanUpOperator(task_id="teardown", **run)

    preflight >> etl >> train >> evaluate >> gate >> approve >> publish >> teardown
    gate >> publish
    # With setup and teardown, clearing a task also runs preflight before and teardown after it.
    teardown.as_teardown(setups=preflight)
    return preflight
