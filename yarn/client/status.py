"""`howdah status` and `howdah ps`: the state of jobs on YARN.

Read from the ResourceManager's REST interface and from files of the run directory: neither Java nor
a route to the application's containers is needed.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import Any

from howdah import storage
from howdah.config.model import Config
from howdah.core.terminal import as_cell
from howdah.errors import HowdahError, NotFound, PermissionDenied, UsageError
from howdah.hadoop import conf as settings
from howdah.hadoop.kerberos import short_name
from howdah.hadoop.resourcemanager import LIVE, OVER, ResourceManager
from howdah.hadoop.web import current_user
from yarn import spec
from yarn.client import registry
from yarn.client.submission_lock import claim_tag, read_claim

__all__ = [
    "Job",
    "find_job",
    "job_status",
    "list_jobs",
    "own_user",
    "ps_lines",
    "status_lines",
]


@dataclass(frozen=True)
class Job:
    """A job on YARN: its application's id, and its run directory if that is known."""

    application: str
    directory: str | None

    def driver_status(self) -> dict[str, Any]:
        """What its driver last wrote (status.json); {}: nothing yet, or not readable."""
        if self.directory is None:
            return {}
        try:
            status = storage.read_json(storage.join(self.directory, "yarn", "status.json"))
        except (NotFound, PermissionDenied):  # YARN's view_users need not have access to files
            return {}
        return status if status.get("application") == self.application else {}


def find_job(
    manager: ResourceManager, application: str | None, config: Config | None = None
) -> Job:
    """The job of an application's id, or of a configuration's run directory.

    Raises:
        UsageError: neither is given. NotFound: nothing was submitted to that directory.
    """
    if application is None:
        if config is None:
            raise UsageError("which job? give an application's id, or --config")
        claim = read_claim(config.run.directory)
        application = claim.application if claim is not None else None
        if application is None:  # any user can set a tag: it counts on the submitter's alone
            tag = spec.tag(config.run.directory) if claim is None else claim_tag(claim.token)
            user = (claim and claim.user) or config.run.user or own_user(manager)
            live = manager.applications(applicationTags=tag, user=user) if user else []
            application = live[0]["id"] if live else None
        if application is None:
            raise NotFound(
                "no job was submitted to this run directory",
                where=config.run.directory,
                remedy="howdah submit --config ...",
            )
        return Job(application, config.run.directory)
    if config is not None:
        return Job(application, config.run.directory)
    return Job(application, _directory(manager, application))


def _directory(manager: ResourceManager, application: str) -> str | None:
    """A job's run directory, from its user's registry; None: not found, or not readable."""
    root = settings.load().default_fs
    if root is None:
        return None
    try:
        user = str(manager.application(application).get("user"))
        return registry.run_directory(storage.join(root, "user", user, ".howdah"), application)
    except (NotFound, PermissionDenied):
        return None


# -------------------------------------------------------------------------------------- status
def job_status(manager: ResourceManager, job: Job) -> dict[str, Any]:
    """YARN's report and the driver's status, as one object.

    Raises:
        NotFound: neither YARN nor the run directory knows it (any more).
    """
    status = job.driver_status()
    try:
        report = manager.application(job.application)
    except NotFound:
        if not status:
            raise
        report = {"id": job.application, "state": "FORGOTTEN"}  # YARN keeps the newest ones only
    return {
        "application": job.application,
        "state": report["state"],
        "final_status": report.get("finalStatus"),
        "name": report.get("name"),
        "user": report.get("user"),
        "queue": report.get("queue"),
        "priority": report.get("priority"),
        "tracking_url": manager.job_page(report),
        "diagnostics": (report.get("diagnostics") or "").strip(),
        "elapsed_seconds": (report.get("elapsedTime") or 0) / 1000,
        "containers": report.get("runningContainers"),
        "run_directory": job.directory,
        "job": status or None,
        "run": _run(job),
    }


