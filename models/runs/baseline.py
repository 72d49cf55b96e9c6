"""baseline.json: metrics of the simple model that a run is compared with, measured at the end of
`howdah train` or by `howdah evaluate --baseline`.

    <run.directory>/baseline.json, baseline.npz                  the baseline of this run
    <data.dataset>/baselines/<dataset hash>/<options hash>/...   the same files, for all runs on
                                                                 that version

baseline.npz has the class number that the baseline predicts for each row, in the order of the
version's shards, so that a model can be compared with it row by row.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from howdah import storage
from howdah.config.metric_table import METRICS, SHOWN
from howdah.config.model import Config
from howdah.data.manifest import content_hash
from howdah.errors import ModelError, NotFound
from howdah.models.runs.record import METRICS_SHAPE
from howdah.storage.shapes import fault

if TYPE_CHECKING:
    import numpy as np

FILE_NAME = "baseline.json"
PREDICTIONS = "baseline.npz"
_BESIDE = "baselines"
_REMEDY = "run `howdah evaluate --baseline` with this configuration"


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """A measured baseline."""

    dataset: str
    """Path of the dataset version."""
    dataset_hash: str
    metrics: dict[str, dict[str, Any]]
    """{split: result of `classification_metrics`}."""
    about: dict[str, Any]
    """The contents of baseline.json."""
    directory: str
    """Directory of the baseline's files."""

    def predicted(self, split: str) -> np.ndarray | None:
        """int[N]: the class predicted for each row of a split, in the order of the version's
        shards. None if there is no such file, or it belongs to another baseline.json."""
        import numpy as np

        try:
            data = storage.read_bytes(storage.join(self.directory, PREDICTIONS))
        except NotFound:
            return None
        if hashlib.sha256(data).hexdigest() != self.about.get("predictions_sha256"):
            return None
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
                return arrays.get(split)
        except (ValueError, OSError, zipfile.BadZipFile):
            return None

    def value(self, split: str, metric: str) -> float | None:
        """A metric; None if the split was not measured, or the metric is undefined."""
        return (self.metrics.get(split) or {}).get(metric)

    def beside(self, split: str, model: Mapping[str, Any]) -> list[str]:
        """A line for each displayed metric, with the baseline's value and the model's.

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


def options(config: Config) -> dict[str, Any]:
    """The parts of a configuration that affect a baseline's metrics, besides the dataset."""
    return {
        "class_weights": config.training.class_weights,
        "metric": config.evaluation.metric,
        "splits": list(config.evaluation.splits),
    }


def directory_of(dataset: str, dataset_hash: str, config: Config) -> str:
    """Directory of the baseline that all runs on a dataset version share.

    Args:
        dataset: path of the version; the directory lies beside it.
    """
    below = [_BESIDE, dataset_hash, content_hash(options(config))]
    return storage.join(storage.parent(dataset), *below)


def write(directory: str, about: Mapping[str, Any], predicted: Mapping[str, np.ndarray]) -> str:
    """Write a baseline's files into a directory. Returns the path of baseline.json.

    Args:
        predicted: {split: result of `Baseline.predicted`}.
    """
    import numpy as np

    about = dict(about)
    path = storage.join(directory, FILE_NAME)
    storage.make_dirs(directory)
    if predicted:
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **predicted)
        about["predictions_sha256"] = hashlib.sha256(buffer.getvalue()).hexdigest()
        storage.write_whole(storage.join(directory, PREDICTIONS), buffer.getvalue())
    text = json.dumps(about, indent=1, ensure_ascii=False, allow_nan=False)
    # A lone surrogate of a label becomes its escape, which JSON allows.
    storage.write_whole(path, (text + "\n").encode(errors="backslashreplace"))
    return path


def find(
    directory: str, dataset: str | None, dataset_hash: str | None, config: Config | None
) -> Baseline | None:
    """The baseline that a run is compared with: the one in its directory, else the one beside the
    dataset version; None if there is none.

    Args:
        dataset, dataset_hash: path and hash of the version that the run was trained on; None: not
            known.
        config: the run's configuration; None: not known.
    Raises:
        ModelError, DataError: see `read`.
    """
    run_baseline = read(directory)
    has_identity = dataset is not None and dataset_hash is not None and config is not None
    if not has_identity or (run_baseline is not None and run_baseline.dataset_hash == dataset_hash):
        return run_baseline
    return read(directory_of(dataset, dataset_hash, config)) or run_baseline


def read(directory: str) -> Baseline | None:
    """The baseline in a run directory (any storage); None if there is none.

    Raises:
        ModelError: the file is not one that `howdah evaluate --baseline` has written.
        DataError: it is not JSON.
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
            metrics={split: dict(values) for split, values in about["metrics"].items()},
            about=about,
            directory=directory,
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ModelError(
            "the file is not a baseline", where=path, remedy=f"remove it, then {_REMEDY}"
        ) from None


def require(
    directory: str, dataset: Mapping[str, Any], config: Config, split: str, metric: str
) -> float:
    """The baseline's value of a metric, on the dataset that a run was measured on.

    Args:
        dataset: {path, hash} of that version.
    Raises:
        ModelError: there is no baseline, or it was measured on another dataset or lacks the metric.
    """
    path = storage.join(directory, FILE_NAME)
    dataset_hash = dataset.get("hash")
    baseline = find(directory, dataset.get("path"), dataset_hash, config)
    if baseline is None:
        message = "gate.min_over_baseline needs a baseline's metrics, but there is no baseline"
        raise ModelError(message, where=path, remedy=_REMEDY)
    if baseline.dataset_hash != dataset_hash:
        raise ModelError(
            "the baseline and the run were measured on different datasets",
            where=path,
            expected=f"dataset {dataset_hash}",
            got=f"dataset {baseline.dataset_hash}",
            remedy=f"{_REMEDY} and the run's version as data.dataset",
        )
    value = baseline.value(split, metric)
    if value is None:
        raise ModelError(
            f"the baseline has no {metric} on {split}",
            where=path,
            got=f"metrics of {', '.join(baseline.metrics) or 'no split'}",
            remedy="name a measured split as gate.split, and a defined metric as"
            f" evaluation.metric; then {_REMEDY}",
        )
    return value
