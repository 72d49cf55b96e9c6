"""Which shards of an appended dataset are trained on: those of new parts, and some older ones."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection
from dataclasses import replace

from howdah.config.model import Config, TrainingSection
from howdah.config.splits import TRAIN
from howdah.data.manifest import Dataset, content_hash
from howdah.errors import ConfigError
from howdah.models.base import learnt_parts, with_pinned_base


def training_rows(version: Dataset, config: Config, *, as_begun: bool | None = None) -> Dataset:
    """The version as a run of this configuration trains on it; its `identity` is what the run's
    plan and checkpoints depend on.

    Args:
        as_begun: take the model to begin from as the run in `run.directory` has begun with it;
            None: unless checkpoint.resume is never.
    Raises:
        ConfigError, ModelError: as of `replayed` and `with_pinned_base`.
    """
    if config.training.replay is None:
        return version
    pinned = with_pinned_base(config, as_begun=as_begun)
    return replayed(version, config.training, learnt_parts(pinned, version, as_begun=as_begun))


def replayed(
    dataset: Dataset, training: TrainingSection, learnt: Collection[str] | None = None
) -> Dataset:
    """The dataset as training sees it: of train, the shards of new parts and whole older shards
    until `replay` of their rows are reached; validation and test as they are.

    Other choices are other plans, and no checkpoint of one is resumed by another.

    Args:
        training: its `replay`: a fraction of the older rows (float), rows (int), None for all; its
            `seed` orders the older shards.
        learnt: identities of the parts that the model to begin from was trained on: the others are
            new. None: it is not known, or the run begins from no such model: the newest part is.
    Raises:
        ConfigError: the dataset has no parts.
    """
    replay, seed = training.replay, training.seed
    if replay is None:
        return dataset
    manifest = dataset.manifest
    if not manifest.parts:
        raise ConfigError(
            "only a dataset of parts has older rows to replay",
            where="training.replay",
            got=f"{dataset.path}, which was made at once",
            remedy="leave training.replay out, or make the dataset with data.append.enabled",
        )
    if learnt is None:
        latest = f"v={manifest.dataset_hash}"
        new = {part.name for part in manifest.parts if part.version == latest}
    else:
        new = {part.name for part in manifest.parts if part.identity not in learnt}
    entries = manifest.splits.get(TRAIN, [])
    old = [entry for entry in entries if entry.part not in new]
    rows = sum(entry.rows for entry in old)
    wanted = replay if isinstance(replay, int) else math.ceil(replay * rows)
    left_out = set()
    for entry in sorted(old, key=lambda entry: _order(seed, entry.name)):
        if wanted <= 0:
            left_out.add(entry.name)
        wanted -= entry.rows
    taken = [entry for entry in entries if entry.name not in left_out]
    if not taken:
        raise ConfigError(
            "new parts have no training rows, and no older ones are replayed",
            where="training.replay",
            expected="more than 0",
            got=str(replay),
            remedy="raise it, or do not train for this part",
        )
    return replace(
        dataset,
        manifest=manifest.model_copy(update={"splits": {**manifest.splits, TRAIN: taken}}),
        choice=content_hash([dataset.manifest_hash, [entry.name for entry in taken]]),
    )


def _order(seed: int, name: str) -> str:
    return hashlib.sha256(f"{seed}:{name}".encode()).hexdigest()
