"""An application on YARN: a training job, or a server of a model.

It is read from the ResourceManager's REST interface and from files of the run directory, without
Java and without a route to the application's containers.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from howdah import storage
from howdah.core.activity import Progress
from howdah.errors import ClusterError, HowdahError, NotFound, PermissionDenied
from howdah.hadoop import conf as settings
from howdah.hadoop.kerberos import logged_in, short_name
from howdah.hadoop.resourcemanager import (
    LIVE,
    OVER,
    PATIENCE_SECONDS,
    ResourceManager,
    kill_and_wait,
)
from howdah.hadoop.web import current_user
from howdah.jobs import record
from howdah.jobs.application import Application
from howdah.jobs.status.text import LISTING_SECONDS, row
from howdah.models.runs import applications
from howdah.models.runs.hours import of_application
from howdah.yarn import logs, registry, server, spec

KILL_SECONDS = 30.0
"""How long YARN may take to confirm a kill."""
_TRAINING_LOG = re.compile(r"training\.(\d+)\.log")
"""The log of a container's Nth training process (jobs/training_process.py)."""


class YarnApplication(Application):
    """An application of a ResourceManager.

    Args:
        application: its id.
        directory: the run directory or the served model's; None: not known here.
        login: keytab, principal and the key that names them, for a command that waits.
        tokens: reads the tokens of a server's clients; without any its address is not verified.
    """

    def __init__(
        self,
        manager: ResourceManager,
        application: str,
        directory: str | None,
        *,
        login: tuple[str | None, str | None, str] | None = None,
        tokens: Callable[[], list[bytes]] = list,
    ) -> None:
        super().__init__(application, on="yarn", directory=directory)
        self.manager, self._login, self._tokens = manager, login, tokens
        self._is_patient = False

    def look(self) -> tuple[str, bool]:
        """YARN's state of the application, and True once it has ended."""
        state = self.manager.application(self.id)["state"]
        return state, state in OVER

    def facts(self, driver: Mapping[str, Any]) -> dict[str, Any]:
        try:
            report = self.manager.application(self.id)
        except NotFound:
            if not driver:
                raise
            report = {"id": self.id, "state": "FORGOTTEN"}  # YARN only keeps the newest reports
        where = None
        if report.get("user") is not None:
            where = (
                f"user {report['user']}, queue {report.get('queue')}, priority"
                f" {report.get('priority')}"
            )
        return {
            "state": report["state"],
            "final_status": report.get("finalStatus"),
            "name": report.get("name"),
            "where": where,
            "user": report.get("user"),
            "queue": report.get("queue"),
            "priority": report.get("priority"),
            "tracking_url": self.manager.job_page(report) if report.get("user") else None,
            "diagnostics": (report.get("diagnostics") or "").strip(),
            "elapsed_seconds": (report.get("elapsedTime") or 0) / 1000,
            "containers": report.get("runningContainers"),
            "hours": self._hours(report),
            "server": self._server(),
        }

    def _hours(self, report: Mapping[str, Any]) -> dict[str, Any] | None:
        """The hours that the job has used; once it is over, those of its whole run, which are also
        written into run.json.

        Errors are ignored: a user may see a job without access to its run's files.
        """
        if "vcoreSeconds" not in report:
            return None
        over = report["state"] in OVER
        if over and self.directory is not None:
            with contextlib.suppress(HowdahError):
                if hours := applications.complete(self.manager, self.directory):
                    return hours
        return of_application(dict(report), final=over)

    def _server(self) -> dict[str, Any] | None:
        """Address and health of a server; None: the application is not a server."""
        if self.directory is None or not self.is_server:
            return None
        return server.look(self.id, self.directory, self._tokens())

    @property
    def is_server(self) -> bool:
        """True if its record says that it is a server."""
        try:
            present = record.read(self.directory) if self.directory is not None else None
        except PermissionDenied:
            return False
        return present is not None and (present.kind, present.application) == ("server", self.id)

    # -------------------------------------------------------------------------------- logs
    def container_logs(self, progress: Progress) -> dict[str, dict[str, str]]:
        return logs.of_containers(self.manager, self.id, progress)

    def container_of_rank(self, rank: int) -> list[str]:
        """The log of the last training process with a rank, from its container."""
        ranks = self.driver_status().get("ranks") or []
        container = next((r.get("container") for r in ranks if r.get("rank") == rank), None)
        files = self.container_logs(lambda line: None).get(container or "", {})
        numbers = [int(match[1]) for name in files if (match := _TRAINING_LOG.fullmatch(name))]
        if not numbers:
            return []
        return files[f"training.{max(numbers)}.log"].rstrip("\n").split("\n")

    # --------------------------------------------------------------------------------- end
    def end(self) -> str:
        state = kill_and_wait(self.manager, self.id, "killed by howdah", seconds=KILL_SECONDS)
        if state not in OVER:
            raise ClusterError(
                f"YARN has not confirmed the kill within {KILL_SECONDS:.0f} s",
                where=self.id,
                got=state,
                remedy=f"yarn application -kill {self.id}",
            )
        return state

    def ended(self) -> None:
        if self.directory is None:
            return
        with contextlib.suppress(HowdahError):  # `howdah status` completes them later
            applications.complete(self.manager, self.directory)
        if self.is_server:
            server.remove_address(self.id, self.directory)

    @contextlib.contextmanager
    def patience(self) -> Iterator[None]:
        if self._is_patient:
            yield
            return
        patience = max(PATIENCE_SECONDS, storage.retry_seconds())
        with logged_in(*self._login) if self._login else contextlib.nullcontext():
            self.manager = ResourceManager(user=self.manager.user, patience=patience)
            self._is_patient = True
            yield


def user_of(manager: ResourceManager) -> str | None:
    """The user whose jobs `howdah ps` shows; None: all users', without a Kerberos ticket."""
    return short_name() if manager.conf.kerberos else current_user()


def directory_of(manager: ResourceManager, application: str) -> str | None:
    """An application's directory, from its user's registry; None: not found, or not readable."""
    root = settings.load().default_fs
    if root is None:
        return None
    try:
        user = str(manager.application(application).get("user"))
        return registry.run_directory(storage.join(root, "user", user, ".howdah"), application)
    except (NotFound, PermissionDenied):
        return None


@storage.waiting_at_most(LISTING_SECONDS, once=True)
def listed(manager: ResourceManager, *, user: str | None, finished: bool) -> list[dict[str, Any]]:
    """The rows of `howdah ps` for YARN: its reports, with the driver's status of running jobs.

    Args:
        user: the user whose jobs are listed; None: all users'.
        finished: list ended jobs too.
    """
    filters = {"applicationTags": spec.TAG}
    if not finished:
        filters["states"] = LIVE
    if user is not None:
        filters["user"] = user
    rows = []
    for report in manager.applications(**filters):
        over = report["state"] in OVER
        directory, driver = None, {}
        if not over:
            with contextlib.suppress(HowdahError):  # another user's files may be unreadable
                directory = directory_of(manager, report["id"])
                driver = YarnApplication(manager, report["id"], directory).driver_status()
        rows.append(
            row(
                application=report["id"], state=report["state"],
                final_status=report.get("finalStatus"), driver=driver, name=report.get("name"),
                user=report.get("user"), queue=report.get("queue"),
                progress=round(float(report.get("progress") or 0), 1),
                elapsed_seconds=(report.get("elapsedTime") or 0) / 1000,
                hours=of_application(report, final=over), run_directory=directory,
            )
        )  # fmt: skip
    return rows
