"""status, logs, scale, kill and ps of jobs on this machine, Spark and Ray; `submit --wait`.

Requests to a driver are files in the run directory, so that they reach it from any machine.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from howdah import storage
from howdah.config.model import Config
from howdah.core.activity import Progress
from howdah.core.terminal import as_cell
from howdah.errors import (
    INTERRUPTS,
    ClusterError,
    HowdahError,
    JobLost,
    NotFound,
    TrainingError,
)
from howdah.job_log import Position, new_lines
from howdah.jobs.clusters import record
from howdah.jobs.clusters.dataset import STATE as ETL_STATE
from howdah.jobs.clusters.record import OVER, Record, driver_status
from howdah.jobs.clusters.settings import LOG, VERDICT
from howdah.jobs.clusters.submit import Submitted
from howdah.jobs.status import rank_log as log_of_rank
from howdah.jobs.status import status_file
from howdah.jobs.status.text import duration, job_lines, run_summary

__all__ = [
    "container_logs", "failure_of", "find", "follow", "job_status", "kill", "list_jobs",
    "rank_log", "request_stop", "scale", "status_lines",
]  # fmt: skip

_POLL_SECONDS = 0.5
_STOP_SECONDS = 20.0
"""How long a driver has to read the request to stop and to end its workers."""
_SIGNAL_SECONDS = 10.0
TAIL_BYTES = 262_144


def find(job: str | None, config: Config | None) -> Record | None:
    """The job of an id, of a run directory, or of a configuration's; None: it is none of ours."""
    if job is None:
        return None if config is None else record.read(config.run.directory)
    if job.startswith("application_"):
        return None
    found = record.of_application(job) if "/" not in job else None
    if found is not None:
        return found
    return record.read(storage.local_path(job) if storage.is_local(job) else job)


# -------------------------------------------------------------------------------------- status
def job_status(job: Record) -> dict[str, Any]:
    """The driver's status, and whether it lives: the keys of a job on YARN."""
    status = driver_status(job)
    state, final = _state(job, status)
    verdict = _verdict(job)
    over = (status.get("updated") or time.time()) if final or state == "LOST" else time.time()
    return {
        "application": job.application,
        "on": job.on,
        "state": state,
        "final_status": final,
        "host": job.host,
        "tracking_url": status.get("page"),
        "diagnostics": verdict.get("diagnostics") or "",
        "elapsed_seconds": max(0.0, over - job.submitted),
        "run_directory": job.run_directory,
        "log": os.path.join(job.directory, LOG),
        "job": status or None,
        "run": run_summary(job.run_directory),
    }


def _state(job: Record, status: dict[str, Any]) -> tuple[str, str | None]:
    """YARN's words: STARTING, RUNNING, FINISHED, FAILED, KILLED; LOST: the driver has died."""
    final = OVER.get(str(status.get("state")))
    if final is not None:
        return ("FINISHED" if final == "SUCCEEDED" else final), final
    if job.alive:
        return ("RUNNING" if status else "STARTING"), None
    if _verdict(job).get("status") == "FAILED":  # before its first status
        return "FAILED", "FAILED"
    return "LOST", None


def _verdict(job: Record) -> dict[str, Any]:
    if not (job.here and job.is_ours):
        return {}
    try:
        return storage.read_json(os.path.join(job.directory, VERDICT))
    except NotFound:
        return {}


def status_lines(status: dict[str, Any]) -> list[str]:
    """A `job_status` as text."""
    lines = [
        f"{status['application']}  {status['state']}",
        f"on {status['on']}, driver on {status['host']}, {duration(status['elapsed_seconds'])}",
        f"run directory: {status['run_directory']}",
        f"driver's log: {status['log']}",
    ]
    if status["state"] == "RUNNING" and status["tracking_url"]:
        lines.append(f"page: {status['tracking_url']}")
    if status["state"] == "LOST":
        lines.append("its driver has died; submitted again, the run goes on from its checkpoint")
    lines += [f"diagnostics: {status['diagnostics']}"] if status["diagnostics"] else []
    return lines + job_lines(status["job"] or {})


