"""`howdah plan`: what a training run would do, from the dataset's manifest and indexes alone."""

from __future__ import annotations

import itertools

from howdah.config import Config
from howdah.manifest import load_dataset
from training.planner import check_world, micro_batches, pad_multiple, padded_length
from training.prepare import training_planner
from training.schedule import Schedule
from training.shards import ShardSet, node_cache

_SAMPLED_STEPS = 500


def preview(config: Config, world: int) -> dict:
    """Rows, steps, tokens, padding, micro-batches and learning rate of a run on `world` ranks.

    Padding (a CPU's) and micro-batches are those of the first steps (500 at most).

    Raises:
        ConfigError: more ranks than rows in a global batch.
        DataError: no dataset, or it is not whole.
    """
    training = config.training
    check_world(training.global_batch_size, world)
    dataset = load_dataset(config.data.dataset)
    shards = ShardSet(dataset, "train", cache=node_cache(training))
    planner = training_planner(config, shards)
    schedule = Schedule.of(training, planner.steps_per_epoch)
    multiple = pad_multiple(gpu=False)
    real = padded = most = 0
    for step, rank in itertools.product(
        range(min(_SAMPLED_STEPS, planner.steps_per_epoch)), range(world)
    ):
        rows = planner.rank_rows(0, step, rank, world)
        parts = micro_batches(rows, training.per_device_max_tokens, multiple)
        most = max(most, len(parts))
        for part in parts:
            real += int(part.length[part.real].sum())
            padded += padded_length(int(part.length.max()), multiple) * len(part)
    return {
        "dataset": dataset.path,
        "labels": dataset.manifest.labels,
        "rows": {split: dataset.manifest.rows(split) for split in dataset.manifest.splits},
        "tokens_per_epoch": sum(entry.tokens for entry in shards.entries),
        "world_size": world,
        "global_batch_size": training.global_batch_size,
        "rows_per_rank": -(-training.global_batch_size // world),
        "micro_batches_per_step": most,
        "padding_ratio": round(padded / real, 4),
        "steps_per_epoch": planner.steps_per_epoch,
        "steps": schedule.steps,
        "warmup_steps": schedule.warmup,
        "peak_learning_rate": schedule.peak,
        "plan": planner.plan_hash,
    }
