"""A dataset version of Howdah for other training loops: the batches of a rank, and a run.json."""

from __future__ import annotations

import json
import time

import verdict

from howdah import storage
from howdah.config.model import Config
from howdah.config.splits import TRAIN
from howdah.data.manifest import load_dataset
from howdah.errors import ConfigError
from howdah.run_files import RUN_JSON


def require_no_run(config: Config) -> None:
    """Refuse the directory of a `howdah train`, whose results `finish` would replace.

    Raises:
        ConfigError: its run.json has a run_id, which only Howdah's own training writes.
    """
    if "run_id" in verdict.read_run(config):
        raise ConfigError(
            "this run directory has a run of Howdah's own training",
            where=f"run.directory: {config.run.directory}",
            expected="a directory without a run, or with one of these examples",
            got=f"a {RUN_JSON} with a run_id",
            remedy="set another run.directory",
        )


def batches(config: Config, rank: int, world: int):
    """The rank's batches of the whole run in Howdah's training order, and the number of labels.

    Arrays: ids_BT, mask_BT, labels_B, weights_B (0: a filler row).
    """
    from howdah.data.splits.shards import ShardSet
    from howdah.training.data.readers import BatchSource
    from howdah.training.optim.schedule import total_steps
    from howdah.training.preparation.job import training_planner

    dataset = load_dataset(config.data.dataset)
    shards = ShardSet(dataset, TRAIN)
    planner = training_planner(config, shards)
    source = BatchSource(
        shards, planner, rank=rank, world=world, max_tokens=10**9, pad_multiple=1,
        stop_step=total_steps(config.training, planner.steps_per_epoch),
    )  # fmt: skip
    return source, len(dataset.manifest.labels)


def finish(config: Config, *, steps: int, loss: float, system: str) -> None:
    """Write run.json of a finished run, with the attempts before it; called by rank 0."""
    path = storage.join(config.run.directory, RUN_JSON)
    attempts = [*verdict.attempts_of(config), {"ended": time.time(), "system": system}]
    values = {"status": "finished", "steps": steps, "loss": loss, "attempts": attempts}
    storage.write_whole(path, json.dumps(values).encode())