def list_jobs(*, finished: bool) -> list[dict[str, Any]]:
    """The jobs that were submitted from this machine, newest first: the keys of those on YARN."""
    found = []
    for job in record.known():
        try:
            current, status = record.read(job.run_directory), job_status(job)
        except HowdahError:  # its storage is away, or not ours to read any more
            current, status = job, _unreadable(job)
        live = status["state"] in ("STARTING", "RUNNING")
        if not (live or finished) or (live and current != job):
            continue
        driver = status["job"] or {}
        total = driver.get("total_steps")
        found.append(
            {
                "application": job.application,
                "name": os.path.basename(job.run_directory.rstrip("/")),
                "user": None,
                "queue": job.on,
                "state": status["state"],
                "final_status": status["final_status"],
                "progress": round(100 * (driver.get("step") or 0) / total, 1) if total else 0.0,
                "elapsed_seconds": status["elapsed_seconds"],
                "workers": driver.get("world_size"),
                "step": driver.get("step"),
                "hours": (status.get("run") or {}).get("hours"),
                "run_directory": job.run_directory,
            }
        )
    return found


def _unreadable(job: Record) -> dict[str, Any]:
    """What is known of a job whose run directory cannot be read."""
    alive = job.here and job.alive
    return {
        "state": "RUNNING" if alive else "UNKNOWN", "final_status": None, "job": None,
        "elapsed_seconds": time.time() - job.submitted if alive else 0.0,
    }  # fmt: skip


# ---------------------------------------------------------------------------------------- logs
def rank_log(job: Record, rank: int, *, follow: bool, out: Callable[[str], None]) -> None:
    """Pass a rank's log to `out` line by line; with `follow`, until the job is over.

    Raises:
        NotFound: there is none.
    """

    def is_over() -> bool:
        return not follow or not job.alive

    if not log_of_rank.follow(job.run_directory, rank, is_over, out, poll_seconds=_POLL_SECONDS):
        raise NotFound("this rank has no log", where=log_of_rank.path_of(job.run_directory, rank),
                       remedy=f"howdah logs {job.application} shows all")  # fmt: skip


def container_logs(job: Record) -> dict[str, dict[str, str]]:
    """{"driver" or container: {file: its last TAIL_BYTES}}, on the machine where the driver runs.

    Raises:
        ClusterError: that is another machine.
    """
    if not job.here:
        raise ClusterError(
            "the job's own files are on the machine of its driver", where=job.host,
            got=socket.gethostname(), remedy="howdah logs --rank N reads the run directory",
        )  # fmt: skip
    _require_ours(job, "its own files are read")
    found = {"driver": {LOG: _tail(os.path.join(job.directory, LOG))}}
    root = os.path.join(job.directory, "containers")
    for container in sorted(os.listdir(root)) if os.path.isdir(root) else []:
        names = sorted(n for n in os.listdir(os.path.join(root, container)) if n.endswith(".log"))
        found[container] = {name: _tail(os.path.join(root, container, name)) for name in names}
    return found


def _tail(path: str) -> str:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
        return file.read().decode(errors="replace")


# --------------------------------------------------------------------------------- scale, kill
def scale(job: Record, workers: int) -> None:
    """Ask an elastic job's driver for another number of workers.

    Raises:
        ClusterError: the job is over.
    """
    if not job.alive:
        state, _ = _state(job, driver_status(job))
        raise ClusterError("the job is over", where=job.application, got=state)
    if driver_status(job).get("state") == ETL_STATE:
        raise ClusterError(
            "the job makes its dataset: it has no workers yet", where=job.application,
            remedy="again when it trains: howdah status shows it",
        )  # fmt: skip
    _request(job, {"type": "scale", "workers": workers})


