"""Training on the machine where the command runs: `howdah train` under Horovod, seen to its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from howdah.airflow.hook import HowdahHook

__all__ = ["grace_seconds", "scalars", "train"]

_TEARDOWN_SECONDS = 30.0
"""What a stopped training needs after its checkpoint: ranks, launcher, the books."""


def train(
    hook: HowdahHook,
    config: Mapping[str, Any],
    *,
    task: str,
    np: int = 1,
    launcher: str = "horovodrun",
    on_line: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Train; the run directory and its small metrics. It resumes from the newest checkpoint.

    Args:
        config: the whole configuration, nested.
        task: names the task (operators.task_key): an earlier try's processes are waited for.
        np: ranks.
        launcher: horovodrun or mpirun (one rank needs none).
        on_line: told each line of rank 0; none: the task's log.
    Raises:
        HowdahCommandFailed, HowdahCommandRefused: what the first failing rank died of.
    """
    told = hook.run(
        ["train", "--json", "--np", str(int(np)), "--launcher", launcher],
        config=config, task=task, on_line=on_line, grace_seconds=grace_seconds(config),
    )  # fmt: skip
    return {
        "application": None,
        "run_directory": told["run"],
        "metrics": scalars(told.get("metrics") or {}),
        "run_id": told.get("run_id"),
        "steps": told.get("steps"),
        "train_seconds": told.get("train_seconds"),
        "examples_per_second": told.get("examples_per_second"),
    }


def grace_seconds(config: Mapping[str, Any]) -> float:
    """How long an orderly end of a training may take."""
    checkpoint = config.get("checkpoint") or {}
    return float(checkpoint.get("grace_seconds", 30.0)) + _TEARDOWN_SECONDS


def scalars(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers among metrics, splits kept: what goes through XCom."""
    out: dict[str, Any] = {}
    for key, value in metrics.items():
        if isinstance(value, Mapping) and key in ("train", "validation", "test"):
            out[key] = scalars(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            out[key] = value
    return out
