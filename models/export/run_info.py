"""The record of a run in its export, which every prediction refers to by the run id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from howdah import redact
from howdah.config.data import CleanOptions, Columns
from howdah.config.model import Config
from howdah.config.tasks import Task
from howdah.data.manifest import Dataset, DatasetManifest
from howdah.models.runs.run_json import utc_now, versions
from howdah.models.runs.settings import described, settings_at
from howdah.models.weights.pretrained import BaseModel


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """The run that made an export; `howdah.json` holds this as JSON."""

    run_id: str
    """The run's id, which every prediction carries."""
    max_length: int
    """Number of tokens that texts are truncated to, special ones included."""
    clean: dict[str, bool]
    """The cleaning steps of data.clean that were applied to the training data."""
    base: dict[str, str]
    """{source, hash} of the base model."""
    tokenizer_hash: str
    task: Task = "single_label"
    """What the model predicts (data.task)."""
    pairs: bool = False
    """True if the model takes pairs of texts."""
    run_name: str | None = None
    framework: str | None = None
    step: int | None = None
    """Optimizer steps of the exported weights."""
    columns: dict[str, Any] = field(default_factory=dict)
    """data.columns: the source's columns that the text was made from."""
    dataset: dict[str, Any] | None = None
    """{path, hash, rows: {split: rows}}."""
    metrics: dict[str, dict] = field(default_factory=dict)
    """{split: the task's metrics}."""
    training: dict[str, Any] = field(default_factory=dict)
    """Keys of the configuration that the model card shows."""
    stages: list[dict[str, Any]] = field(default_factory=list)
    """[{steps, settings}] if the run was resumed with other settings: the ones that changed."""
    versions: dict[str, str] = field(default_factory=dict)
    created: str = ""
    """ISO 8601, UTC."""


def describe_run(
    *,
    config: Config,
    dataset: Dataset,
    base: BaseModel,
    run_id: str,
    step: int | None = None,
    metrics: Mapping[str, dict] | None = None,
    attempts: Sequence[Mapping[str, Any]] = (),
) -> RunInfo:
    """The RunInfo of a run of `config` on `dataset`.

    Args:
        metrics: {split: metrics} of the exported weights.
        attempts: `attempts` of run.json.
    """
    manifest, training, model = dataset.manifest, config.training, config.model
    keys = (
        "framework", "global_batch_size", "num_train_epochs", "max_steps", "learning_rate",
        "lr_scheduler_type", "warmup_ratio", "weight_decay", "max_grad_norm", "precision",
        "label_smoothing_factor", "class_weights", "seed",
    )  # fmt: skip
    shown = {key: getattr(training, key) for key in keys}
    shown |= {key: getattr(model, key) for key in ("freeze_embeddings", "freeze_layers")}
    shown["lora"] = training.lora.rank and training.lora.model_dump()
    # The weights may have been trained before a change of settings.
    settings = settings_at(attempts, step)
    shown |= {key: settings[f"training.{key}"] for key in keys if f"training.{key}" in settings}
    return RunInfo(
        run_id=run_id,
        task=manifest.task,
        pairs=manifest.pairs,
        run_name=config.run.name,
        framework=training.framework,
        step=step,
        max_length=manifest.max_length,
        # How a third-party writer's records were cleaned is not known: serving does not clean then.
        clean={
            name: bool(manifest.cleaning.get(name, False)) for name in CleanOptions.model_fields
        },
        columns=_columns(manifest, config),
        base={"source": redact.text(base.source), "hash": base.hash},
        tokenizer_hash=manifest.tokenizer.hash,
        dataset={
            "path": redact.text(dataset.path),
            "hash": manifest.dataset_hash,
            "rows": {split: manifest.rows(split) for split in manifest.splits},
        },
        metrics=dict(metrics or {}),
        training=shown,
        stages=described(attempts, upto=step),
        versions=versions(training.framework),
        created=utc_now(),
    )


def _columns(manifest: DatasetManifest, config: Config) -> dict:
    """The columns that the dataset was built from. They come from its manifest; only manifests of
    third-party writers lack them, and then the configuration's are taken."""
    columns = manifest.source.get("columns")
    if columns is None:
        return config.data.columns.model_dump(mode="json")
    return Columns(**columns).model_dump(mode="json")
