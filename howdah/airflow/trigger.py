"""Wait for an application on YARN without a worker's slot.

Runs in Airflow's triggerer, beside hundreds of others in one event loop: every blocking call runs
in a thread. The log position is kept in an XCom, so that a triggerer that takes over after a
restart logs no line twice.

Airflow's database holds triggers by class path and arguments, and XComs by key: a deferred task of
an earlier version is resumed only while these names stay.
"""

from __future__ import annotations

import howdah.airflow.required

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from airflow.sdk.exceptions import AirflowException, AirflowRuntimeError
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.sdk.execution_time.xcom import XCom
from airflow.triggers.base import BaseTrigger, TriggerEvent

from howdah import storage
from howdah.airflow import links
from howdah.airflow.application import tickets
from howdah.airflow.application import watching as app
from howdah.airflow.application.ownership import OWNER_KEY, TaskKey
from howdah.airflow.failures import HowdahCommandRefused
from howdah.airflow.hook import HowdahHook, masked
from howdah.airflow.retries import ENDED
from howdah.airflow.runner.settings import ConnectionSettings
from howdah.errors import ConfigError, HowdahError, NotFound
from howdah.hadoop.resourcemanager import kill_and_wait

POSITION_KEY = "howdah_told"
"""XCom key of the log position (watching.LogPosition)."""
_TAKE_OVER_SECONDS = 15.0
"""How long the next try may take to claim the application; Airflow gives `on_kill` 30 s in all."""
_KILL_SECONDS = 10.0
_PAGE_SECONDS = 60.0
"""How long the job's page may fail to answer before the status is read in another way."""
_STATUS_SECONDS, _MOST_STATUS_SECONDS = 30.0, 600.0
"""Between two such reads: first and longest pause; it doubles each time."""
_REMIND_SECONDS = 600.0
"""How often the log says that the ResourceManager still does not answer."""

_NO_ANSWER = (AirflowException, AirflowRuntimeError, TypeError)
"""What Airflow's own calls raise when its API does not answer (TypeError: an answer of another
kind)."""

# Not asyncio's own threads: those are few, and a ResourceManager that hangs would block them all.
_REPORTS = ThreadPoolExecutor(max_workers=32, thread_name_prefix="howdah-report")
_KILLS = ThreadPoolExecutor(max_workers=8, thread_name_prefix="howdah-kill")
_STATUSES = ThreadPoolExecutor(max_workers=4, thread_name_prefix="howdah-status")

_KILLING: set[asyncio.Task[None]] = set()
"""Kills under way: asyncio itself holds its tasks by weak references."""


def _can_read_storage_of(settings: ConnectionSettings) -> bool:
    """True if storage's settings are the same here as for the Connection's commands: storage reads
    this process's environment, which a Connection cannot change."""
    return settings.ssh_conn_id is None and all(
        os.environ.get(name) == value
        for name, value in settings.environment.items()
        if name.startswith(("HADOOP_", "KRB5", "AWS_"))
    )


