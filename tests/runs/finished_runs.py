"""Run directories as a finished training leaves them, without training: real exports, run.json."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from howdah import storage
from howdah.config.loader import from_dict
from howdah.config.metric_table import metrics_of
from howdah.config.model import Config
from howdah.data.encode import Encoder
from howdah.models.export.export import export
from howdah.models.export.run_info import RunInfo
from howdah.models.weights.pretrained import load_base
from howdah.serving.registry.publish import publish

LABELS = ["cat", "dog"]


def finished_run(
    directory: str,
    base: str,
    *,
    run_id: str,
    accuracy: float = 0.9,
    dataset: str = "d1",
    changes: dict | None = None,
    answers: str | None = None,
    labels: Sequence[str] = LABELS,
    clean: dict | None = None,
) -> str:
    """Write run.json and export/ of a run; returns `directory`.

    Args:
        base: model directory.
        accuracy: of every metric but loss and ece, which are 1 - accuracy; on test, and 0.01 more
            on validation.
        dataset: hash of the dataset.
        changes: of run.json.
        answers: the label that the model gives every text; None: by random weights.
        labels: of the model.
        clean: steps of data.clean that its texts had; None: the defaults.
    """
    model = load_base(base)
    rng = np.random.default_rng(sum(run_id.encode()))
    head = {
        name: rng.standard_normal(shape).astype(np.float32)
        for name, shape in model.family.head_shapes(model.config, len(labels)).items()
    }
    if answers is not None:
        head["classifier.weight"] *= 0.01
        head["classifier.bias"] = np.array([3.0 * (n == answers) for n in labels], np.float32)
    metrics = {"test": _metrics(accuracy), "validation": _metrics(accuracy + 0.01)}
    export(
        storage.join(directory, "export"),
        weights=dict(model.weights) | head,
        base_config=model.config,
        tokenizer_files=model.tokenizer_files,
        label_names=list(labels),
        run_info=RunInfo(
            run_id=run_id, run_name="zoo", framework="torch", step=12, max_length=48,
            clean=clean or {}, base={"source": base, "hash": model.hash},
            tokenizer_hash=Encoder.load(base).hash,
            dataset={"path": f"data/v={dataset}", "hash": dataset, "rows": {"test": 7}},
            metrics=metrics,
        ),
    )  # fmt: skip
    run = {
        "run_id": run_id, "name": "zoo", "status": "finished", "framework": "torch", "steps": 20,
        "best_step": 12, "metrics": metrics,
    }  # fmt: skip
    data = json.dumps(run | (changes or {})).encode()
    storage.write_whole(storage.join(directory, "run.json"), data)
    return directory


def _metrics(accuracy: float) -> dict:
    names = metrics_of("single_label")
    lower = {"loss": 1 - accuracy, "ece": 1 - accuracy}
    return dict.fromkeys(names, accuracy) | lower | {"rows": 7, "per_class": {}}


def config_of(run: str, models: str, **sections: dict) -> Config:
    """The configuration of such a run that publishes to `<models>/zoo`."""
    return from_dict(
        {
            "run": {"name": "zoo", "directory": run},
            "publish": {"directory": models},
            "evaluation": {"metric": "accuracy"},
            **sections,
        }
    )


def two_versions(place, base: str) -> str:
    """Publish two runs as versions of zoo, the second current; the publish.directory."""
    for number in (1, 2):
        directory = str(place / f"run-{number}")
        finished_run(directory, base, run_id=f"run-{number}")
        publish(config_of(directory, str(place / "models")), never)
    return str(place / "models")


def never(model: str, dataset: str, split: str) -> dict:
    """For gates that must not evaluate anything."""
    raise AssertionError(f"asked to evaluate {model} on {dataset}")
