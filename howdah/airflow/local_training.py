"""Train on the machine where the command runs: `howdah train`, until it ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from howdah.airflow.hook import HowdahHook
from howdah.config.splits import SPLITS

_TEARDOWN_SECONDS = 30.0
"""Time that a stopped training needs after its checkpoint to end its ranks and write files."""


def train(
    hook: HowdahHook,
    config: Mapping[str, Any],
    *,
    task: str,
    np: int = 1,
    on_line: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Train, from the newest checkpoint if there is one; the run directory and scalar metrics.

    Args:
        config: the whole configuration, nested.
        task: names the task (operators.task_key): the command waits for an earlier try's end.
        np: ranks.
        on_line: called with each line of rank 0; none: the task's log.
    Raises:
        HowdahCommandFailed: with the error of the first rank that failed.
    """
    result = hook.run(
        ["train", "--json", "--np", str(int(np))],
        config=config, task=task, on_line=on_line, grace_seconds=grace_seconds(config),
    )  # fmt: skip
    return {
        "application": None,
        "run_directory": result["run"],
        "metrics": scalars(result.get("metrics") or {}),
        "run_id": result.get("run_id"),
        "steps": result.get("steps"),
        "train_seconds": result.get("train_seconds"),
        "examples_per_second": result.get("examples_per_second"),
    }


def grace_seconds(config: Mapping[str, Any]) -> float:
    """Time limit for an orderly end of the training."""
    checkpoint = config.get("checkpoint") or {}
    return float(checkpoint.get("grace_seconds", 30.0)) + _TEARDOWN_SECONDS


def scalars(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers among metrics, by split: small enough for an XCom."""
    out: dict[str, Any] = {}
    for key, value in metrics.items():
        if isinstance(value, Mapping) and key in SPLITS:
            out[key] = scalars(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            out[key] = value
    return out
