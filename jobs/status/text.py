"""The status of applications for users: as lines, as a table, and what run.json adds."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from howdah.core.terminal import as_cell, as_table
from howdah.errors import NotFound, PermissionDenied
from howdah.hadoop.resourcemanager import OVER
from howdah.models.runs.hours import shown
from howdah.models.runs.record import read

LISTING_SECONDS = 2.0
"""How long a listing of jobs waits for each storage that does not answer."""
_HEADLINES = ("APPLICATION", "NAME", "USER", "QUEUE", "STATE", "DONE", "TIME", "WORKERS", "STEP",
              "CPU-H", "GPU-H")  # fmt: skip


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


def status_lines(status: Mapping[str, Any]) -> list[str]:
    """The status of an application (jobs/application.py) as text."""
    final = f" ({status['final_status']})" if status["state"] in OVER else ""
    lines = [f"{status['application']}  {as_cell(status['name'] or '')}  {status['state']}{final}"]
    if status.get("where"):
        lines.append(f"{status['where']}, {duration(status['elapsed_seconds'])}")
    for label, key in (
        ("run directory", "run_directory"), ("driver's log", "log"), ("page", "tracking_url"),
    ):  # fmt: skip
        if status.get(key):
            lines.append(f"{label}: {status[key]}")
    if status["state"] == "LOST":
        lines.append("the driver has died; submit the job again to resume from its checkpoint")
    if status["diagnostics"]:
        lines.append(f"diagnostics: {status['diagnostics']}")
    if status.get("hours"):
        lines.append(f"used: {shown(status['hours'])}")
    server = status.get("server")
    if server is not None:
        return lines + _server_lines(server)
    return lines + job_lines(status["job"] or {}, over=status["state"] in OVER)


def _server_lines(server: Mapping[str, Any]) -> list[str]:
    health = server["health"]
    answer = "it does not answer" if health is None else str(health.get("status"))
    models = (health or {}).get("models") or []
    versions = [f"{one.get('model')} version {one.get('version')}" for one in models]
    return [
        f"{server['url'] or 'no address yet'}  {answer}  {', '.join(versions)}".rstrip(),
        f"address: {server['file']}",
    ]


def row(
    *, application: str, state: str, final_status: str | None, driver: Mapping[str, Any],
    **more: Any,
) -> dict[str, Any]:  # fmt: skip
    """A row of `howdah ps`.

    Args:
        driver: the driver's status; {} if it is not known.
        more: name, user, queue, progress, elapsed_seconds, hours, run_directory.
    """
    return {
        "application": application, "state": state, "final_status": final_status, **more,
        "workers": driver.get("world_size"), "step": driver.get("step"),
    }  # fmt: skip


def ps_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Rows of `howdah ps` as a table."""
    if not rows:
        return ["no jobs"]
    table = [_HEADLINES]
    for job in rows:
        failed = job["state"] == "FINISHED" and job["final_status"] != "SUCCEEDED"
        state = job["final_status"] if failed else job["state"]
        hours = job.get("hours") or {}
        table.append(
            (
                job["application"], job["name"], job["user"], job["queue"], state,
                f"{job['progress']:.0f}%", duration(job["elapsed_seconds"]),
                _or_dash(job["workers"]), _or_dash(job["step"]),
                _hours_cell(hours, "vcore", "cpu"), _hours_cell(hours, "gpu"),
            )
        )  # fmt: skip
    return as_table(table)


def _hours_cell(hours: Mapping[str, Any], *keys: str) -> str:
    """The hours of vcores that YARN gave, or else of busy CPUs."""
    figure = next((hours[key] for key in keys if hours.get(key) is not None), None)
    return "-" if figure is None else f"{figure:.2f}"


def _or_dash(value: Any) -> str:
    return "-" if value is None else str(value)


def log_lines(logs: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Logs by container and file as text, each file under a headline."""
    lines = []
    for container, files in sorted(logs.items()):
        for name, text in sorted(files.items()):
            lines += [f"==== {container} {name}", *text.rstrip("\n").split("\n")]
    return lines or ["no logs"]


def job_lines(job: dict[str, Any], *, over: bool) -> list[str]:
    """The driver's status as text; {}: none yet, or a later job has replaced it."""
    if not job:
        return [] if over else ["the driver has reported nothing yet"]
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
        number = rank.get("rank")
        name = "no rank yet" if number is None else f"rank {number}"
        lines.append(
            f"  {name}  {rank.get('node')}  {rank.get('container')}"
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
        f"dataset: {fetches} shards fetched, {near / 2**20:,.1f} MiB from the local node,"
        f" {far / 2**20:,.1f} MiB over the network"
    ]


def duration(seconds: float) -> str:
    """`"1 h 02 min"` or `"3 min 04 s"`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"
