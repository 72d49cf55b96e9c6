"""baseline.json: metrics of the simple model that a run is compared with (`howdah baseline`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from howdah import storage
from howdah.config.metric_table import METRICS, SHOWN
from howdah.errors import ModelError, NotFound
from howdah.runs.record import METRICS_SHAPE
from howdah.storage.shapes import fault

__all__ = ["FILE_NAME", "Baseline", "read", "require"]

FILE_NAME = "baseline.json"
_REMEDY = "run `howdah baseline` with this configuration"


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """A measured baseline."""

    dataset: str
    """Path of the dataset version."""
    dataset_hash: str
    metrics: dict[str, dict[str, Any]]
    """{split: result of `classification_metrics`}."""
    about: dict[str, Any]
    """The whole file."""

    def value(self, split: str, metric: str) -> float | None:
        """A metric; None where the split was not measured, or the metric is undefined."""
        return (self.metrics.get(split) or {}).get(metric)

    def beside(self, split: str, model: Mapping[str, Any]) -> list[str]:
        """A line for each metric that is shown: the baseline's value and the model's.

        Args:
            model: the model's metrics of the split.
        """
        lines = []
        for name in SHOWN:
            ours, theirs = self.value(split, name), model.get(name)
            if ours is not None and theirs is not None:
                better = METRICS[name].score(theirs) > METRICS[name].score(ours)
                judged = "better" if better else "not better"
                lines.append(f"{split} {name}: baseline {ours:.4f}, model {theirs:.4f} ({judged})")
        return lines


def read(directory: str) -> Baseline | None:
    """The baseline in a run directory (any storage); None: there is none.

    Raises:
        ModelError: the file is not one that `howdah baseline` has written.
        DataError: it is no JSON.
    """
    path = storage.join(directory, FILE_NAME)
    try:
        about = storage.read_json(path)
    except NotFound:
        return None
    try:
        if fault(about["metrics"], METRICS_SHAPE) is not None:
            raise TypeError
        return Baseline(
            dataset=str(about["dataset"]),
            dataset_hash=str(about["dataset_hash"]),
            metrics={split: dict(found) for split, found in about["metrics"].items()},
            about=about,
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ModelError(
            "the file is no baseline's",
            where=path,
            expected="dataset, dataset_hash and metrics of each split",
            remedy=f"remove it, then {_REMEDY}",
        ) from None


def require(directory: str, dataset_hash: str | None, split: str, metric: str) -> float:
    """The baseline's value of a metric, on the dataset that a run was measured on.

    Raises:
        ModelError: no baseline, one of another dataset, or without this metric of this split.
    """
    path = storage.join(directory, FILE_NAME)
    found = read(directory)
    if found is None:
        raise ModelError(
            "gate.min_over_baseline needs the baseline's metrics, and there are none",
            where=path,
            remedy=_REMEDY,
        )
    if found.dataset_hash != dataset_hash:
        raise ModelError(
            "the baseline was measured on another dataset than the run",
            where=path,
            expected=f"dataset {dataset_hash}",
            got=f"dataset {found.dataset_hash}",
            remedy=f"{_REMEDY}, and data.dataset the run's version",
        )
    value = found.value(split, metric)
    if value is None:
        raise ModelError(
            f"the baseline has no {metric} on {split}",
            where=path,
            expected=f"metrics.{split}.{metric}",
            got=f"metrics of {', '.join(found.metrics) or 'no split'}",
            remedy="name a measured split as gate.split, and a defined metric as"
            f" evaluation.metric; then {_REMEDY}",
        )
    return value