async def _in(pool: ThreadPoolExecutor, call: Callable[..., Any], *args: Any, **more: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(pool, lambda: call(*args, **more))


class ApplicationTrigger(BaseTrigger):
    """Fires when an application is over, or its deadline has passed.

    Args:
        conn_id: Connection of the cluster.
        application: its id.
        key: the task's dag_id, run_id, task_id and map_index.
        token: of the execution that waits; a later one has another.
        try_number: of the task.
        run_directory: of the job.
        user: proxied user; none: the Connection's.
        deadline: seconds since 1970 after which the application is killed; none: never.
        poll_seconds: between two reports.
        tracking: MLflow's page, of `links.tracking_page`.
    """

    def __init__(
        self,
        conn_id: str,
        application: str,
        key: dict[str, Any],
        token: str,
        try_number: int,
        run_directory: str,
        user: str | None = None,
        deadline: float | None = None,
        poll_seconds: float = 2.0,
        tracking: str | None = None,
    ) -> None:
        super().__init__()
        self.conn_id, self.application, self.token = conn_id, application, token
        self.key, self.try_number = TaskKey(**key), try_number
        self.user, self.deadline, self.poll_seconds = user, deadline, poll_seconds
        self.run_directory, self.tracking = run_directory, tracking
        self._manager: Any = None
        self._over = self._timed_out = False
        self._logs_url: str | None = None
        self._mlflow_run: str | None = None
        self._unanswered_since: float | None = None
        self._reminded = 0.0
        self._hook: Any = None
        self._status_unreadable = False
        self._status_due = 0.0
        self._status_pause = _STATUS_SECONDS
        self._status_read: asyncio.Task[Any] | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """For Airflow's database."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "conn_id": self.conn_id, "application": self.application,
                "key": self.key.as_dict(), "token": self.token, "try_number": self.try_number,
                "run_directory": self.run_directory, "user": self.user, "deadline": self.deadline,
                "poll_seconds": self.poll_seconds, "tracking": self.tracking,
            },
        )  # fmt: skip

    # ---------------------------------------------------------------------------- watching
    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Watch until it is over; one event, also for an unexpected error.

        A trigger that raises fails its task at once and leaves the application running, so every
        error goes to the worker, in the event's "problem".
        """
        try:
            event = await self._watch()
        except (HowdahError, HowdahCommandRefused) as error:
            event = {"problem": str(error)}
        except Exception as error:
            self.log.exception("Howdah's trigger has failed")
            event = {"problem": f"{type(error).__name__}: {error}"}
        finally:
            if self._status_read is not None:
                self._status_read.cancel()
        self._over = "state" in event
        held = {"application": self.application, "token": self.token, "deadline": self.deadline}
        yield TriggerEvent({**held, **event})

    async def _watch(self) -> dict[str, Any]:
        position = app.LogPosition.of(await self._stored_position(), self.application)
        if position.state is not None:
            self.log.info("watching %s again", self.application)
        while True:
            if (
                self.deadline is not None
                and time.time() > self.deadline
                and await self._killed_at_deadline()
            ):
                return {
                    "state": "KILLED",
                    "final_status": "KILLED",
                    "diagnostics": "",
                    "timed_out": True,
                }
            report = await self._report()
            if report is not None:
                report = await self._with_status(report)
                lines, now = app.new_lines(report, position)
                if now != position:
                    position = now
                    await self._store_position(position)
                for line in lines:
                    self.log.info("%s", masked(line))
                await self._push_links(report)
                if report.over:
                    return {
                        "state": report.state,
                        "final_status": report.yarn.get("finalStatus"),
                        "diagnostics": masked(report.diagnostics[-4000:]),
                    }
            await asyncio.sleep(self.poll_seconds)

    async def _report(self) -> app.ApplicationReport | None:
        """None: the ResourceManager does not answer now. The trigger waits for it without limit.

        Raises:
            NotFound: YARN has forgotten the application.
        """
        try:
            if self._manager is None:
                self._manager = await _in(_REPORTS, self._connect)
            report = await _in(_REPORTS, app.fetch_report, self._manager, self.application)
        except (NotFound, ConfigError, HowdahCommandRefused):
            raise
        except (HowdahError, *_NO_ANSWER) as error:
            self._warn_unanswered(str(error))
            return None
        if self._unanswered_since is not None:
            seconds = time.monotonic() - self._unanswered_since
            self.log.info("the ResourceManager answers again, after %.0f s", seconds)
            self._unanswered_since = None
        return report

    def _connect(self) -> Any:
        self._hook = hook = HowdahHook(self.conn_id)
        tickets.hold(hook.settings.keytab, hook.settings.principal, f"{self.conn_id}: keytab")
        return hook.resource_manager(user=self.user, patience=0.0)

    async def _with_status(self, report: app.ApplicationReport) -> app.ApplicationReport:
        """Where the job's page does not answer: the report with the status of the run directory,
        which is read in the background, so that reports do not wait for it."""
        if self._status_read is not None and self._status_read.done():
            done, self._status_read = self._status_read, None
            return self._with_result(report, done)
        if report.status_error is None:
            if report.status is not None:
                self._status_due, self._status_pause = 0.0, _STATUS_SECONDS
            return report
        if self._status_read is not None:
            return report
        now = time.monotonic()
        if not self._status_due:  # the driver may be starting
            self._status_due = now + _PAGE_SECONDS
        if now >= self._status_due:
            self._status_due = now + self._status_pause
            self._status_pause = min(2 * self._status_pause, _MOST_STATUS_SECONDS)
            self._status_read = asyncio.create_task(_in(_STATUSES, self._read_status))
        return report

    def _with_result(
        self, report: app.ApplicationReport, done: asyncio.Task[Any]
    ) -> app.ApplicationReport:
        """The report with the status that was read; a failure is logged once and ignored, since
        the job does not depend on it."""
        try:
            status = done.result()
        except (HowdahError, OSError, *_NO_ANSWER) as error:
            if not self._status_unreadable:
                self.log.warning(
                    "rank 0's lines are logged only at the end: neither the job's page (%s) nor the"
                    " run directory (%s) can be read here", report.status_error, error,
                )  # fmt: skip
            self._status_unreadable = True
            return report
        return report if report.status is not None else replace(report, status=status)

    def _read_status(self) -> dict[str, Any] | None:
        """The driver's status.json: read in this process where storage has the same settings as
        for the Connection's commands, else by `howdah status`."""
        if not _can_read_storage_of(self._hook.settings):
            arguments = ["status", self.application, "--json"]
            return self._hook.run(arguments, on_line=lambda line: None).get("job")
        status = storage.read_json(storage.join(self.run_directory, "job", "status.json"))
        ours = isinstance(status, dict) and status.get("application") == self.application
        return status if ours else None

    def _warn_unanswered(self, cause: str) -> None:
        now = time.monotonic()
        if self._unanswered_since is None:
            self._unanswered_since = self._reminded = now
            self.log.warning("%s\nasking again; meanwhile the application runs on", cause)
        elif now - self._reminded > _REMIND_SECONDS:
            self._reminded = now
            self.log.warning(
                "no answer from the ResourceManager for %.0f minutes",
                (now - self._unanswered_since) / 60,
            )

    async def _push_links(self, report: app.ApplicationReport) -> None:
        """Push the links that are known only once the application runs."""
        if report.logs_url is not None and report.logs_url != self._logs_url:
            self._logs_url = report.logs_url
            await self._tolerant(links.push, self.key.as_dict(), links.LogsLink, report.logs_url)
        run = (report.status or {}).get("mlflow_run_id")
        if run is not None and run != self._mlflow_run:
            self._mlflow_run = run
            page = links.tracked_run(self.tracking, run)
            await self._tolerant(links.push, self.key.as_dict(), links.MlflowLink, page)

    async def _killed_at_deadline(self) -> bool:
        """Kill it; False: it had ended by itself, or YARN has not confirmed the kill yet."""
        if not self._timed_out:
            self._timed_out = True
            self.log.error("the time limit is over: killing %s", self.application)
        try:
            state = await self._kill("its time limit is over")
        except (HowdahError, *_NO_ANSWER) as error:
            self._warn_unanswered(str(error))
            return False
        return state == "KILLED"

    # ------------------------------------------------------------------------------ killing
    async def on_kill(self) -> None:
        """The user has marked the task, or cleared it: kill the application, unless a later try
        claims it.

        A cleared task is tried again: that try goes on with the application if it starts in time.
        `cleanup` kills nothing: it is also called when a triggerer stops.

        Airflow cancels a trigger every second until it has ended, this method included; so the
        kill runs in a task of its own, which Airflow does not cancel.
        """
        if self._over:
            return
        task = asyncio.create_task(self._kill_unless_taken_over())
        _KILLING.add(task)
        task.add_done_callback(_KILLING.discard)
        await asyncio.shield(task)

    async def _kill_unless_taken_over(self) -> None:
        try:
            if await self._taken_over():
                self.log.info("the next try resumes %s", self.application)
                return
        except Exception:  # Airflow does not answer: an application must not run on unwatched
            self.log.exception("whether another try has taken the application over is not known")
        self.log.info("killing %s", self.application)
        try:
            state = await self._kill("its task was ended")
        except (HowdahError, *_NO_ANSWER) as error:
            self.log.error("%s was not killed: %s", self.application, error)
        else:
            self.log.info("%s is %s", self.application, state)

    async def _taken_over(self) -> bool:
        until = time.monotonic() + _TAKE_OVER_SECONDS
        while True:
            owner = await self._xcom(OWNER_KEY)
            if isinstance(owner, dict) and owner.get("token") != self.token:
                return True
            if await self._task_state() in ENDED or time.monotonic() > until:
                return False
            await asyncio.sleep(0.5)

    async def _kill(self, why: str) -> str:
        if self._manager is None:
            self._manager = await _in(_KILLS, self._connect)
        reason = self.key.reason(self.try_number, self.token, why)
        return await _in(
            _KILLS, kill_and_wait, self._manager, self.application, reason,
            seconds=_KILL_SECONDS,
        )  # fmt: skip

    # --------------------------------------------------------------------- Airflow's database
    async def _task_state(self) -> str | None:
        """The task's state now."""
        key = self.key
        states = await _in(
            _KILLS, RuntimeTaskInstance.get_task_states, dag_id=key.dag_id, run_ids=[key.run_id],
            task_ids=[key.task_id], map_index=key.map_index,
        )  # fmt: skip
        known_states = [state for state in states.get(key.run_id, {}).values() if state]
        return str(known_states[0]) if known_states else None

    async def _xcom(self, key: str) -> Any:
        return await _in(_KILLS, XCom.get_one, key=key, **self.key.as_dict())

    async def _stored_position(self) -> Any:
        try:
            return await self._xcom(POSITION_KEY)
        except _NO_ANSWER as error:
            self.log.warning("the log position is not known, lines may come twice: %s", error)
            return None

    async def _store_position(self, position: app.LogPosition) -> None:
        """Before its lines are logged: a crash in between loses some, and repeats none."""
        await self._tolerant(
            XCom.set, key=POSITION_KEY, value=position.as_dict(), **self.key.as_dict()
        )

    async def _tolerant(self, call: Callable[..., Any], *args: Any, **more: Any) -> None:
        """Call Airflow's API; a failure is only logged, since the application does not need it."""
        try:
            await _in(_REPORTS, call, *args, **more)
        except _NO_ANSWER as error:
            self.log.warning("Airflow did not store an XCom: %s", error)
