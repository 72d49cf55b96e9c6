"""The baseline: TF-IDF and logistic regression on a dataset's own splits and token ids.

Cleaning, duplicates, splits and rows are the model's, since both read the same shards; so are class
weights, the metrics' code, the choice by `evaluation.metric` on validation, and the splits that are
evaluated. The fitted model is discarded; its metrics and predictions are kept in the run's
directory and beside the dataset version, where other runs on it find them.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from howdah import redact, storage
from howdah.config.model import Config
from howdah.config.splits import TRAIN
from howdah.core.activity import Progress
from howdah.data.manifest import Dataset, load_dataset
from howdah.errors import AlreadyExists, ConfigError, HowdahError
from howdah.models.metrics import tally
from howdah.models.runs import baseline as results
from howdah.models.runs import record
from howdah.run_files import RUN_JSON
from howdah.serving.baseline import local
from howdah.serving.report import report
from howdah.storage import directories, lease

MOST_ROWS = 10_000
"""Training rows up to which `howdah train` measures the baseline at its end without being asked.
The time grows with rows and labels: 22,000 rows of nine labels took 79 s on two cores."""
_PACKAGES = ("scikit-learn", "scipy", "numpy")
_LEASE_SECONDS = 60.0
_LOOK_SECONDS = 0.5


def measure_baseline(config: Config, *, progress: Progress) -> dict:
    """Measure the baseline, write baseline.json, and renew the report of an existing run.

    An existing run also decides which dataset version is measured.

    Returns:
        The contents of baseline.json, and `path`.
    Raises:
        ConfigError: it would take more memory than `MAX_BYTES`.
        DataError: no dataset, or no classifier can be fitted to it.
        ClusterError: scikit-learn is not installed.
    """
    dataset = _dataset(config)
    if dataset.manifest.task != "single_label":
        raise ConfigError(
            f"the baseline predicts one label a row, and the dataset's task is"
            f" {dataset.manifest.task}",
            where=dataset.path,
            remedy="compare the model with gate.minimum or the published model",
        )
    if dataset.manifest.kind != "text":
        raise ConfigError(
            "the baseline counts words, and the dataset holds images",
            where=dataset.path,
            remedy="compare an image model with gate.minimum or the published model",
        )
    tally.require(config.evaluation.metric)
    directory = config.run.directory
    directories.take(directory, config.run.mode, key="run.directory")
    manifest = dataset.manifest
    beside = results.directory_of(dataset.path, manifest.dataset_hash, config)
    kept = _kept(beside, progress)
    if kept is None:
        with _one_writer(beside, progress) as writes:
            kept = _kept(beside, progress)  # by the process that wrote it meanwhile
            if kept is None:
                value, predicted = _measured(config, dataset, progress)
                if writes:
                    _keep(beside, value, predicted, progress)
    if kept is not None:
        value = kept.about
        predicted = {split: kept.predicted(split) for split in kept.metrics}
        predicted = {split: each for split, each in predicted.items() if each is not None}
    path = results.write(directory, value, predicted)
    _renew_report(directory, progress)
    return {**storage.read_json(path), "path": path}


def measure_if_quick(config: Config, *, progress: Progress) -> None:
    """Measure the baseline of a run that ends, unless it is known, or would take minutes.

    A line says why there is none; training has succeeded in any case.
    """
    try:
        dataset = _dataset(config)
        manifest = dataset.manifest
        if (manifest.task, manifest.kind) != ("single_label", "text"):
            return
        if results.find(config.run.directory, dataset.path, manifest.dataset_hash, config):
            return
        if manifest.rows(TRAIN) > MOST_ROWS:
            progress(
                f"no baseline: {manifest.rows(TRAIN):,} training rows would take minutes;"
                " `howdah evaluate --baseline` measures it"
            )
            return
        progress("measuring the baseline, TF-IDF with logistic regression")
        measure_baseline(config, progress=lambda line: None)
    except HowdahError as error:
        progress(f"no baseline: {error.what}" + (f" ({error.remedy})" if error.remedy else ""))


@contextlib.contextmanager
def _one_writer(beside: str, progress: Progress) -> Iterator[bool]:
    """Wait until no other process measures this baseline; True if it can be kept beside the
    dataset, False where this user or the storage does not let it."""
    waits = False
    while True:
        try:
            storage.make_dirs(beside)
            held = lease.acquire(storage.join(beside, "measuring"), seconds=_LEASE_SECONDS)
            break
        except AlreadyExists as other:
            if not waits:
                progress(f"another process is measuring the baseline ({other.got}): waiting")
            waits = True
            time.sleep(_LOOK_SECONDS)
        except HowdahError as error:
            progress(f"the baseline is kept only in the run: {error.what} ({beside})")
            yield False
            return
    with held:
        yield True


def _measured(
    config: Config, dataset: Dataset, progress: Progress
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return (contents of baseline.json, {split: predicted class of each row})."""
    began = time.monotonic()
    result = local.measure(config, dataset, progress)
    manifest = dataset.manifest
    value = {
        "baseline": "TF-IDF, logistic regression",
        "dataset": redact.text(dataset.path),
        "dataset_hash": manifest.dataset_hash,
        "labels": manifest.labels,
        "train_rows": manifest.rows(TRAIN),
        "options": results.options(config),
        "features": result.features,
        "c": result.c,
        "tried": result.tried,
        "chosen_by": result.chosen_by,
        "converged": result.converged,
        "metrics": result.metrics,
        "seconds": round(time.monotonic() - began, 3),
        "versions": {name: importlib.metadata.version(name) for name in _PACKAGES},
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    return value, result.predicted


def _kept(beside: str, progress: Progress) -> results.Baseline | None:
    """The baseline that was measured before on this dataset version with these options."""
    try:
        stored = results.read(beside)
    except HowdahError as error:
        progress(f"the stored baseline cannot be read, so it is measured again: {error.what}")
        return None
    if stored is None:
        return None
    progress(
        f"measured on this dataset version before ({stored.about.get('created')}); remove"
        f" {storage.absolute(beside)} to measure it again"
    )
    return stored


def _keep(
    beside: str, value: dict[str, Any], predicted: dict[str, np.ndarray], progress: Progress
) -> None:
    """Keep a baseline for other runs on the dataset version, where this user may write."""
    try:
        results.write(beside, value, predicted)
    except HowdahError as error:
        progress(f"not kept beside the dataset for other runs: {error.what} ({beside})")


def _dataset(config: Config) -> Dataset:
    """Load the version that the configuration's run was trained on; without a run, the newest.

    The ETL may have made a newer one since, and metrics of two datasets cannot be compared.
    """
    root = config.data.dataset
    run_file = storage.join(config.run.directory, RUN_JSON)
    if storage.exists(run_file):
        attempts = record.read(config.run.directory).get("attempts") or [{}]
        path = attempts[-1].get("dataset")
        if path is not None and path.startswith(root.rstrip("/") + "/"):
            return load_dataset(path)
    return load_dataset(root)


def _renew_report(directory: str, progress: Progress) -> None:
    """Write the report of a finished run again; an unfinished run writes it at its end."""
    run_file = storage.join(directory, RUN_JSON)
    if not storage.exists(run_file):
        return
    if record.read(directory).get("status") == "finished":
        progress(f"report renewed: {storage.absolute(report.write(directory, progress=progress))}")