def kill(job: Record, *, save: bool, save_seconds: float, progress: Progress) -> str:
    """End a job; its last state.

    Args:
        save: have it save a checkpoint first, for at most `save_seconds`.
    Raises:
        ClusterError: the driver runs on another machine and does not end.
    """
    if not job.alive:
        return _state(job, driver_status(job))[0]
    before = (driver_status(job).get("last_checkpoint") or {}).get("step")
    if save and driver_status(job).get("state") in ("running", "resizing", "restarting"):
        request_stop(job)
        _wait(job, save_seconds)
        saved = driver_status(job).get("last_checkpoint") or {}
        new = saved.get("step") is not None and saved["step"] != before
        progress(f"saved {saved['path']}" if new else f"no new checkpoint in {save_seconds:.0f} s")
    if job.alive:
        _request(job, {"type": "stop", "save": False})
        _wait(job, _STOP_SECONDS)
    if job.alive and not job.here:
        starting = "it is starting: the request waits for it" if not driver_status(job) else None
        raise ClusterError(
            "the job's driver has not ended", where=f"{job.application} on {job.host}",
            expected=f"its end within {_STOP_SECONDS:.0f} s", got=starting,
            remedy=f"run `howdah kill {job.run_directory}` on {job.host}",
        )  # fmt: skip
    for number in (signal.SIGTERM, signal.SIGKILL):
        if job.alive:
            _require_ours(job, "its process is signalled")
            os.kill(job.pid, number)
            _wait(job, _SIGNAL_SECONDS)
    return _state(job, driver_status(job))[0]


def request_stop(job: Record) -> None:
    """Ask a job's driver to save a checkpoint and end."""
    _request(job, {"type": "stop", "save": True})


def _require_ours(job: Record, what: str) -> None:
    """Raise ClusterError for a record that another user, or a copy, may have put there."""
    owner = os.geteuid()
    if job.alive and job.here:
        with contextlib.suppress(FileNotFoundError):  # it has ended meanwhile
            owner = os.stat(f"/proc/{job.pid}").st_uid
    if job.is_ours and owner == os.geteuid():
        return
    raise ClusterError(
        f"this run directory's record names a job that is not this user's: {what} by its owner"
        " alone", where=storage.join(status_file.directory(job.run_directory), "place.json"),
        expected=f"the record in {record.jobs_directory()}, which only this user can write",
        got=f"{job.application}, process {job.pid}",
        remedy="do it as the user who has submitted the job, with that user's HOWDAH_CACHE",
    )  # fmt: skip


def _request(job: Record, what: dict[str, Any]) -> None:
    status_file.request(job.run_directory, job.application, what)


def _wait(job: Record, seconds: float) -> None:
    """Until the driver has ended, or the time is over."""
    until = time.monotonic() + seconds
    while job.alive and time.monotonic() < until:
        time.sleep(_POLL_SECONDS / 5)


# ---------------------------------------------------------------------------------------- wait
def follow(submitted: Submitted, save_seconds: float, progress: Progress) -> dict[str, Any]:
    """Follow a job to its end, showing its events and rank 0's lines; its last status.

    Raises:
        TrainingError, ClusterError...: the job's own error, with its exit code.
        Interrupted, Terminated: after the job was ended, with a checkpoint.
    """
    job = submitted.record
    try:
        return _follow(job, progress)
    except INTERRUPTS:
        try:
            progress("ending the job; once more to end it at once")
            kill(job, save=True, save_seconds=save_seconds, progress=progress)
        except INTERRUPTS:
            kill(job, save=False, save_seconds=0, progress=progress)
        progress(f"{job.application} is over")
        raise


def _follow(job: Record, progress: Progress) -> dict[str, Any]:
    position = Position()
    while True:
        over = not job.alive
        lines, position = new_lines(driver_status(job), position)
        for line in lines:
            progress(line)
        if over:
            break
        time.sleep(_POLL_SECONDS)
    status = job_status(job)
    if status["final_status"] != "SUCCEEDED":
        raise failure_of(status)
    return status


def failure_of(status: dict[str, Any]) -> HowdahError:
    """Why a job did not succeed: its driver's own error, else what is known of its end."""
    driver = status["job"] or {}
    if driver.get("error"):
        error = TrainingError.from_dict(driver["error"])
        error.exit_code = int(driver.get("exit_code") or driver["error"].get("exit_code") or 6)
        return error
    return JobLost(
        f"the job ended as {status['state']}", where=status["application"],
        got=as_cell(status["diagnostics"]) or None, remedy=f"its driver's log: {status['log']}",
    )  # fmt: skip
