"""`howdah plan`: a preview of a training run, and a prediction of how it scales.

The preview only reads the dataset's manifest and indexes; the prediction measures a few steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from howdah.config.model import Config
from howdah.config.splits import TRAIN
from howdah.data.manifest import load_dataset
from howdah.data.modelfiles import base_config
from howdah.data.splits.planner import check_world, micro_batches, pad_multiple, padded_length
from howdah.data.splits.shards import ShardSet, node_cache
from howdah.errors import ConfigError, UsageError
from howdah.models.replay import training_rows
from howdah.process.devices import CPU
from howdah.training.optim.schedule import Schedule
from howdah.training.planning.rank_state import rank_state
from howdah.training.preparation.job import training_planner
from howdah.training.preparation.precision import precision_of

_SAMPLED_STEPS = 500
_LINKS = {"1G": 1e9, "10G": 1e10, "25G": 2.5e10, "100G": 1e11}
"""Bits per second of the links between nodes in the table of what 90 % takes."""


def preview(config: Config, world: int) -> dict:
    """Rows, steps, tokens, padding, micro-batches and learning rate of a run on `world` ranks, and
    the bytes of weights, gradients and moments on each rank (training.parallel), of the weights
    that are trained, and of a checkpoint.

    Padding (on a CPU) and micro-batches are computed for up to 500 steps.

    Raises:
        ConfigError: there are more ranks than rows in a global batch.
        DataError: there is no dataset, or it is incomplete.
    """
    training = config.training
    dataset = training_rows(load_dataset(config.data.dataset), config)
    shards = ShardSet(dataset, TRAIN, cache=node_cache(training))
    planner = training_planner(config, shards)
    schedule = Schedule.of(training, planner.steps_per_epoch)
    check_world(training.global_batch_size, world)
    multiple = pad_multiple(False, precision_of(config, CPU))
    widest = dataset.manifest.fixed_length
    real = padded = most = 0
    for step, rank in itertools.product(
        range(min(_SAMPLED_STEPS, planner.steps_per_epoch)), range(world)
    ):
        rows = planner.rank_rows(0, step, rank, world)
        parts = micro_batches(rows, training.max_tokens(), multiple, widest)
        most = max(most, len(parts))
        for part in parts:
            real += int(part.length[part.real].sum())
            padded += padded_length(int(part.length.max()), multiple, widest) * len(part)
    base = base_config(config.model.base)
    state = None  # unknown if the base is on the hub, which a plan does not access
    if base is not None:
        labels = len(dataset.manifest.labels)
        state = rank_state(base, labels, config.model, training.parallel, world, lora=training.lora)
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
        "state_bytes_per_rank": state,
    }


def scaling_preview(
    config: Config, workers: str, network: str, *, progress: Callable[[str], None]
) -> dict:
    """Predicted steps of larger worlds, based on steps that are measured on this machine first.

    Args:
        workers: numbers of ranks, such as "8,64,512".
        network: speed of the link between nodes in bits per second, such as "25G".
        progress: called with a line before each measurement.
    Raises:
        UsageError: `workers` or `network` is malformed.
        ConfigError: the ranks divide the model.
        TrainingError: training fails on this machine.
    """
    from howdah.training.planning import calibrate, scaling

    if config.training.parallel.shard == "full":
        raise ConfigError(
            "larger worlds can only be predicted if each rank has the whole model",
            where="training.parallel.shard",
            expected="none or optimizer",
            got="full",
            remedy="leave --workers and --network out to see a rank's state, or add"
            " --set training.parallel.shard=none",
        )
    speed = scaling.bits_per_second(network)
    worlds = _worlds(workers)
    calibration = calibrate.measure(config, progress)
    link = calibration.network(speed)
    return {
        "network": network,
        "framework": config.training.framework,
        "threads_per_rank": calibration.threads,
        "fixed_seconds": round(calibration.compute.fixed_seconds, 4),
        "seconds_per_1000_tokens": round(1000 * calibration.compute.token_seconds, 4),
        "gradient_bytes": sum(calibration.gradient.dense),
        "seconds_per_gigabyte": round(1e9 * link.byte_seconds, 3),
        "limited_by": "the link"
        if 8 / speed >= calibration.loopback.byte_seconds
        else "the processor",
        "here": calibration.compared(),
        "worlds": [calibration.predict(count, link).as_dict() for count in worlds],
        "for_90": [
            {
                "workers": count,
                "compression": numbers,
                "accumulation": {
                    name: calibration.predict(
                        count, calibration.network(bits), compression=numbers
                    ).accumulation_for_90
                    for name, bits in _LINKS.items()
                },
            }
            for count in worlds
            for numbers in scaling.NUMBER_BYTES
        ],
    }


def _worlds(text: str) -> list[int]:
    try:
        worlds = [int(part) for part in text.split(",")]
    except ValueError:
        worlds = []
    if not worlds or min(worlds) < 1:
        raise UsageError(
            "not a list of worker counts", where="--workers", expected="8,64,512", got=text
        )
    return sorted(dict.fromkeys(worlds))


def scaling_lines(scaling: dict) -> list[str]:
    """The lines of a `scaling_preview` for a terminal."""
    lines = [
        f"measured here with {scaling['framework']}, {scaling['threads_per_rank']} threads per"
        f" rank: {scaling['fixed_seconds'] * 1000:,.0f} ms per step"
        f" + {scaling['seconds_per_1000_tokens'] * 1000:,.0f} ms per 1,000 tokens",
        f"the gradient has {scaling['gradient_bytes'] / 1e6:,.0f} MB; its transfer is limited by"
        f" {scaling['limited_by']}: {1 / scaling['seconds_per_gigabyte']:,.2f} GB/s",
    ]
    for one in scaling["here"]:
        lines.append(
            f"np={one['workers']} here: predicted {one['predicted_seconds'] * 1000:,.0f} ms per"
            f" step, measured {one['measured_seconds'] * 1000:,.0f} ms ({one['error']:+.0%})"
        )
    lines += [
        "",
        f"with {scaling['network']}bit/s between nodes, one rank per node:",
        f"{'workers':>8}{'batch':>8}{'gradients':>11}{'step ms':>10}{'network ms':>12}"
        f"{'rows/s':>10}{'efficiency':>12}  {'for 90%: micro-batches per rank (global batch)'}",
    ]
    for one in scaling["worlds"]:
        count = one["accumulation_for_90"]
        enough = "none" if count is None else f"{count:,} ({one['global_batch_for_90']:,})"
        lines.append(
            f"{one['workers']:>8,}{one['global_batch_size']:>8,}{one['compression']:>11}"
            f"{one['step_seconds'] * 1000:>10,.0f}{one['network_seconds'] * 1000:>12,.0f}"
            f"{one['rows_per_second']:>10,.0f}"
            f"{one['efficiency']:>12.0%}  {enough}"
        )
    lines += [
        "",
        "micro-batches per rank that 90% takes, by training.gradient_compression and link:",
        f"{'workers':>8}  {'gradients':<10}" + "".join(f"{name:>8}" for name in _LINKS),
    ]
    for one in scaling["for_90"]:
        counts = (one["accumulation"][name] for name in _LINKS)
        lines.append(
            f"{one['workers']:>8,}  {one['compression']:<10}"
            + "".join(f"{'none' if count is None else count:>8}" for count in counts)
        )
    return lines
