"""`howdah kill | scale`, and `submit --wait`: a job asked for something, or followed to its end.

Words for the driver are left in the run directory; ending is YARN's, by its REST interface.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from typing import Any

from howdah import storage
from howdah.errors import ClusterError, HowdahError, TrainingError, UsageError
from howdah.hadoop.resourcemanager import OVER, ResourceManager
from yarn.watch import Job, status

__all__ = ["kill", "scale", "scale_words", "wait"]

Progress = Callable[[str], None]

KILL_SECONDS = 30.0
"""Within this long YARN confirms a kill, or it is an error."""
_POLL_SECONDS = 1.0


def scale(manager: ResourceManager, job: Job, workers: int) -> None:
    """Ask an elastic job's driver for another number of workers; it happens at the next step.

    Raises:
        ClusterError: the job is over, or its run directory is not known.
    """
    _must_run(manager, job)
    _request(job, {"type": "scale", "workers": workers})


def scale_words(words: list[str]) -> tuple[str | None, int]:
    """The words of `howdah scale [APPLICATION] WORKERS`."""
    *application, workers = words
    if len(application) > 1 or not workers.isdigit() or int(workers) < 1:
        raise UsageError(
            "how many workers?",
            expected="howdah scale [APPLICATION] WORKERS",
            got=" ".join(words),
        )
    return (application[0] if application else None), int(workers)


def _must_run(manager: ResourceManager, job: Job) -> None:
    report = manager.application(job.application)
    if report["state"] in OVER:
        raise ClusterError(
            "the job is over",
            where=job.application,
            got=f"{report['state']} ({report.get('finalStatus')})",
        )


def _request(job: Job, what: dict[str, Any]) -> None:
    if job.directory is None:
        raise ClusterError(
            "the job's run directory is not known here",
            where=job.application,
            remedy="give --config as well",
        )
    name = f"{time.time_ns() // 1_000_000}-{secrets.token_hex(4)}.json"
    path = storage.join(job.directory, "yarn", "requests", name)
    storage.write_whole(path, json.dumps(what).encode())


def kill(
    manager: ResourceManager,
    job: Job,
    *,
    save: bool,
    save_seconds: float,
    progress: Progress,
) -> str:
    """End a job; its last state, told by YARN.

    Args:
        save: have it save a checkpoint first, for at most `save_seconds`.
    Raises:
        ClusterError: YARN does not confirm within KILL_SECONDS.
    """
    state = manager.application(job.application)["state"]
    if state in OVER:
        return state
    if save and job.told().get("state") in ("running", "resizing", "restarting"):
        _request(job, {"type": "stop", "save": True})
        _saved(manager, job, save_seconds, progress)
    until = time.monotonic() + KILL_SECONDS
    while True:
        state = manager.kill(job.application, "killed by howdah")
        if state in OVER:
            return state
        if time.monotonic() > until:
            raise ClusterError(
                "YARN has not confirmed the kill",
                where=job.application,
                expected=f"KILLED within {KILL_SECONDS:.0f} s",
                got=state,
                remedy=f"yarn application -kill {job.application}",
            )
        time.sleep(0.5)
        state = manager.application(job.application)["state"]
        if state in OVER:
            return state


def _saved(manager: ResourceManager, job: Job, seconds: float, progress: Progress) -> None:
    """Wait until the driver has stopped the job in order, or the time is over."""
    before = (job.told().get("last_checkpoint") or {}).get("step")
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if manager.application(job.application)["state"] in OVER:
            break
        if job.told().get("state") in ("finished", "failed", "killed"):
            break
        time.sleep(_POLL_SECONDS)
    saved = job.told().get("last_checkpoint") or {}
    if saved.get("step") is not None and saved["step"] != before:
        progress(f"saved {saved['path']}")
    else:
        progress(f"no new checkpoint within {seconds:.0f} s")


# --------------------------------------------------------------------------------------- wait
def wait(manager: ResourceManager, job: Job, progress: Progress) -> dict[str, Any]:
    """Follow a job to its end: rank 0's lines, and what happens to it; its last status.

    Raises:
        TrainingError, ClusterError...: what the job died of, with its own exit code.
    """
    shown, events, last = 0, 0.0, None
    while True:
        report = manager.application(job.application)
        over = report["state"] in OVER
        told = job.told()
        if report["state"] != last:
            progress(f"{job.application} is {report['state']}")
            last = report["state"]
        for event in told.get("events") or []:
            if event["time"] > events:
                events = event["time"]
                progress(event["what"])
        for serial, line in told.get("lines") or []:
            if serial > shown:
                shown = serial
                progress(line)
        if over:
            break
        time.sleep(_POLL_SECONDS)
    told = status(manager, job)
    if told["final_status"] != "SUCCEEDED":
        raise _death(told)
    return told


def _death(told: dict[str, Any]) -> HowdahError:
    """What a job that did not succeed died of: its driver's own error, else what YARN says."""
    held = (told["job"] or {}).get("error")
    if held:
        error: HowdahError = TrainingError(
            held["what"], **{key: held.get(key) for key in ("where", "expected", "got", "remedy")}
        )
        error.exit_code = int((told["job"] or {}).get("exit_code") or held.get("exit_code") or 6)
        return error
    return ClusterError(
        f"the job ended as {told['state']} ({told['final_status']})",
        where=told["application"],
        got=told["diagnostics"] or None,
        remedy=f"howdah logs {told['application']}",
    )
