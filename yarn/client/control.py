"""`howdah kill | scale`, and `submit --wait`: control a job, or follow it to its end.

Requests to the driver are files in the run directory; YARN ends the job, by its REST interface.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

from howdah.core.activity import Progress
from howdah.errors import ClusterError, HowdahError, JobLost, TrainingError, UsageError
from howdah.hadoop.resourcemanager import OVER, ResourceManager
from howdah.job_log import Position, new_lines
from howdah.jobs.status import status_file
from howdah.models.runs import applications
from howdah.yarn.client.status import Job, job_status

KILL_SECONDS = 30.0
"""How long YARN may take to confirm a kill."""
_POLL_SECONDS = 1.0


def scale(manager: ResourceManager, job: Job, workers: int) -> None:
    """Ask an elastic job's driver for another number of workers, from its next step on.

    Raises:
        ClusterError: the job is over, or its run directory is not known.
    """
    _require_running(manager, job)
    _request(job, {"type": "scale", "workers": workers})


def scale_arguments(arguments: list[str]) -> tuple[str | None, int]:
    """Application (None: not given) and workers of `howdah scale [APPLICATION] WORKERS`.

    Raises:
        UsageError: there is no positive number of workers, or too many arguments.
    """
    *application, workers = arguments
    if len(application) > 1 or not workers.isdigit() or int(workers) < 1:
        raise UsageError(
            "how many workers?",
            expected="howdah scale [APPLICATION] WORKERS",
            got=" ".join(arguments),
        )
    return (application[0] if application else None), int(workers)


def _require_running(manager: ResourceManager, job: Job) -> None:
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
    status_file.request(job.directory, job.application, what)


def kill(
    manager: ResourceManager,
    job: Job,
    *,
    save: bool,
    save_seconds: float,
    progress: Progress,
) -> str:
    """End a job; its last state, as YARN reports it.

    Args:
        save: have it save a checkpoint first, for at most `save_seconds`.
    Raises:
        ClusterError: YARN does not confirm within KILL_SECONDS.
    """
    state = _killed(manager, job, save=save, save_seconds=save_seconds, progress=progress)
    if job.directory is not None:
        with contextlib.suppress(HowdahError):  # `howdah status` completes them as well
            applications.complete(manager, job.directory)
    return state


def _killed(
    manager: ResourceManager,
    job: Job,
    *,
    save: bool,
    save_seconds: float,
    progress: Progress,
) -> str:
    state = manager.application(job.application)["state"]
    if state in OVER:
        return state
    if save and job.driver_status().get("state") in ("running", "resizing", "restarting"):
        _request(job, {"type": "stop", "save": True})
        _wait_for_save(manager, job, save_seconds, progress)
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


def _wait_for_save(manager: ResourceManager, job: Job, seconds: float, progress: Progress) -> None:
    """Wait until the driver has saved and stopped the job, or the time is over."""
    before = (job.driver_status().get("last_checkpoint") or {}).get("step")
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if manager.application(job.application)["state"] in OVER:
            break
        if job.driver_status().get("state") in ("finished", "failed", "killed"):
            break
        time.sleep(_POLL_SECONDS)
    status = job.driver_status()
    saved = status.get("last_checkpoint") or {}
    if saved.get("step") is not None and saved["step"] != before:
        progress(f"saved {saved['path']}")
        return
    line = f"no new checkpoint within {seconds:.0f} s"
    if status.get("saving") is not None:
        line += f": the save of step {status['saving']} is not whole"
    progress(f"{line}; the newest whole one is {saved.get('path') or 'none of this attempt'}")


# --------------------------------------------------------------------------------------- wait
def wait(manager: ResourceManager, job: Job, progress: Progress) -> dict[str, Any]:
    """Follow a job to its end, showing its events and rank 0's lines; its last status.

    Raises:
        TrainingError, ClusterError...: the job's own error, with its exit code.
    """
    position, last = Position(), None
    while True:
        report = manager.application(job.application)
        over = report["state"] in OVER
        lines, position = new_lines(job.driver_status(), position)
        if report["state"] != last:
            progress(f"{job.application} is {report['state']}")
            last = report["state"]
        for line in lines:
            progress(line)
        if over:
            break
        time.sleep(_POLL_SECONDS)
    status = job_status(manager, job)
    if status["final_status"] != "SUCCEEDED":
        raise _failure(status)
    return status


def _failure(status: dict[str, Any]) -> HowdahError:
    """Why a job did not succeed: its driver's own error, else what YARN reports."""
    job = status["job"] or {}
    if job.get("error"):
        error = TrainingError.from_dict(job["error"])
        error.exit_code = int(job.get("exit_code") or job["error"].get("exit_code") or 6)
        return error
    return JobLost(
        f"the job ended as {status['state']} ({status['final_status']})",
        where=status["application"],
        got=status["diagnostics"] or None,
        remedy=f"howdah logs {status['application']}",
    )
