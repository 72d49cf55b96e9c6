"""A job's status for users: the driver's status.json as lines, and what run.json adds."""

from __future__ import annotations

import time
from typing import Any

from howdah.errors import NotFound, PermissionDenied
from howdah.models.runs.record import read


def run_summary(directory: str | None) -> dict[str, Any] | None:
    """Ids, status and scalar metrics of run.json; None: not written, or not readable."""
    if directory is None:
        return None
    try:
        record = read(directory)
    except (NotFound, PermissionDenied):
        return None
    ids = {key: record.get(key) for key in ("run_id", "status", "mlflow_run_id")}
    metrics = {
        split: {k: v for k, v in values.items() if isinstance(v, int | float)}
        for split, values in (record.get("metrics") or {}).items()
        if isinstance(values, dict)
    }
    return {**ids, "metrics": metrics, "hours": record.get("hours")}


def job_lines(job: dict[str, Any]) -> list[str]:
    """The driver's status as text; {}: there is none yet."""
    if not job:
        return ["the driver has reported nothing yet"]
    step, total = job.get("step"), job.get("total_steps")
    line = f"{job['state']}: {job.get('world_size')} of {job.get('wanted')} workers"
    if step is not None:
        line += f", step {step}" + (f"/{total}" if total else "")
    for name, text in (("epoch", "epoch {}"), ("loss", "loss {:.4f}")):
        if job.get(name) is not None:
            line += ", " + text.format(job[name])
    if job.get("examples_per_second") is not None:
        line += f", {job['examples_per_second']:.1f} examples/s"
    if job.get("eta_seconds") is not None:
        line += f", {duration(job['eta_seconds'])} left"
    saved = job.get("last_checkpoint") or {}
    lines = [
        line,
        (f"last checkpoint: {saved['path']}" if saved.get("path") else "no checkpoint yet")
        + (f"; step {job['saving']} is being saved" if job.get("saving") is not None else ""),
        f"restarts {job.get('restarts')}, preemptions {job.get('preemptions')}",
    ]
    for rank in job.get("ranks") or []:
        slow = "  SLOW" if rank.get("straggler") else ""
        times = [
            f"{name} {rank[key]:.3f} s"
            for name, key in (("step", "step_seconds"), ("wait", "wait_seconds"))
            if isinstance(rank.get(key), int | float)
        ]
        lines.append(
            f"  rank {rank.get('rank')}  {rank.get('node')}  {rank.get('container')}"
            f"  {rank.get('phase')}  {'  '.join(times)}{slow}  {rank.get('doing') or ''}".rstrip()
        )
    lines += _data_line(job.get("ranks") or [])
    for event in (job.get("events") or [])[-5:]:
        lines.append(
            f"  {time.strftime('%H:%M:%S', time.localtime(event['time']))} {event['what']}"
        )
    return lines


def _data_line(ranks: list[dict[str, Any]]) -> list[str]:
    """How much of the dataset the ranks read from their own nodes, and over the network."""
    reads = [rank.get("data") or {} for rank in ranks]
    if not any(reads):
        return []
    near, far, fetches = (
        sum(int(data.get(key) or 0) for data in reads)
        for key in ("local_bytes", "remote_bytes", "fetches")
    )
    return [
        f"dataset: {fetches} shards fetched, {near / 2**20:,.1f} MiB from the own node,"
        f" {far / 2**20:,.1f} MiB over the network"
    ]


def duration(seconds: float) -> str:
    """`"1 h 02 min"` or `"3 min 04 s"`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"
