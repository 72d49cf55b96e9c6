"""Metrics of a model that always gives the most frequent answer. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from howdah.config.splits import TRAIN
from howdah.config.tasks import Task
from howdah.data.manifest import DatasetManifest
from howdah.models.metrics.metrics import class_scores, pair_metrics

NAMES: dict[Task, str] = {
    "single_label": "always the most frequent label",
    "multi_label": "always the most frequent labels",
    "regression": "always the mean",
}
"""Names of what `majority` measures, for sentences."""


def majority(
    metric: str, metrics: Mapping[str, Any], manifest: DatasetManifest | None, task: Task
) -> float | None:
    """Compute a metric of always answering training's most frequent label, or mean.

    Args:
        metrics: metrics of the split.
        manifest: manifest of the dataset; None: the split's most frequent label is taken.
    Returns:
        The metric on the split; None: unknown.
    """
    if task == "regression":
        return _mean(metric, metrics, manifest)
    support = _support(metrics)
    if support is None:
        return None
    if metric == "roc_auc":
        return 0.5
    if metric == "mean_average_precision":  # equal scores: precision is the share at any recall
        return float((support[support > 0] / float(metrics["rows"])).mean())
    if task == "multi_label":
        trained, rows = _trained(metrics, support, manifest)
        usual = np.array([trained[number] > rows / 2 for number in range(len(support))])
        return _several(metric, support, usual, float(metrics["rows"]))
    keys = np.arange(len(support)) * len(support) + most_frequent(metrics, manifest)
    return pair_metrics(keys, support, len(support)).get(metric)


def most_frequent(metrics: Mapping[str, Any], manifest: DatasetManifest | None) -> int | None:
    """Return the number of training's most frequent label, for single-label tasks, or None."""
    support = _support(metrics)
    if support is None:
        return None
    trained, _ = _trained(metrics, support, manifest)
    return max(range(len(support)), key=lambda number: (trained[number], -number))


def _support(metrics: Mapping[str, Any]) -> np.ndarray | None:
    """Return float[C]: rows of each label in the split of the metrics."""
    names, per_class = list(metrics.get("labels") or ()), metrics.get("per_class") or {}
    if not (names and per_class and metrics.get("rows")):
        return None
    support = np.array([per_class[name]["support"] for name in names], float)
    return support if support.sum() else None


def _trained(
    metrics: Mapping[str, Any], support: np.ndarray, manifest: DatasetManifest | None
) -> tuple[Counter, float]:
    """Return (rows of each label, rows) of the training split; without a manifest, of the split."""
    trained = Counter(dict(enumerate(support.tolist())))
    if manifest is None or not manifest.rows(TRAIN):
        return trained, float(metrics["rows"])
    trained = Counter()
    for shard in manifest.splits[TRAIN]:
        trained.update({int(number): count for number, count in shard.class_counts.items()})
    return trained, float(manifest.rows(TRAIN))


def _several(metric: str, support: np.ndarray, assigned: np.ndarray, rows: float) -> float | None:
    hits, guesses = support * assigned, rows * assigned
    precision, recall, f1, seen = class_scores(hits, support, guesses)
    named = float(support.sum() + guesses.sum())
    return {
        "micro_f1": float(2 * hits.sum() / named) if named else 0.0,
        "macro_precision": float(precision[seen].mean()),
        "macro_recall": float(recall[seen].mean()),
        "macro_f1": float(f1[seen].mean()),
    }.get(metric)


def _mean(
    metric: str, metrics: Mapping[str, Any], manifest: DatasetManifest | None
) -> float | None:
    targets = metrics.get("targets")
    if targets is None:
        return None
    centre = targets["mean"]
    if manifest is not None and manifest.rows(TRAIN):
        shards = [s.target for s in manifest.splits[TRAIN] if s.target is not None]
        centre = sum(one.total for one in shards) / manifest.rows(TRAIN) if shards else centre
    squared = targets["deviation"] ** 2 + (targets["mean"] - centre) ** 2
    if metric in ("mse", "loss"):
        return squared
    if metric == "r2":
        return 1 - squared / targets["deviation"] ** 2 if targets["deviation"] else None
    return None
