"""Mean and standard deviation over folds: pure functions without files or a clock."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from howdah.config.metric_table import METRICS, SHOWN


def summarize(folds: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """{metric: {mean, std, values}} of the folds' metrics.

    std is the sample's (n - 1). A metric that is undefined in a fold (roc_auc of one class) has
    values, but no mean or std.

    >>> summarize([{"accuracy": 0.5}, {"accuracy": 0.7}])["accuracy"]["mean"]
    0.6

    Args:
        folds: the scalar metrics of each fold, at least two.
    """
    metrics = {}
    for name in METRICS:
        if not any(name in fold for fold in folds):
            continue  # a metric of another task
        values = [fold.get(name) for fold in folds]
        defined = [value for value in values if value is not None]
        whole = len(defined) == len(values)
        metrics[name] = {
            "mean": math.fsum(defined) / len(defined) if whole else None,
            "std": statistics.stdev(defined) if whole else None,
            "values": values,
        }
    return metrics


def table(result: Mapping[str, Any]) -> list[str]:
    """The result of `cross_validate` as lines of a table with a row for each metric and a column
    for each fold."""
    count = result["folds"]
    head = [f"{'metric':<20}", f"{'mean':>8}", f"{'std':>8}"]
    head += [f"{f'fold {number}':>8}" for number in range(1, count + 1)]
    lines = [" ".join(head)]
    for name in sorted(result["metrics"], key=lambda name: name not in SHOWN):
        metric = result["metrics"][name]
        cells = [metric["mean"], metric["std"], *metric["values"]]
        lines.append(" ".join([f"{name:<20}", *(f"{_number(cell):>8}" for cell in cells)]))
    rows = " ".join(f"{fold['rows']:>8,}" for fold in result["each"])
    lines.append(" ".join([f"{'rows':<20}", " " * 17, rows]))
    if result.get("of") == "model" and (baseline := result.get("baseline")) is not None:
        lines.append(
            f"{result['metric']}: {_number(result['mean'])}, the baseline's"
            f" {_number(baseline['mean'])} (deviations {_number(result['std'])} and"
            f" {_number(baseline['std'])})"
        )
    return lines


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
