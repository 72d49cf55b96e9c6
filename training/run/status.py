"""`howdah status` for a run of `howdah train` or a bare launcher, from the files of the run."""

from __future__ import annotations

import fcntl
import os
from typing import Any

from howdah import storage
from howdah.errors import NotFound
from howdah.models.runs import hours, record
from howdah.models.runs.metrics_log import read_metrics
from howdah.models.runs.run_json import CONFIG
from howdah.training.process import failure

_LOCKS = (".launch.lock", ".lock")


def run_status(directory: str) -> dict[str, Any] | None:
    """The status of a run directory by its own files; None if it is not a run.

    A run that has ended before it had a record of its own, because its configuration did not fit or
    its framework could not be imported, has its failure's file.
    """
    directory = storage.absolute(directory)
    try:
        run = record.read(directory)
    except NotFound:
        run = _unrecorded(directory)
        if run is None:
            return None
    attempt = (run.get("attempts") or [{}])[-1]
    logged = [line for line in _metrics(directory) if "split" not in line]
    newest = logged[-1] if logged else {}
    running = run.get("status") == "running"
    return {
        "run_directory": directory,
        "run_id": run.get("run_id"),
        "state": state(directory) if running else str(run.get("status")).upper(),
        "logs": storage.join(directory, "logs"),
        "attempt": attempt.get("attempt"),
        "started": attempt.get("started"),
        "host": attempt.get("host"),
        "world_size": run.get("world_size"),
        "step": newest.get("step"),
        "total_steps": run.get("steps"),
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
    if step and status["total_steps"] is not None:
        step += f" of {status['total_steps']}"
    loss = "" if status["loss"] is None else f", loss {status['loss']:.4f}"
    begun = "no attempt has begun its first step"
    if status["attempt"] is not None:
        begun = f"attempt {status['attempt']} on {status['host']} since {status['started']}"
        begun += f", ranks: {status['world_size']}{step}{loss}"
    result = [
        "  ".join(filter(None, (status["run_id"], status["state"]))),
        begun,
        f"run directory: {status['run_directory']}",
        f"logs: {status['logs']}",
    ]
    if status["state"] == "LOST":
        result.append("its processes have died; start it again: it resumes from its checkpoint")
    for split, values in status["metrics"].items():
        shown = ", ".join(f"{key} {values[key]:.4f}" for key in values if key != "rows")
        result.append(f"{split}: {shown}")
    result += [f"error: {status['error']}"] if status["error"] else []
    return result + ([f"used: {hours.shown(status['hours'])}"] if status["hours"] else [])


def _unrecorded(directory: str) -> dict[str, Any] | None:
    """What is known of a run without run.json; None: nothing was begun in the directory."""
    if not storage.is_local(directory) or not os.path.exists(os.path.join(directory, CONFIG)):
        return None
    failed = failure.first(directory)
    if failed is None:
        return {"status": "running"}
    error = (failed.error or {}).get("what") or failed.text
    return {"status": "failed", "error": error}


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
        try:
            with open(os.path.join(storage.local_path(directory), name), "rb") as file:
                # NFS refuses an exclusive lock of a file that is only open to read.
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return "RUNNING"
        except OSError:  # there is no such file
            continue
    return "LOST"
