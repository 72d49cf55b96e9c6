"""Chooses the shards of an appended dataset to train on: those of new parts and some older ones."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection
from dataclasses import replace

from howdah.config.model import Config
from howdah.config.splits import TRAIN
from howdah.config.training import TrainingSection
from howdah.data.manifest import Dataset, content_hash, version_name
from howdah.errors import ConfigError
from howdah.models.base import learnt_parts, with_pinned_base


def training_rows(version: Dataset, config: Config, *, as_begun: bool | None = None) -> Dataset:
    """The rows of a dataset version that a run of this configuration trains on. The run's plan and
    checkpoints depend on the result's `identity`.

    Args:
        as_begun: see `with_pinned_base`.
    Raises:
        ConfigError, ModelError: see `replayed` and `with_pinned_base`.
    """
    if config.training.replay is None:
        return version
    pinned = with_pinned_base(config, as_begun=as_begun)
    return replayed(version, config.training, learnt_parts(pinned, version, as_begun=as_begun))


def replayed(
    dataset: Dataset, training: TrainingSection, learnt: Collection[str] | None = None
) -> Dataset:
    """The dataset as training sees it. Its train split has the shards of new parts, and whole older
    shards until `replay` rows are reached; validation and test are unchanged.

    Another choice of shards is another plan, and a checkpoint of one plan cannot be resumed under
    another.

    Args:
        training: `replay` is a fraction of the older rows (float), a number of rows (int), or None
            for all; `seed` orders the older shards.
        learnt: identities of the parts that the initial model was trained on; all other parts are
            new. None: they are not known, or there is no initial model; the newest part is new.
    Raises:
        ConfigError: the dataset has no parts, or no rows are chosen.
    """
    replay, seed = training.replay, training.seed
    if replay is None:
        return dataset
    manifest = dataset.manifest
    if not manifest.parts:
        raise ConfigError(
            "only a dataset of parts has older rows to replay",
            where="training.replay",
            got=f"{dataset.path}, which has no parts",
            remedy="leave training.replay out, or make the dataset with data.append.enabled",
        )
    if learnt is None:
        latest = version_name(manifest.dataset_hash)
        new = {part.name for part in manifest.parts if part.version == latest}
    else:
        new = {part.name for part in manifest.parts if part.identity not in learnt}
    entries = manifest.splits.get(TRAIN, [])
    old = [entry for entry in entries if entry.part not in new]
    rows = sum(entry.rows for entry in old)
    rows_to_replay = replay if isinstance(replay, int) else math.ceil(replay * rows)
    left_out = set()
    for entry in sorted(old, key=lambda entry: _order(seed, entry.name)):
        if rows_to_replay <= 0:
            left_out.add(entry.name)
        rows_to_replay -= entry.rows
    chosen = [entry for entry in entries if entry.name not in left_out]
    if not chosen:
        raise ConfigError(
            "new parts have no training rows, and no older rows are replayed",
            where="training.replay",
            expected="more than 0",
            got=str(replay),
        )
    return replace(
        dataset,
        manifest=manifest.model_copy(update={"splits": {**manifest.splits, TRAIN: chosen}}),
        choice=content_hash([dataset.manifest_hash, [entry.name for entry in chosen]]),
    )


def _order(seed: int, name: str) -> str:
    return hashlib.sha256(f"{seed}:{name}".encode()).hexdigest()
