"""`howdah status` and `howdah ps`: jobs on YARN, looked at.

By the ResourceManager's REST interface and by files of the run directory: neither Java nor a route
to the application's own containers is needed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from howdah import storage
from howdah.config_model import Config
from howdah.errors import HowdahError, NotFound, PermissionDenied, UsageError
from howdah.hadoop import conf as settings
from howdah.hadoop.kerberos import short_name
from howdah.hadoop.resourcemanager import LIVE, OVER, ResourceManager
from howdah.hadoop.web import current_user
from yarn import registry, spec
from yarn.owner import held_by

__all__ = ["Job", "find", "jobs", "oneself", "ps_lines", "status", "status_lines"]


@dataclass(frozen=True)
class Job:
    """An application of ours: its id, and its run directory if that is known."""

    application: str
    directory: str | None

    def told(self) -> dict[str, Any]:
        """What its driver last said of itself (status.json); {}: nothing yet."""
        if self.directory is None:
            return {}
        try:
            told = storage.read_json(storage.join(self.directory, "yarn", "status.json"))
        except (NotFound, PermissionDenied):  # who may see the application may not see its files
            return {}
        return told if told.get("application") == self.application else {}


def find(manager: ResourceManager, application: str | None, config: Config | None = None) -> Job:
    """The job of an application's id, or of a configuration's run directory.

    Raises:
        UsageError: neither is given. NotFound: nothing was submitted to that directory.
    """
    if application is None:
        if config is None:
            raise UsageError("which job? give an application's id, or --config")
        claim = held_by(config.run.directory)
        application = claim.application if claim is not None else None
        if application is None:
            live = manager.applications(applicationTags=spec.tag(config.run.directory))
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
    """A run directory by the registry in its owner's home; None: not found, or not readable."""
    root = settings.load().default_fs
    if root is None:
        return None
    try:
        user = str(manager.application(application).get("user"))
        return registry.run_directory(storage.join(root, "user", user, ".howdah"), application)
    except (NotFound, PermissionDenied):
        return None


# -------------------------------------------------------------------------------------- status
def status(manager: ResourceManager, job: Job) -> dict[str, Any]:
    """YARN's report and the driver's own account, as one object.

    Raises:
        NotFound: neither YARN nor the run directory knows it (any more).
    """
    told = job.told()
    try:
        report = manager.application(job.application)
    except NotFound:
        if not told:
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
        "job": told or None,
        "run": _run(job),
    }


def _run(job: Job) -> dict[str, Any] | None:
    """What is small of run.json: whose figures they are, and what they are; None: not written."""
    if job.directory is None:
        return None
    try:
        told = storage.read_json(storage.join(job.directory, "run.json"))
    except (NotFound, PermissionDenied):
        return None
    held = {key: told.get(key) for key in ("run_id", "status", "mlflow_run_id")}
    metrics = {
        split: {k: v for k, v in figures.items() if isinstance(v, int | float)}
        for split, figures in (told.get("metrics") or {}).items()
        if isinstance(figures, dict)
    }
    return {**held, "metrics": metrics}


def status_lines(told: dict[str, Any]) -> list[str]:
    """The same for people."""
    lines = [
        f"{told['application']}  {told['name'] or ''}  {told['state']}"
        + (f" ({told['final_status']})" if told["state"] in OVER else ""),
    ]
    if told["user"] is not None:
        lines.append(
            f"user {told['user']}, queue {told['queue']}, priority {told['priority']},"
            f" {_time(told['elapsed_seconds'])}"
        )
    lines += [f"run directory: {told['run_directory']}"] if told["run_directory"] else []
    lines += [f"page: {told['tracking_url']}"] if told["user"] else []
    lines += [f"diagnostics: {told['diagnostics']}"] if told["diagnostics"] else []
    return lines + _job_lines(told["job"] or {})


def _job_lines(job: dict[str, Any]) -> list[str]:
    if not job:
        return ["the driver has told nothing yet"]
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
        f"last checkpoint: {saved['path']}" if saved.get("path") else "no checkpoint yet",
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
    told = [rank.get("data") or {} for rank in ranks]
    if not any(told):
        return []
    near, far, fetches = (
        sum(int(data.get(key) or 0) for data in told)
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


def oneself(manager: ResourceManager) -> str | None:
    """Whose jobs `howdah ps` shows; None: everybody's, where it is not known who one is."""
    return short_name() if manager.conf.kerberos else current_user()


def jobs(manager: ResourceManager, *, user: str | None, finished: bool) -> list[dict[str, Any]]:
    """Howdah's jobs, newest first: YARN's report, and of those that run the driver's account.

    Args:
        user: only this one's.
        finished: those that are over as well.
    """
    filters = {"applicationTags": spec.TAG}
    if not finished:
        filters["states"] = LIVE
    if user is not None:
        filters["user"] = user
    found = []
    for app in manager.applications(**filters):
        job = Job(app["id"], None)
        if app["state"] not in OVER:
            try:
                job = find(manager, app["id"])
                told = job.told()
            except HowdahError:  # another's files: YARN's report is what we may see
                told = {}
        else:
            told = {}
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
                "workers": told.get("world_size"),
                "step": told.get("step"),
                "run_directory": job.directory,
            }
        )
    return found


def ps_lines(found: list[dict[str, Any]]) -> list[str]:
    """A table for people."""
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
    widths = [max(len(str(row[n])) for row in rows) for n in range(len(rows[0]))]
    return [
        "  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _or_dash(value: Any) -> str:
    return "-" if value is None else str(value)
