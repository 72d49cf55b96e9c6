"""`howdah export`: the export of a finished run, from one of its checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from howdah import storage
from howdah.config.loader import Config, load
from howdah.data.manifest import MANIFEST, Dataset, load_dataset
from howdah.errors import CheckpointError, ConfigError, ModelError, NotFound
from howdah.models.base import with_pinned_base
from howdah.models.export.export import export
from howdah.models.export.formats import require, sample_rows
from howdah.models.export.run_info import describe_run
from howdah.models.replay import training_rows
from howdah.models.runs.run_json import CONFIG
from howdah.models.weights.parameters import with_dropouts
from howdah.models.weights.pretrained import BaseModel
from howdah.run_files import RUN_JSON
from howdah.training.checkpoint.manager import Checkpoints
from howdah.training.checkpoint.manager import load as load_checkpoint
from howdah.training.checkpoint.read import model_weights, read_manifest
from howdah.training.model.warm import begin


def export_run(
    config: Config,
    *,
    checkpoint: str | None = None,
    output: str | None = None,
    formats: Sequence[str] | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> str:
    """Export a checkpoint of the configuration's run: the one given, else the best, else the last.

    Args:
        checkpoint: a step-N directory; None: the best, else the last.
        output: directory; None: export/ in the run directory.
        formats: as of `export`; None: export.formats of the run.
        progress: called with a line.
    Raises:
        UsageError: a format that cannot be written here.
        CheckpointError: no whole checkpoint, or of another model or dataset.
        ModelError: the base model is not the one that was trained.
    """
    config = _own_config(config)
    named = config.export.formats if formats is None else formats
    require(named, None, where="--format" if formats is not None else "export.formats")
    if checkpoint is None:
        saved = Checkpoints(config.checkpoint_directory, metric=config.evaluation.metric)
        best = saved.best()
        found = load_checkpoint(best.path) if best else saved.latest()
        if found is None:
            raise CheckpointError(
                "the run has no checkpoint to export",
                where=config.checkpoint_directory,
                remedy="train first, or correct run.directory / checkpoint.directory",
            )
    else:
        found = load_checkpoint(checkpoint)
    config = with_pinned_base(config, as_begun=True)
    dataset = _dataset_of(config, found.path)
    base = _base_of(config, found.path, dataset)
    run = _run_json(config.run.directory)
    info = describe_run(
        config=config,
        dataset=dataset,
        base=base,
        run_id=str(run.get("run_id") or config.run.name),
        step=found.step,
        # run.json's metrics are of the weights that the run itself exported.
        metrics=run.get("metrics") if _exported_step(run) == found.step else None,
        attempts=run.get("attempts") or (),
    )
    return export(
        output or storage.join(config.run.directory, "export"),
        weights=model_weights(found.tensors),
        base_config=with_dropouts(base.config, config.model),
        tokenizer_files=base.tokenizer_files,
        label_names=dataset.manifest.labels,
        run_info=info,
        formats=named,
        samples=sample_rows(dataset, named),
        progress=progress,
    )


def _own_config(config: Config) -> Config:
    """The run's own configuration: the user's file may have changed since it was trained.

    Its directory is the one that was asked for: the run may have been moved, or be a copy. So is
    a directory of checkpoints below it.
    """
    directory = config.run.directory
    frozen = storage.join(directory, CONFIG)
    if not storage.exists(frozen):
        return config
    if not storage.read_text(frozen).strip():
        raise ModelError(
            "the run's configuration is empty",
            where=frozen,
            expected="the keys that the run was trained with",
            remedy="put a copy back, or remove it: then the given configuration is the run's",
        )
    own = load(frozen)
    below, checkpoints = storage.join(own.run.directory, ""), own.checkpoint.directory
    if checkpoints is not None and checkpoints.startswith(below):
        checkpoints = storage.join(directory, checkpoints.removeprefix(below))
    return own.model_copy(
        update={
            "run": own.run.model_copy(update={"directory": directory}),
            "checkpoint": own.checkpoint.model_copy(update={"directory": checkpoints}),
        }
    )


def _run_json(directory: str) -> dict:
    try:
        return storage.read_json(storage.join(directory, RUN_JSON))
    except NotFound:  # the run was killed before it wrote one: a checkpoint suffices
        return {}


def _exported_step(run: dict) -> int | None:
    best = run.get("best_step")
    return run.get("steps") if best is None else best


def _base_of(config: Config, checkpoint: str, dataset: Dataset) -> BaseModel:
    """The base model that a checkpoint was trained from."""
    base = begin(config, dataset.manifest.labels)
    trained = read_manifest(checkpoint)["identity"]["base_model"]
    if trained != base.hash:
        begun = config.model.init_from
        raise CheckpointError(
            "the checkpoint belongs to another base model",
            where=checkpoint,
            expected=f"base model {trained}",
            got=f"{base.hash} ({base.source}" + (f", begun from {begun})" if begun else ")"),
            remedy="set model.base and model.init_from to what it was trained from",
        )
    return base


def _dataset_of(config: Config, checkpoint: str) -> Dataset:
    """The dataset version that a checkpoint was trained on."""
    trained = read_manifest(checkpoint)["identity"]["dataset"]
    newest = load_dataset(config.data.dataset)
    if _trains_on(config, newest) == trained:
        return newest
    root = storage.parent(newest.path)  # the ETL may have run again since
    for entry in storage.list_dir(root):
        if entry.is_dir and storage.exists(storage.join(entry.path, MANIFEST)):
            version = load_dataset(entry.path)
            if _trains_on(config, version) == trained:
                return version
    raise CheckpointError(
        "the dataset that the checkpoint was trained on is missing",
        where=root,
        expected=f"a version whose manifest has the hash {trained}",
        got=f"the newest has {newest.manifest_hash}",
        remedy="set data.dataset to the one it was trained on",
    )


def _trains_on(config: Config, version: Dataset) -> str | None:
    """Identity of a version as the run would train on it; None: it could not."""
    try:
        return training_rows(version, config, as_begun=True).identity
    except ConfigError:  # training.replay, and the version has no parts or nothing is left
        return None
