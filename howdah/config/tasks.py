"""What a model predicts: the tasks in one table, and what a configuration of one may not ask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from howdah.config.metric_table import METRICS, metrics_of

if TYPE_CHECKING:
    from howdah.config.data import DataSection
    from howdah.config.model import Config

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


def check_data(data: DataSection) -> None:
    """Refuse keys of `data` that mean nothing for its task.

    Raises:
        ValueError: with the key and what to do.
    """
    columns, task = data.columns, data.task
    paired = columns.text_pair is not None
    of_texts = data.kind == "text" and data.format != "tfrecord"
    if of_texts and columns.label in (*columns.text, *(columns.text_pair or ())):
        raise ValueError(
            f"columns.text and columns.label are the same column, {columns.label!r}: a model would"
            " read what it has to predict; name two columns"
        )
    if paired and data.kind == "image":
        raise ValueError("columns.text_pair is for texts: leave it out for kind image")
    if paired and data.format == "tfrecord":
        raise ValueError(
            "columns.text_pair is for texts: records of another writer hold the ids of both sides"
            " already; leave it out"
        )
    if task == "single_label":
        return
    if data.kind == "image":
        raise ValueError(f"task {task} is for texts: images have one label each")
    if data.format == "tfrecord":
        raise ValueError(
            f"task {task} is not read from records of another writer: give the texts as the source"
        )
    if data.balance != "none":
        raise ValueError(f"balance {data.balance} needs one class a row: task {task} has none")
    if task == "multi_label":
        return
    if data.labels is not None:
        raise ValueError("labels name classes, and task regression has none: leave them out")
    if data.dedup.conflict.policy == "majority":
        raise ValueError(
            "dedup.conflict majority counts labels: for task regression choose reject (with a"
            " tolerance) or keep"
        )
    if data.expect.min_rows_per_class is not None:
        raise ValueError(
            "expect.min_rows_per_class counts labels, and task regression has none: leave it out"
        )


def check_run(config: Config) -> None:
    """Refuse keys of other sections that mean nothing for `data.task`.

    Raises:
        ValueError: with the key and what to do.
    """
    task = config.data.task
    of_task = metrics_of(task)
    named = {"evaluation.metric": [config.evaluation.metric], "gate.minimum": config.gate.minimum}
    named["tune.metric"] = [] if config.tune.metric is None else [config.tune.metric]
    for key, names in named.items():
        for name in names:
            if name in METRICS and name not in of_task:
                raise ValueError(
                    f"{key} {name} is not computed for data.task {task}; there are"
                    f" {', '.join(of_task)}"
                )
    if task == "single_label":
        return
    if config.training.label_smoothing_factor:
        raise ValueError(
            f"training.label_smoothing_factor spreads one label over the others: it means nothing"
            f" for data.task {task}; set it to 0"
        )
    if task == "regression" and config.training.class_weights != "none":
        raise ValueError(
            "training.class_weights weigh labels, and data.task regression has none: set it to none"
        )
    if config.gate.min_over_baseline is not None:
        raise ValueError(
            "gate.min_over_baseline: `howdah evaluate --baseline` has no model for data.task"
            f" {task}; leave it out, or set gate.minimum"
        )
