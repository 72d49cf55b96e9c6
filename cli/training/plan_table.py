"""The table of `howdah plan`: minutes, memory and disk of a run, for a person who decides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from howdah import storage
from howdah.config.model import Config
from howdah.data.manifest import load_dataset
from howdah.data.modelfiles import base_config
from howdah.errors import HowdahError
from howdah.models.runs import record
from howdah.yarn.preflight import worker_memory

_MOST_RUNS = 200
"""Run directories beside the configuration's own that are looked at for a speed."""


def estimated(config: Config, summary: Mapping[str, Any], world: int) -> dict[str, Any]:
    """{minutes, speed_of, memory_per_rank, disk_bytes}; None: not known.

    Args:
        summary: the result of `preview`.
    """
    run = _newest_run(config, summary, world)
    minutes = None
    if run is not None:
        rows = summary["steps"] * summary["global_batch_size"]
        minutes = rows / run["examples_per_second"] / 60
    state = summary["state_bytes_per_rank"]
    disk = None
    if state is not None:
        # The newest ones, the best one, and one that is being written; and the export.
        kept = config.checkpoint.keep + 2
        disk = kept * state["checkpoint"] + state["weights"]
    return {
        "minutes": minutes,
        "speed_of": None if run is None else run["directory"],
        "memory_per_rank": _memory(config, world),
        "disk_bytes": disk,
    }


def _newest_run(config: Config, summary: Mapping[str, Any], world: int) -> dict[str, Any] | None:
    """run.json of the newest run on this dataset with this base, framework and number of ranks."""
    directory = config.run.directory
    try:
        beside = [one.path for one in storage.list_dir(storage.parent(directory)) if one.is_dir]
    except HowdahError:
        beside = []
    root, runs = storage.absolute(config.data.dataset), []
    for path in [directory, *beside[:_MOST_RUNS]]:
        try:
            run = record.read(path)
        except HowdahError:
            continue
        version = storage.absolute(run.get("dataset") or "/")
        alike = (
            run.get("framework") == config.training.framework
            and run.get("world_size") == world
            and (run.get("base") or {}).get("source") == config.model.base
            and root in (version, storage.parent(version))
        )
        if alike and run.get("examples_per_second"):
            runs.append({**run, "directory": storage.absolute(path)})
    return max(runs, key=lambda run: run.get("finished") or "", default=None)


def _memory(config: Config, world: int) -> dict[str, int] | None:
    """{part: bytes} of the largest rank on a CPU; None: the base's config.json is not here."""
    base = base_config(config.model.base)
    if base is None:
        return None
    fixed = {"workers": world, "min_workers": None, "max_workers": None, "elastic": False}
    job = config.job.model_copy(update=fixed)
    manifest = load_dataset(config.data.dataset).manifest
    peak = worker_memory.peak(config.model_copy(update={"job": job}), base, manifest)
    return dict(peak.parts)


def lines(summary: Mapping[str, Any]) -> list[str]:
    """The table, from `preview` and `estimated` together."""
    rows = ", ".join(f"{split} {count:,}" for split, count in summary["rows"].items())
    batches = summary["micro_batches_per_step"]
    table = {
        "dataset": f"{storage.absolute(summary['dataset'])}",
        "rows": f"{rows}; {len(summary['labels'])} labels",
        "steps": f"{summary['steps']:,} of {summary['global_batch_size']:,} rows; an epoch is"
        f" {summary['steps_per_epoch']:,} steps and {summary['tokens_per_epoch']:,} tokens",
        "each rank": f"{summary['rows_per_rank']:,} rows a step in {batches}"
        f" {'batch' if batches == 1 else 'micro-batches'}; padding {summary['padding_ratio']:.2f}",
        "learning rate": f"{summary['peak_learning_rate']:g} at most, after"
        f" {summary['warmup_steps']:,} steps of warm-up",
        "trained": _trained(summary),
        "time": _time(summary),
        "memory": _parts(summary["memory_per_rank"]),
        "disk": _gib(summary["disk_bytes"], "checkpoints and export"),
    }
    return [f"{name + ':':<15}{text}" for name, text in table.items()]


def _trained(summary: Mapping[str, Any]) -> str:
    state = summary["state_bytes_per_rank"]
    if state is None:
        return _gib(None, "trained")
    return f"{state['trained'] // 4:,} weights, whose gradient has {state['trained'] / 1e6:,.1f} MB"


def _time(summary: Mapping[str, Any]) -> str:
    minutes = summary["minutes"]
    if minutes is None:
        return (
            "not known: no run on this dataset with this base, framework and number of ranks yet"
            " (`--workers 2` measures a few steps)"
        )
    shown = f"{minutes:.0f} minutes" if minutes >= 2 else f"{60 * minutes:.0f} seconds"
    return f"about {shown} of steps, at the speed of {summary['speed_of']}"


def _gib(size: int | None, what: str) -> str:
    if size is None:
        return "not known: the base model has not been fetched yet"
    return f"{size / 2**30:.1f} GiB: {what}"


def _parts(memory: Mapping[str, int] | None) -> str:
    if memory is None:
        return _gib(None, "memory")
    large = {name: size / 2**30 for name, size in memory.items() if size >= 2**30 / 20}
    parts = ", ".join(f"{name} {size:.1f}" for name, size in large.items())
    return f"{sum(memory.values()) / 2**30:.1f} GiB a rank: {parts}"
