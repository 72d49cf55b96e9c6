"""`howdah status` and `howdah ps`: the state of jobs on YARN.

Read from the ResourceManager's REST interface and from files of the run directory: neither Java nor
a route to the application's containers is needed.
"""

from __future__ import annotations

import contextlib
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
from howdah.jobs.status.text import duration, job_lines, run_summary
from howdah.models.runs import applications
from howdah.models.runs.hours import of_application, shown
from howdah.yarn import spec
from howdah.yarn.client import registry
from howdah.yarn.client.submission_lock import claim_tag, read_claim


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
            status = storage.read_object(storage.join(self.directory, "yarn", "status.json"))
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
    hours = _hours(manager, job, report)
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
        "run": run_summary(job.directory),
        "hours": hours,
    }


def _hours(manager: ResourceManager, job: Job, report: dict[str, Any]) -> dict[str, Any] | None:
    """What the job has used until now; once it is over, of all of its run, and into run.json.

    Who may see a job need not have access to its run's files, nor may storage be away for a status.
    """
    if "vcoreSeconds" not in report:
        return None
    over = report["state"] in OVER
    if over and job.directory is not None:
        with contextlib.suppress(HowdahError):
            if found := applications.complete(manager, job.directory):
                return found
    return of_application(report, final=over)


def status_lines(status: dict[str, Any]) -> list[str]:
    """A `job_status` as text."""
    lines = [
        f"{status['application']}  {as_cell(status['name'] or '')}  {status['state']}"
        + (f" ({status['final_status']})" if status["state"] in OVER else ""),
    ]
    if status["user"] is not None:
        lines.append(
            f"user {status['user']}, queue {status['queue']}, priority {status['priority']},"
            f" {duration(status['elapsed_seconds'])}"
        )
    lines += [f"run directory: {status['run_directory']}"] if status["run_directory"] else []
    lines += [f"page: {status['tracking_url']}"] if status["user"] else []
    lines += [f"diagnostics: {status['diagnostics']}"] if status["diagnostics"] else []
    lines += [f"used: {shown(status['hours'])}"] if status.get("hours") else []
    return lines + job_lines(status["job"] or {})


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
                "hours": of_application(app, final=app["state"] in OVER),
                "run_directory": job.directory,
            }
        )
    return found


def ps_lines(found: list[dict[str, Any]]) -> list[str]:
    """`list_jobs` as a table."""
    if not found:
        return ["no jobs"]
    rows = [
        (
            "APPLICATION",
            "NAME",
            "USER",
            "QUEUE",
            "STATE",
            "DONE",
            "TIME",
            "WORKERS",
            "STEP",
            "CPU-H",
            "GPU-H",
        )
    ]
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
                duration(job["elapsed_seconds"]),
                _or_dash(job["workers"]),
                _or_dash(job["step"]),
                *(
                    _hours_cell(job.get("hours") or {}, *keys)
                    for keys in (("vcore", "cpu"), ("gpu",))
                ),
            )
        )
    cells = [[as_cell(cell) for cell in row] for row in rows]
    widths = [max(len(row[n]) for row in cells) for n in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def _hours_cell(hours: dict[str, Any], *keys: str) -> str:
    """The first of the figures that is known: of vcores that YARN gave, else of busy CPUs."""
    found = next((hours[key] for key in keys if hours.get(key) is not None), None)
    return "-" if found is None else f"{found:.2f}"


def _or_dash(value: Any) -> str:
    return "-" if value is None else str(value)
