"""`howdah export`: writes the export of a run from one of its checkpoints."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

from howdah import storage
from howdah.config.loader import load
from howdah.config.model import Config
from howdah.data.manifest import MANIFEST, Dataset, load_dataset
from howdah.errors import CheckpointError, ConfigError, DataError, HowdahError, ModelError
from howdah.models.base import with_pinned_base
from howdah.models.export.export import export
from howdah.models.export.formats import require, sample_rows
from howdah.models.export.run_info import describe_run
from howdah.models.replay import training_rows
from howdah.models.runs.run_json import CONFIG, RunFile
from howdah.models.weights import lora
from howdah.models.weights.parameters import with_dropouts
from howdah.models.weights.pretrained import BaseModel
from howdah.training.checkpoint.manager import Checkpoints
from howdah.training.checkpoint.read import load as load_checkpoint
from howdah.training.checkpoint.read import model_weights, read_manifest
from howdah.training.model.warm import begin

_Opened = TypeVar("_Opened")


def export_run(
    config: Config,
    *,
    checkpoint: str | None = None,
    output: str | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> str:
    """Export a checkpoint of the configuration's run. Returns the path of the export.

    Args:
        checkpoint: `step-60`, or the path of a step-N directory; None: the best, else the last.
        output: directory of the export; None: export/ in the run directory.
    Raises:
        UsageError: a format cannot be written here.
        CheckpointError: there is no complete checkpoint, or it has another model or dataset.
        ModelError: the base model is not the one that was trained.
    """
    requested, config = config, _frozen_config(config)
    # Formats that the user names take precedence over those of the run's configuration.
    is_named = "formats" in requested.export.model_fields_set
    named = (requested if is_named else config).export.formats
    require(named, None, where="export.formats")
    if checkpoint is None:
        metric = config.evaluation.metric
        saved = Checkpoints(config.checkpoint_directory, metric=metric, say=progress)
        best = saved.best()
        trained = load_checkpoint(best.path) if best else saved.latest()
        if trained is None:
            raise CheckpointError(
                "the run has no checkpoint to export",
                where=config.checkpoint_directory,
                remedy="train first, or correct run.directory or checkpoint.directory",
            )
    else:
        trained = load_checkpoint(config.checkpoint_path(checkpoint))
    config, dataset = _first_that_fits(
        config,
        requested,
        "data",
        ("dataset",),
        lambda one: _dataset_of(one, trained.path),
        progress,
    )
    config, base = _first_that_fits(
        config, requested, "model", ("base", "init_from"),
        lambda one: _base_of(one, trained.path, dataset), progress,
    )  # fmt: skip
    config = with_pinned_base(config, as_begun=True)
    weights = {name: base.weights[name] for name in trained.of_base}
    weights |= model_weights(trained.tensors)
    run = RunFile(config.run.directory).values  # {} if it was killed before it wrote one
    # run.json's metrics belong to the weights that the run itself exported.
    exported = run.get("steps" if run.get("best_step") is None else "best_step")
    info = describe_run(
        config=config,
        dataset=dataset,
        base=base,
        run_id=str(run.get("run_id") or config.run.name),
        step=trained.step,
        metrics=run.get("metrics") if exported == trained.step else None,
        attempts=run.get("attempts") or (),
    )
    return export(
        output or storage.join(config.run.directory, "export"),
        weights=lora.without_adapters(lora.merged(weights)),
        base_config=with_dropouts(base.config, config.model),
        tokenizer_files=base.tokenizer_files,
        label_names=dataset.manifest.labels,
        run_info=info,
        formats=named,
        samples=sample_rows(dataset, named),
        progress=progress,
    )


def _frozen_config(config: Config) -> Config:
    """The configuration that the run was trained with: the user's file may have changed since.

    Its run.directory is replaced by the requested one, since the run may have been moved or copied,
    and so is a directory of checkpoints below it.
    """
    directory = config.run.directory
    frozen = storage.join(directory, CONFIG)
    if not storage.exists(frozen):
        return config
    if not storage.read_text(frozen).strip():
        raise ModelError(
            "the run's configuration is empty",
            where=frozen,
            remedy="restore it from a copy, or remove it: then the configuration of the command"
            " applies",
        )
    frozen_config = load(frozen)
    below = storage.join(frozen_config.run.directory, "")
    checkpoints = frozen_config.checkpoint.directory
    if checkpoints is not None and checkpoints.startswith(below):
        checkpoints = storage.join(directory, checkpoints.removeprefix(below))
    return frozen_config.model_copy(
        update={
            "run": frozen_config.run.model_copy(update={"directory": directory}),
            "checkpoint": frozen_config.checkpoint.model_copy(update={"directory": checkpoints}),
        }
    )


def _first_that_fits(
    config: Config,
    requested: Config,
    section: Literal["data", "model"],
    keys: Sequence[str],
    opened: Callable[[Config], _Opened],
    progress: Callable[[str], None],
) -> tuple[Config, _Opened]:
    """(configuration, what `opened` makes of it): by the run's own paths, else by those that the
    command sets, since dataset and base model may have been moved.

    The checkpoint's hashes refuse other contents at either place.

    Args:
        config: the run's configuration.
        requested: the command's.
        keys: keys of the section that are taken from the command.
    """
    trained, named = getattr(config, section), getattr(requested, section)
    changed = {
        key: getattr(named, key)
        for key in keys
        if key in named.model_fields_set and getattr(named, key) != getattr(trained, key)
    }
    try:
        return config, opened(config)
    except HowdahError as error:
        if not changed:
            raise
        places = ", ".join(f"{section}.{key} {value}" for key, value in changed.items())
        progress(f"{error.what} ({error.where}): using {places} of this command instead")
    config = config.model_copy(update={section: trained.model_copy(update=changed)})
    return config, opened(config)


def _base_of(config: Config, checkpoint: str, dataset: Dataset) -> BaseModel:
    """The base model that a checkpoint was trained from."""
    config = with_pinned_base(config, as_begun=True)
    base = begin(config, dataset.manifest.labels)
    trained = read_manifest(checkpoint)["identity"]["base_model"]
    if trained != base.hash:
        begun = config.model.init_from
        raise CheckpointError(
            "the checkpoint belongs to another base model",
            where=checkpoint,
            expected=f"base model {trained}",
            got=f"{base.hash} ({base.source}" + (f", begun from {begun})" if begun else ")"),
            remedy="set model.base and model.init_from to the models that it was trained from",
        )
    return base


def _dataset_of(config: Config, checkpoint: str) -> Dataset:
    """The dataset version that a checkpoint was trained on."""
    config = with_pinned_base(config, as_begun=True)
    trained = read_manifest(checkpoint)["identity"]["dataset"]
    newest = load_dataset(config.data.dataset)
    if _trains_on(config, newest) == trained:
        return newest
    root = storage.parent(newest.path)  # the ETL may have written newer versions since
    for entry in storage.list_dir(root):
        if entry.is_dir and storage.exists(storage.join(entry.path, MANIFEST)):
            with contextlib.suppress(DataError):  # a damaged version need not be this one
                version = load_dataset(entry.path)
                if _trains_on(config, version) == trained:
                    return version
    raise CheckpointError(
        "the dataset that the checkpoint was trained on is missing",
        where=root,
        expected=f"a version whose manifest has the hash {trained}",
        got=f"the newest has {newest.manifest_hash}",
        remedy="set data.dataset to the dataset that it was trained on",
    )


def _trains_on(config: Config, version: Dataset) -> str | None:
    """Identity of the rows of a version that the run would train on; None if it could not."""
    try:
        return training_rows(version, config, as_begun=True).identity
    except ConfigError:  # training.replay is set, and the version has no parts or no rows
        return None
