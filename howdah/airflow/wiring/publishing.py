"""From a checked configuration to a published model: the tasks of howdah_finetune and
howdah_retrain."""

from __future__ import annotations

import os
from typing import Any

from howdah.airflow import require

require()

from airflow.sdk import TaskGroup  # noqa: E402

from howdah.airflow.approval import ApproveOperator  # noqa: E402
from howdah.airflow.assets import MODEL  # noqa: E402
from howdah.airflow.dataset import DatasetOperator  # noqa: E402
from howdah.airflow.operators import (  # noqa: E402
    CleanUpOperator,
    EtlOperator,
    EvaluateOperator,
    GateOperator,
    PreflightOperator,
    PublishOperator,
)
from howdah.airflow.retries import TRAINING_RETRIES  # noqa: E402
from howdah.airflow.train import HowdahTrainOperator  # noqa: E402
from howdah.config.splits import TEST  # noqa: E402

__all__ = ["pool", "publishing"]


def pool() -> str:
    """The pool of tasks that train."""
    return os.environ.get("HOWDAH_AIRFLOW_POOL", "default_pool")


def publishing(checked: Any, here: dict[str, Any], *, split: str = TEST) -> PreflightOperator:
    """Adds preflight, etl, train, evaluate, gate, approve, publish and teardown to the DAG.

    Args:
        checked: the output of the task `check`.
        here: {"conn_id"}, as `check` has it.
        split: that the gate judges.
    Returns:
        The first of them; the others follow it.
    """
    backend, directory = checked["backend"], checked["run_directory"]
    ranks = {"np": "{{ params.np }}"}
    run = {**here, "config": checked["config"]}

    preflight = PreflightOperator(task_id="preflight", backend=backend, **ranks, **run)
    with TaskGroup("etl") as etl:
        build = EtlOperator(task_id="build", **run)
        # Without a source `build` is skipped, and the dataset is taken as it is.
        DatasetOperator(task_id="quality", made=build.output, trigger_rule="none_failed", **run)
    train = HowdahTrainOperator(
        task_id="train", backend=backend, pool=pool(), retries=TRAINING_RETRIES, **ranks, **run
    )
    evaluate = EvaluateOperator(task_id="evaluate", split=split, **run)
    gate = GateOperator(task_id="gate", **run)
    approve = ApproveOperator(
        task_id="approve",
        asked="{{ params.approval }}",
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
    teardown = CleanUpOperator(task_id="teardown", backend=backend, **run)

    preflight >> etl >> train >> evaluate >> gate >> approve >> publish >> teardown
    gate >> publish
    # With setup and teardown, clearing a task also runs preflight before and teardown after it.
    teardown.as_teardown(setups=preflight)
    return preflight
