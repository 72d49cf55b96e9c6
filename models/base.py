"""Pins the published version that a run begins from.

`model.base: models/NAME` (and `model.init_from`) means the version that is current when a run
begins. A resumed run, and every attempt of a job, keeps that version even if another one has been
published since, because its checkpoints belong to it. So the version is looked up once and written
to run.json, and a later start of the same run reads it there. The same holds for the parts of an
appended dataset that the initial model was trained on.
"""

from __future__ import annotations

from typing import Any

from howdah import storage
from howdah.config.model import Config
from howdah.data.manifest import Dataset, load_dataset, version_name
from howdah.errors import DataError, ModelError, NotFound
from howdah.models.export_info import read_info
from howdah.models.version import find_version
from howdah.run_files import RUN_JSON


def with_pinned_base(config: Config, *, as_begun: bool | None = None) -> Config:
    """The configuration with the paths of the versions and exports that `model.base` and
    `model.init_from` name (models/version.py). `config` itself is returned where both are already
    paths or are names of the hub.

    Args:
        as_begun: True: use the versions that the run in `run.directory` began with, if there is
            such a run; None: True unless checkpoint.resume is never.
    Raises:
        ModelError: the model has no such version.
    """
    model = config.model
    versions = {}
    for key, address in (("base", model.base), ("init_from", model.init_from)):
        version = address and find_version(address, config.publish.directory)
        if version and version.path != address.rstrip("/"):
            versions[key] = version
    if not versions:
        return config
    first = _begun_with(config, as_begun)
    changed = {key: version.path for key, version in versions.items()}
    for key, version in versions.items():
        before = {"base": first.get("source"), "init_from": first.get("init_from")}[key]
        # NAME@VERSION is the user's explicit choice: if the run began with another version, it is
        # refused later.
        root = storage.parent(version.path)
        if version.follows and isinstance(before, str) and storage.parent(before) == root:
            changed[key] = before
    return config.model_copy(update={"model": model.model_copy(update=changed)})


def learnt_parts(
    config: Config, dataset: Dataset, *, as_begun: bool | None = None
) -> list[str] | None:
    """Identities of the parts that the model of `model.init_from` was trained on.

    Args:
        config: with pinned versions.
        dataset: the version to train on; the model's dataset version is also looked for beside it.
        as_begun: see `with_pinned_base`.
    Returns:
        None if there is no such model, or if the version that it was trained on cannot be read.
    """
    model = config.model.init_from
    if model is None:
        return None
    first = _begun_with(config, as_begun)
    if first.get("init_from") == model and "parts" in first:
        return first["parts"]
    try:
        trained = read_info(model).get("dataset") or {}
    except (NotFound, ModelError):
        return None
    beside = storage.join(storage.parent(dataset.path), version_name(trained.get("hash")))
    for path in dict.fromkeys((trained.get("path"), beside)):
        try:
            version = load_dataset(path) if path else None
        except DataError:
            continue
        if version is not None and version.manifest.dataset_hash == trained.get("hash"):
            return [part.identity for part in version.manifest.parts]
    return None


def _begun_with(config: Config, as_begun: bool | None) -> dict[str, Any]:
    """The `base` entry of the run.json in `run.directory`; {} without one."""
    if as_begun is None:
        as_begun = config.checkpoint.resume != "never"
    if not as_begun:
        return {}
    try:
        base = storage.read_object(storage.join(config.run.directory, RUN_JSON)).get("base")
    except (NotFound, DataError):
        return {}
    return base if isinstance(base, dict) else {}