def _run(job: Job) -> dict[str, Any] | None:
    """Ids, status and scalar metrics of run.json; None: not written, or not readable."""
    if job.directory is None:
        return None
    try:
        record = storage.read_json(storage.join(job.directory, "run.json"))
    except (NotFound, PermissionDenied):
        return None
    ids = {key: record.get(key) for key in ("run_id", "status", "mlflow_run_id")}
    metrics = {
        split: {k: v for k, v in values.items() if isinstance(v, int | float)}
        for split, values in (record.get("metrics") or {}).items()
        if isinstance(values, dict)
    }
    return {**ids, "metrics": metrics}


def status_lines(status: dict[str, Any]) -> list[str]:
    """A `job_status` as text."""
    lines = [
        f"{status['application']}  {as_cell(status['name'] or '')}  {status['state']}"
        + (f" ({status['final_status']})" if status["state"] in OVER else ""),
    ]
    if status["user"] is not None:
        lines.append(
            f"user {status['user']}, queue {status['queue']}, priority {status['priority']},"
            f" {_time(status['elapsed_seconds'])}"
        )
    lines += [f"run directory: {status['run_directory']}"] if status["run_directory"] else []
    lines += [f"page: {status['tracking_url']}"] if status["user"] else []
    lines += [f"diagnostics: {status['diagnostics']}"] if status["diagnostics"] else []
    return lines + _job_lines(status["job"] or {})


def _job_lines(job: dict[str, Any]) -> list[str]:
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
        line += f", {_time(job['eta_seconds'])} left"
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


def _time(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def own_user(manager: ResourceManager) -> str | None:
    """Whose jobs `howdah ps` shows; None: all users', because there is no Kerberos ticket."""
    return short_name() if manager.conf.kerberos else current_user()


def list_jobs(
    manager: ResourceManager, *, user: str | None, finished: bool
) -> list[dict[str, Any]]:
    """Howdah's jobs, newest first: YARN's report, and of running ones the driver's status.

    Args:
        user: only this user's; None: all users'.
        finished: also jobs that are over.
    """
    filters = {"applicationTags": spec.TAG}
    if not finished:
        filters["states"] = LIVE
    if user is not None:
        filters["user"] = user
    found = []
    for app in manager.applications(**filters):
        job, status = Job(app["id"], None), {}
        if app["state"] not in OVER:
            with contextlib.suppress(HowdahError):  # no access to another user's files
                job = find_job(manager, app["id"])
                status = job.driver_status()
        found.append(
            {
                "application": app["id"],
                "name": app.get("name"),
                "user": app.get("user"),
                "queue": app.get("queue"),
                "state": app["state"],
                "final_status": app.get("finalStatus"),
                "progress": round(float(app.get("progress") or 0), 1),
                "elapsed_seconds": (app.get("elapsedTime") or 0) / 1000,
                "workers": status.get("world_size"),
                "step": status.get("step"),
                "run_directory": job.directory,
            }
        )
    return found


def ps_lines(found: list[dict[str, Any]]) -> list[str]:
    """`list_jobs` as a table."""
    if not found:
        return ["no jobs"]
    rows = [("APPLICATION", "NAME", "USER", "QUEUE", "STATE", "DONE", "TIME", "WORKERS", "STEP")]
    for job in found:
        over = job["state"] in OVER
        state = job["final_status"] if over and job["state"] == "FINISHED" else job["state"]
        rows.append(
            (
                job["application"],
                job["name"],
                job["user"],
                job["queue"],
                state,
                f"{job['progress']:.0f}%",
                _time(job["elapsed_seconds"]),
                _or_dash(job["workers"]),
                _or_dash(job["step"]),
            )
        )
    cells = [[as_cell(cell) for cell in row] for row in rows]
    widths = [max(len(row[n]) for row in cells) for n in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def _or_dash(value: Any) -> str:
    return "-" if value is None else str(value)
