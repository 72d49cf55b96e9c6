"""What a model predicts: the tasks in one table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Task = Literal["single_label", "multi_label", "regression"]


@dataclass(frozen=True, kw_only=True)
class TaskKind:
    """Properties of a task."""

    problem_type: str
    """transformers' name, in config.json of an export."""
    metric: str
    """`evaluation.metric` where the configuration does not name one."""
    classes: bool
    """The outputs are labels."""


TASKS: dict[Task, TaskKind] = {
    "single_label": TaskKind(
        problem_type="single_label_classification", metric="macro_f1", classes=True
    ),
    "multi_label": TaskKind(
        problem_type="multi_label_classification", metric="micro_f1", classes=True
    ),
    "regression": TaskKind(problem_type="regression", metric="mse", classes=False),
}


def task_of(problem_type: str | None) -> Task:
    """The task of a model by its config.json's problem_type; without one it has a single label."""
    return next(
        (t for t, kind in TASKS.items() if kind.problem_type == problem_type), "single_label"
    )
