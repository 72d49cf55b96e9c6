"""A dataset version of Howdah for other training loops: the batches of a rank, and a run.json."""

from __future__ import annotations

import json
import time

from howdah import storage
from howdah.config.loader import Config
from howdah.config.splits import TRAIN
from howdah.data.manifest import load_dataset


def batches(config: Config, rank: int, world: int):
    """The rank's batches of `training.max_steps` steps in Howdah's training order, and the number
    of labels. Arrays: ids_BT, mask_BT, labels_B, weights_B (0: a filler row).
    """
    from howdah.data.splits.shards import ShardSet
    from howdah.training.data.readers import BatchSource
    from howdah.training.preparation.job import training_planner

    dataset = load_dataset(config.data.dataset)
    shards = ShardSet(dataset, TRAIN)
    source = BatchSource(
        shards, training_planner(config, shards), rank=rank, world=world, max_tokens=10**9,
        pad_multiple=1, stop_step=config.training.max_steps,
    )  # fmt: skip
    return source, len(dataset.manifest.labels)


def finish(config: Config, *, steps: int, loss: float, system: str) -> None:
    """Write run.json of a finished run; called by rank 0."""
    path = storage.join(config.run.directory, "run.json")
    ended = {"ended": time.time(), "system": system}
    values = {"status": "finished", "steps": steps, "loss": loss, "attempts": [ended]}
    storage.write_whole(path, json.dumps(values).encode())
