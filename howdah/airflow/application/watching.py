"""Watch an application on YARN and write each of its lines to the task's log once.

Asks the ResourceManager, and through its proxy the job's status page, so that neither a route to
the containers nor a Hadoop client is needed. Imports nothing of Airflow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from howdah import job_log
from howdah.hadoop import web
from howdah.hadoop.resourcemanager import OVER, ResourceManager

_PAGE_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class LogPosition(job_log.Position):
    """How much of an application the task's log has; stored, so that it survives a restart."""

    application: str
    state: str | None = None
    """The state of YARN's that was logged last."""

    def as_dict(self) -> dict[str, Any]:
        """The position as JSON for the task's store."""
        return asdict(self)

    @classmethod
    def of(cls, stored: Any, application: str) -> LogPosition:
        """The stored position if it is of this application, else the beginning."""
        if isinstance(stored, Mapping) and stored.get("application") == application:
            fields = {name: stored[name] for name in cls.__dataclass_fields__ if name in stored}
            return cls(**fields)
        return cls(application=application)


@dataclass(frozen=True, kw_only=True)
class ApplicationReport:
    """YARN's report of an application, and the driver's status, at one moment."""

    yarn: dict[str, Any]
    """The ResourceManager's report."""
    status: dict[str, Any] | None
    """The driver's status.json."""
    status_error: str | None = None
    """Why a running application's `status` is None."""
    logs_url: str | None = None
    """URL of its driver's logs; None: no container was started for it yet."""

    @property
    def state(self) -> str:
        """YARN's state."""
        return str(self.yarn["state"])

    @property
    def over(self) -> bool:
        """True once it has finished, failed or been killed."""
        return self.state in OVER

    @property
    def diagnostics(self) -> str:
        """YARN's diagnostics."""
        return str(self.yarn.get("diagnostics") or "").strip()


def fetch_report(manager: ResourceManager, application: str) -> ApplicationReport:
    """YARN's report and, while the application runs, its driver's status.

    Raises:
        NotFound: YARN does not know the application (any more).
        ClusterError: the ResourceManager does not answer.
    """
    yarn = manager.application(application)
    status, problem = None, None
    if yarn["state"] == "RUNNING":
        status, problem = _fetch_status(manager, yarn)
    logs_url = str(yarn.get("amContainerLogs") or "") or None
    return ApplicationReport(yarn=yarn, status=status, status_error=problem, logs_url=logs_url)


def _fetch_status(
    manager: ResourceManager, yarn: Mapping[str, Any]
) -> tuple[dict[str, Any] | None, str | None]:
    """The job page's status.json, or why there is none: the driver may still be starting."""
    import requests

    url = f"{manager.job_page(yarn)}status.json"
    try:
        answer = web.session(manager.conf, url).get(
            url, params=web.identity(manager.conf, manager.user), timeout=_PAGE_SECONDS,
            headers={"Accept": "application/json"},
        )  # fmt: skip
    except requests.RequestException as error:
        return None, f"{url}: {type(error).__name__}"
    if answer.status_code != 200:
        return None, f"{url}: HTTP {answer.status_code}"
    try:
        status = answer.json()
    except ValueError:
        return None, f"{url}: no JSON"
    if not isinstance(status, dict) or status.get("application") != yarn["id"]:
        return None, f"{url}: not this job's page"
    return status, None


def new_lines(report: ApplicationReport, position: LogPosition) -> tuple[list[str], LogPosition]:
    """Lines for the log that come after `position`, and the position after them."""
    lines = []
    if report.state != position.state:
        text = f"{position.application} is {report.state}"
        if report.over:
            text += f" ({report.yarn.get('finalStatus')})"
        lines.append(text)
        position = replace(position, state=report.state)
    more, position = job_lines(report.status, position)
    return lines + more, position


def job_lines(
    status: Mapping[str, Any] | None, position: LogPosition
) -> tuple[list[str], LogPosition]:
    """The same of the driver's status alone: events, and rank 0's lines."""
    return job_log.new_lines(status, position, event="[job] ", line="[rank 0] ")
