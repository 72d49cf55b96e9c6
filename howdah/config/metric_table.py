"""The metrics that are one number each, in one table: everything that lists, selects or compares
metrics reads it. `models/metrics/` computes them, a module for each task.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Literal

_SINGLE, _MULTI, _NUMBER = "single_label", "multi_label", "regression"
_CLASSES = (_SINGLE, _MULTI)


@dataclass(frozen=True)
class Metric:
    """Properties of a metric."""

    better: Literal["higher", "lower"]
    selectable: bool = False
    """`evaluation.metric` may name it: it chooses the best checkpoint and stops training early."""
    shown: bool = False
    """A log line and the report's tiles show it."""
    tile: bool = False
    """The report's tiles show it too, and no log line."""
    tasks: tuple[str, ...] = (_SINGLE,)
    """The tasks (data.task) that it is computed for."""

    @property
    def lower(self) -> bool:
        """Lower is better."""
        return self.better == "lower"

    def score(self, value: float) -> float:
        """The value as a score of which greater is better.

        >>> METRICS["loss"].score(0.2) > METRICS["loss"].score(0.3)
        True
        """
        return -value if self.lower else value


METRICS: dict[str, Metric] = {
    "loss": Metric("lower", selectable=True, shown=True, tasks=(*_CLASSES, _NUMBER)),
    "accuracy": Metric("higher", selectable=True, shown=True),
    "subset_accuracy": Metric("higher", selectable=True, shown=True, tasks=(_MULTI,)),
    "micro_f1": Metric("higher", selectable=True, shown=True, tasks=(_MULTI,)),
    "macro_precision": Metric("higher", tasks=_CLASSES),
    "macro_recall": Metric("higher", tasks=_CLASSES),
    "macro_f1": Metric("higher", selectable=True, shown=True, tasks=_CLASSES),
    "weighted_precision": Metric("higher"),
    "weighted_recall": Metric("higher"),
    "weighted_f1": Metric("higher", selectable=True),
    "mcc": Metric("higher", selectable=True, tile=True),
    "roc_auc": Metric("higher", selectable=True, tile=True, tasks=_CLASSES),
    "mean_average_precision": Metric("higher", selectable=True, tile=True, tasks=_CLASSES),
    "top_3_accuracy": Metric("higher"),
    "top_5_accuracy": Metric("higher"),
    "coverage_at_95": Metric("higher", tile=True),
    "ece": Metric("lower", tile=True),
    "mse": Metric("lower", selectable=True, shown=True, tasks=(_NUMBER,)),
    "mae": Metric("lower", selectable=True, tasks=(_NUMBER,)),
    "r2": Metric("higher", selectable=True, tasks=(_NUMBER,)),
    "pearson": Metric("higher", selectable=True, shown=True, tasks=(_NUMBER,)),
    "spearman": Metric("higher", selectable=True, shown=True, tasks=(_NUMBER,)),
}
"""The metrics, in the order in which tables show them. A new one: a row here, its value in
models/metrics/ (`pair_metrics` for single_label)."""

SELECTABLE = tuple(name for name, metric in METRICS.items() if metric.selectable)
SHOWN = tuple(name for name, metric in METRICS.items() if metric.shown)
TILES = tuple(name for name, metric in METRICS.items() if metric.shown or metric.tile)


def metrics_of(task: str) -> tuple[str, ...]:
    """The metrics that are computed for a task.

    >>> metrics_of("regression")
    ('loss', 'mse', 'mae', 'r2', 'pearson', 'spearman')
    """
    return tuple(name for name, metric in METRICS.items() if task in metric.tasks)


def unknown_metric(name: str) -> str:
    """The message for an unknown metric: it names the nearest one, and all."""
    close = difflib.get_close_matches(name, METRICS, n=1)
    nearest = f" (did you mean {close[0]}?)" if close else ""
    return f"there is no metric {name!r}{nearest}; there are {', '.join(METRICS)}"
