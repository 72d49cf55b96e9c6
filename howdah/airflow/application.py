"""An application on YARN, watched: what the task's log is told of it, and nothing twice.

Asks the ResourceManager, and through its proxy the job's own page, so that neither a route to the
containers nor a Hadoop client is needed. Nothing of Airflow in here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from howdah.errors import HowdahError, NotFound
from howdah.hadoop import web
from howdah.hadoop.resourcemanager import OVER, ResourceManager

__all__ = ["Place", "Sight", "end", "job_lines", "look", "told_lines"]

_PAGE_SECONDS = 10.0
_KILL_POLL_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class Place:
    """How far an application has been told of: kept across restarts of whoever watches it."""

    application: str
    state: str | None = None
    """YARN's word that was told last."""
    attempt: int = 0
    """The application's attempt that `line` and `event` count in."""
    line: int = 0
    """Serial number of rank 0's last line that was told."""
    event: float = 0.0
    """Time of the last event that was told."""

    def as_dict(self) -> dict[str, Any]:
        """To be stored."""
        return asdict(self)

    @classmethod
    def of(cls, stored: Any, application: str) -> Place:
        """What was stored of this application, else the beginning."""
        if isinstance(stored, Mapping) and stored.get("application") == application:
            known = {name: stored[name] for name in cls.__dataclass_fields__ if name in stored}
            return cls(**known)
        return cls(application=application)


@dataclass(frozen=True, kw_only=True)
class Sight:
    """One look at an application."""

    report: dict[str, Any]
    """YARN's."""
    job: dict[str, Any] | None
    """The driver's own account (status.json)."""
    page_trouble: str | None = None
    """Why `job` of a running application is None."""
    logs: str | None = None
    """URL of its driver's logs; None: it has not been started."""

    @property
    def state(self) -> str:
        """YARN's word."""
        return str(self.report["state"])

    @property
    def over(self) -> bool:
        """It has ended, in whatever way."""
        return self.state in OVER

    @property
    def succeeded(self) -> bool:
        """It has ended well."""
        return self.over and self.report.get("finalStatus") == "SUCCEEDED"

    @property
    def diagnostics(self) -> str:
        """What YARN says of its end."""
        return str(self.report.get("diagnostics") or "").strip()


def look(manager: ResourceManager, application: str) -> Sight:
    """YARN's report and the job's own account.

    Raises:
        NotFound: YARN does not know the application (any more).
        ClusterError: the ResourceManager does not answer.
    """
    report = manager.application(application)
    job, trouble = None, None
    if report["state"] == "RUNNING":
        job, trouble = _job(manager, report)
    logs = str(report.get("amContainerLogs") or "") or None
    return Sight(report=report, job=job, page_trouble=trouble, logs=logs)


def _job(
    manager: ResourceManager, report: Mapping[str, Any]
) -> tuple[dict[str, Any] | None, str | None]:
    """The page's status.json, or why there is none: the driver may only be starting."""
    import requests

    url = f"{manager.job_page(report)}status.json"
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
        told = answer.json()
    except ValueError:
        return None, f"{url}: no JSON"
    if not isinstance(told, dict) or told.get("application") != report["id"]:
        return None, f"{url}: not this job's page"
    return told, None


def told_lines(sight: Sight, place: Place) -> tuple[list[str], Place]:
    """What is new since `place`: lines for the log, and how far that is."""
    lines = []
    if sight.state != place.state:
        text = f"{place.application} is {sight.state}"
        if sight.over:
            text += f" ({sight.report.get('finalStatus')})"
        lines.append(text)
        place = replace(place, state=sight.state)
    more, place = job_lines(sight.job, place)
    return lines + more, place


def job_lines(job: Mapping[str, Any] | None, place: Place) -> tuple[list[str], Place]:
    """The same of the driver's account alone: events, and rank 0's lines."""
    if not job:
        return [], place
    attempt = int(job.get("attempt") or 0)
    if attempt != place.attempt:  # a new driver counts from 1 again
        place = replace(place, attempt=attempt, line=0, event=0.0)
    lines = []
    for event in job.get("events") or []:
        if event["time"] > place.event:
            lines.append(f"[job] {event['what']}")
            place = replace(place, event=event["time"])
    for serial, text in job.get("lines") or []:
        if serial <= place.line:
            continue
        if serial > place.line + 1 and place.line:
            lines.append(f"({serial - place.line - 1} lines are left out; the logs have them)")
        lines.append(f"[rank 0] {text}")
        place = replace(place, line=serial)
    return lines, place


def end(
    manager: ResourceManager,
    application: str,
    why: str,
    *,
    seconds: float,
    pause: Callable[[float], None] = time.sleep,
) -> str:
    """Kill an application and see that it is over; its state then.

    Args:
        why: for YARN's diagnostics.
        seconds: how long YARN is waited for.
        pause: waits between two looks.
    Returns:
        FINISHED, FAILED or KILLED; another state: YARN has not confirmed it by then. "UNKNOWN":
        YARN has forgotten it.
    """
    until = time.monotonic() + seconds
    state = "UNKNOWN"
    while True:
        try:
            state = manager.kill(application, why)
        except NotFound:  # also while the ResourceManager starts
            if _forgotten(manager, application):
                return state
        except HowdahError:
            if time.monotonic() > until:
                raise
        if state in OVER or time.monotonic() > until:
            return state
        pause(_KILL_POLL_SECONDS)


def _forgotten(manager: ResourceManager, application: str) -> bool:
    """YARN says for certain that it does not know an application."""
    try:
        manager.application(application)
    except NotFound:
        return True
    except HowdahError:
        return False
    return False
