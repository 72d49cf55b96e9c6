"""Which shards of an appended dataset are trained on: the newest part's, and some of the older."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace

from howdah.config.model import TrainingSection
from howdah.config.splits import TRAIN
from howdah.data.manifest import Dataset, ShardEntry, content_hash
from howdah.errors import ConfigError

__all__ = ["replayed"]


def replayed(dataset: Dataset, training: TrainingSection) -> Dataset:
    """The dataset as training sees it: of train, the newest part and whole older shards until
    `replay` of their rows are reached; validation and test as they are.

    Its manifest_hash is of the choice too: other choices are other plans, and no checkpoint of one
    is resumed by another.

    Args:
        training: its `replay`: a fraction of the older rows (float), rows (int), None for all; its
            `seed` orders the older shards.
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
    versions = {part.name: part.version for part in manifest.parts}
    latest = f"v={manifest.dataset_hash}"
    entries = manifest.splits.get(TRAIN, [])
    new = [entry for entry in entries if versions.get(entry.part) == latest]
    old = [entry for entry in entries if entry not in new]
    rows = sum(entry.rows for entry in old)
    wanted = replay if isinstance(replay, int) else math.ceil(replay * rows)
    chosen: list[ShardEntry] = []
    for entry in sorted(old, key=lambda entry: _order(seed, entry)):
        if wanted <= 0:
            break
        chosen.append(entry)
        wanted -= entry.rows
    taken = [entry for entry in entries if entry in new or entry in chosen]
    if not taken:
        raise ConfigError(
            "the newest part has no training rows, and no older ones are replayed",
            where="training.replay",
            expected="more than 0",
            got=str(replay),
            remedy="raise it, or do not train for this part",
        )
    return replace(
        dataset,
        manifest=manifest.model_copy(update={"splits": {**manifest.splits, TRAIN: taken}}),
        manifest_hash=content_hash([dataset.manifest_hash, [entry.name for entry in taken]]),
    )


def _order(seed: int, entry: ShardEntry) -> str:
    return hashlib.sha256(f"{seed}:{entry.name}".encode()).hexdigest()
