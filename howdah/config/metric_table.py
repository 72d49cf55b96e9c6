"""The metrics that are one number each, in one table: everything that lists, selects or compares
metrics reads it. `training/evaluation/metrics.py` computes them.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Literal

__all__ = ["METRICS", "SELECTABLE", "SHOWN", "Metric", "unknown_metric"]


@dataclass(frozen=True)
class Metric:
    """Properties of a metric."""

    better: Literal["higher", "lower"]
    selectable: bool = False
    """`evaluation.metric` may name it: it chooses the best checkpoint and stops training early."""
    shown: bool = False
    """A log line and the report's first tiles show it."""

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
    "loss": Metric("lower", selectable=True, shown=True),
    "accuracy": Metric("higher", selectable=True, shown=True),
    "macro_precision": Metric("higher"),
    "macro_recall": Metric("higher"),
    "macro_f1": Metric("higher", selectable=True, shown=True),
    "weighted_precision": Metric("higher"),
    "weighted_recall": Metric("higher"),
    "weighted_f1": Metric("higher", selectable=True),
    "roc_auc": Metric("higher", selectable=True),
    "ece": Metric("lower"),
}
"""In the order in which tables show them. A new one: a row here, its value in training/metrics."""

SELECTABLE = tuple(name for name, metric in METRICS.items() if metric.selectable)
SHOWN = tuple(name for name, metric in METRICS.items() if metric.shown)


def unknown_metric(name: str) -> str:
    """The message for an unknown metric: it names the nearest one, and all."""
    close = difflib.get_close_matches(name, METRICS, n=1)
    nearest = f" (did you mean {close[0]}?)" if close else ""
    return f"there is no metric {name!r}{nearest}; there are {', '.join(METRICS)}"
