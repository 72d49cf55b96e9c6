"""`howdah status` for a run of `howdah train` or a bare launcher, from the files of the run."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from howdah import storage
from howdah.core.processes import locked
from howdah.errors import NotFound
from howdah.models.runs import hours, record
from howdah.models.runs.metrics_log import read_metrics

_LOCKS = (".launch.lock", ".lock")


def run_status(directory: str) -> dict[str, Any] | None:
    """The status of a run directory without a submitted job; None if it is not a run."""
    directory = storage.local_path(directory) if storage.is_local(directory) else directory
    try:
        run = record.read(directory)
    except NotFound:
        return None
    attempt = (run.get("attempts") or [{}])[-1]
    logged = [line for line in _metrics(directory) if "split" not in line]
    newest = logged[-1] if logged else {}
    running = run.get("status") == "running"
    return {
        "run_directory": directory,
        "run_id": run.get("run_id"),
        "state": state(directory) if running else str(run.get("status")).upper(),
        "attempt": attempt.get("attempt"),
        "host": attempt.get("host"),
        "world_size": run.get("world_size"),
        "step": newest.get("step"),
        "loss": newest.get("loss"),
        "best_step": run.get("best_step"),
        "error": run.get("error") or attempt.get("error"),
        "metrics": {
            split: {k: v for k, v in values.items() if isinstance(v, int | float)}
            for split, values in (run.get("metrics") or {}).items()
        },
        "hours": run.get("hours"),
    }


def lines(status: dict[str, Any]) -> list[str]:
    """A `run_status` as text."""
    step = "" if status["step"] is None else f", step {status['step']}"
    loss = "" if status["loss"] is None else f", loss {status['loss']:.4f}"
    attempt = f"attempt {status['attempt']} on {status['host']}"
    result = [
        f"{status['run_id']}  {status['state']}",
        f"{attempt}, ranks: {status['world_size']}{step}{loss}",
        f"run directory: {status['run_directory']}",
    ]
    if status["state"] == "LOST":
        result.append("its processes have died; start it again: it resumes from its checkpoint")
    for split, values in status["metrics"].items():
        shown = ", ".join(f"{key} {values[key]:.4f}" for key in values if key != "rows")
        result.append(f"{split}: {shown}")
    result += [f"error: {status['error']}"] if status["error"] else []
    return result + ([f"used: {hours.shown(status['hours'])}"] if status["hours"] else [])


def _metrics(directory: str) -> list[dict[str, Any]]:
    try:
        return read_metrics(directory)
    except NotFound:
        return []


def state(directory: str) -> str:
    """RUNNING, or LOST if no process of this machine has the run. On remote storage the run may be
    on another machine, so it is RUNNING, as in run.json."""
    if not storage.is_local(directory):
        return "RUNNING"
    for name in _LOCKS:
        with contextlib.suppress(OSError), open(os.path.join(directory, name), "rb") as file:
            if not locked(file):
                return "RUNNING"
    return "LOST"
