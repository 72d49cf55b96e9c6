"""Waiting for an application on YARN without a worker's slot.

Runs in Airflow's triggerer, beside hundreds of others in one event loop: whatever blocks goes to
threads. What it has told of the application is kept in an XCom, so that a triggerer that takes over
after a restart tells nothing twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from howdah.airflow import require

require()

from airflow.sdk.exceptions import AirflowException, AirflowRuntimeError  # noqa: E402
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance  # noqa: E402
from airflow.sdk.execution_time.xcom import XCom  # noqa: E402
from airflow.triggers.base import BaseTrigger, TriggerEvent  # noqa: E402

from howdah.airflow import application as app  # noqa: E402
from howdah.airflow import links, tickets  # noqa: E402
from howdah.airflow.failures import HowdahCommandRefused  # noqa: E402
from howdah.airflow.hook import HowdahHook, blotted  # noqa: E402
from howdah.airflow.ownership import OWNER_KEY, TaskKey  # noqa: E402
from howdah.errors import ConfigError, HowdahError, NotFound  # noqa: E402

__all__ = ["ApplicationTrigger"]

PLACE_KEY = "howdah_told"
"""XCom key of how far the application has been told of."""
_FINAL = {"success", "failed", "skipped", "removed", "upstream_failed"}
"""States of a task that no try follows; None, scheduled... mean: cleared, one is coming."""
_TAKE_OVER_SECONDS = 15.0
"""How long the next try may take to say that the application is its own; Airflow gives `on_kill`
30 s in all."""
_KILL_SECONDS = 10.0
_PAGE_SECONDS = 60.0
"""How long the job's page may not answer before its account is asked for in another way."""
_ACCOUNT_SECONDS = 30.0
_REMIND_SECONDS = 600.0
"""How often the log says that the ResourceManager still does not answer."""

_NO_ANSWER = (AirflowException, AirflowRuntimeError, TypeError)
"""What Airflow's own calls raise when it cannot be asked (TypeError: an answer of another kind)."""

# Not asyncio's own threads: those are few, and a ResourceManager that hangs would hold them all.
_LOOKS = ThreadPoolExecutor(max_workers=32, thread_name_prefix="howdah-look")
_KILLS = ThreadPoolExecutor(max_workers=8, thread_name_prefix="howdah-kill")

_ENDING: set[asyncio.Task[None]] = set()
"""Kills under way: asyncio itself holds its tasks by weak references."""


async def _in(pool: ThreadPoolExecutor, call: Callable[..., Any], *args: Any, **more: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(pool, lambda: call(*args, **more))


class ApplicationTrigger(BaseTrigger):
    """Fires when an application is over, or its time is.

    Args:
        conn_id: Connection of the cluster.
        application: its id.
        key: the task's dag_id, run_id, task_id and map_index.
        token: of the execution that waits; a later one has another.
        try_number: of the task.
        user: whom to act for; none: whom the Connection is for.
        deadline: seconds since 1970 after which the application is killed; none: never.
        poll_seconds: between two looks.
        tracking: MLflow's page, of `links.tracking_page`.
    """

    def __init__(
        self,
        conn_id: str,
        application: str,
        key: dict[str, Any],
        token: str,
        try_number: int,
        user: str | None = None,
        deadline: float | None = None,
        poll_seconds: float = 2.0,
        tracking: str | None = None,
    ) -> None:
        super().__init__()
        self.conn_id, self.application, self.token = conn_id, application, token
        self.key, self.try_number = TaskKey(**key), try_number
        self.user, self.deadline, self.poll_seconds = user, deadline, poll_seconds
        self.tracking = tracking
        self._manager: Any = None
        self._over = self._late = False
        self._logs: str | None = None
        self._tracked: str | None = None
        self._silent_since: float | None = None
        self._reminded = 0.0
        self._hook: Any = None
        self._page_trouble = False
        self._account_due = 0.0

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """For Airflow's database."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "conn_id": self.conn_id, "application": self.application,
                "key": self.key.as_dict(), "token": self.token, "try_number": self.try_number,
                "user": self.user, "deadline": self.deadline, "poll_seconds": self.poll_seconds,
                "tracking": self.tracking,
            },
        )  # fmt: skip

    # ---------------------------------------------------------------------------- watching
    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until it is over; one event, also for what should not happen.

        A trigger that raises fails its task at once, and nobody would look after the application:
        the worker is told instead.
        """
        try:
            event = await self._watch()
        except (HowdahError, HowdahCommandRefused) as error:
            event = {"problem": str(error)}
        except Exception as error:
            self.log.exception("Howdah's trigger has failed")
            event = {"problem": f"{type(error).__name__}: {error}"}
        self._over = "state" in event
        held = {"application": self.application, "token": self.token, "deadline": self.deadline}
        yield TriggerEvent({**held, **event})

    async def _watch(self) -> dict[str, Any]:
        place = app.Place.of(await self._stored_place(), self.application)
        if place.state is not None:
            self.log.info("watching %s again", self.application)
        while True:
            if (
                self.deadline is not None
                and time.time() > self.deadline
                and await self._ended_late()
            ):
                return {
                    "state": "KILLED",
                    "final_status": "KILLED",
                    "diagnostics": "",
                    "timed_out": True,
                }
            sight = await self._look()
            if sight is not None:
                sight = await self._with_account(sight)
                lines, now = app.told_lines(sight, place)
                if now != place:
                    place = now
                    await self._keep(place)
                for line in lines:
                    self.log.info("%s", blotted(line))
                await self._show(sight)
                if sight.over:
                    return {
                        "state": sight.state,
                        "final_status": sight.report.get("finalStatus"),
                        "diagnostics": blotted(sight.diagnostics[-4000:]),
                    }
            await asyncio.sleep(self.poll_seconds)

    async def _look(self) -> app.Sight | None:
        """None: the ResourceManager does not answer now. It is waited for without end.

        Raises:
            NotFound: YARN has forgotten the application.
        """
        try:
            if self._manager is None:
                self._manager = await _in(_LOOKS, self._connect)
            sight = await _in(_LOOKS, app.look, self._manager, self.application)
        except (NotFound, ConfigError, HowdahCommandRefused):
            raise
        except (HowdahError, *_NO_ANSWER) as error:
            self._silent(str(error))
            return None
        if self._silent_since is not None:
            seconds = time.monotonic() - self._silent_since
            self.log.info("the ResourceManager answers again, after %.0f s", seconds)
            self._silent_since = None
        return sight

    def _connect(self) -> Any:
        self._hook = hook = HowdahHook(self.conn_id)
        tickets.hold(hook.settings.keytab, hook.settings.principal, f"{self.conn_id}: keytab")
        return hook.resource_manager(user=self.user, patience=0.0)

    async def _with_account(self, sight: app.Sight) -> app.Sight:
        """Where the job's page does not answer here: its account as `howdah status` has it, which
        reads the run directory where the Connection's commands run. A process each time, so seldom.
        """
        if sight.page_trouble is None:
            self._account_due = 0.0
            return sight
        if not self._account_due:  # the driver may be starting
            self._account_due = time.monotonic() + _PAGE_SECONDS
        if time.monotonic() < self._account_due:
            return sight
        self._account_due = time.monotonic() + _ACCOUNT_SECONDS
        words = ["status", self.application, "--json"]
        try:
            told = await _in(_LOOKS, self._hook.run, words, on_line=lambda line: None)
        except (HowdahError, *_NO_ANSWER) as error:
            if not self._page_trouble:
                self.log.warning(
                    "rank 0's lines are told at the end only: neither the job's page can be read"
                    " here (%s), nor the run directory (%s)", sight.page_trouble, error,
                )  # fmt: skip
            self._page_trouble = True
            return sight
        return replace(sight, job=told.get("job"))

    def _silent(self, cause: str) -> None:
        now = time.monotonic()
        if self._silent_since is None:
            self._silent_since = self._reminded = now
            self.log.warning("%s\ntrying on; the application does not need us", cause)
        elif now - self._reminded > _REMIND_SECONDS:
            self._reminded = now
            self.log.warning(
                "no answer from the ResourceManager for %.0f minutes",
                (now - self._silent_since) / 60,
            )

    async def _show(self, sight: app.Sight) -> None:
        """Links that are known only by now."""
        if sight.logs is not None and sight.logs != self._logs:
            self._logs = sight.logs
            await self._tolerant(links.push, self.key.as_dict(), links.LogsLink, sight.logs)
        run = (sight.job or {}).get("mlflow_run_id")
        if run is not None and run != self._tracked:
            self._tracked = run
            page = links.tracked_run(self.tracking, run)
            await self._tolerant(links.push, self.key.as_dict(), links.MlflowLink, page)

    async def _ended_late(self) -> bool:
        """Kill it; False: it had ended by itself, or the kill is not confirmed: look again."""
        if not self._late:
            self._late = True
            self.log.error("the time limit is over: killing %s", self.application)
        try:
            state = await self._kill("its time limit is over")
        except (HowdahError, *_NO_ANSWER) as error:
            self._silent(str(error))
            return False
        return state == "KILLED"

    # ------------------------------------------------------------------------------ killing
    async def on_kill(self) -> None:
        """The user has marked the task, or cleared it: kill what nobody takes over.

        A cleared task is tried again: that try goes on with the application, if it comes in time.
        `cleanup` kills nothing: it is also called when a triggerer stops.

        Airflow cancels a trigger anew each second until it is over, this method included: so what
        is to be done is a task of its own, which nobody cancels.
        """
        if self._over:
            return
        task = asyncio.create_task(self._end_unless_taken_over())
        _ENDING.add(task)
        task.add_done_callback(_ENDING.discard)
        await asyncio.shield(task)

    async def _end_unless_taken_over(self) -> None:
        try:
            if await self._taken_over():
                self.log.info("the next try goes on with %s", self.application)
                return
        except Exception:  # Airflow cannot be asked: an application must not run on unattended
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
            if await self._task_state() in _FINAL or time.monotonic() > until:
                return False
            await asyncio.sleep(0.5)

    async def _kill(self, why: str) -> str:
        if self._manager is None:
            self._manager = await _in(_KILLS, self._connect)
        reason = self.key.reason(self.try_number, self.token, why)
        return await _in(
            _KILLS, app.end, self._manager, self.application, reason, seconds=_KILL_SECONDS
        )

    # ----------------------------------------------------------------------- Airflow's words
    async def _task_state(self) -> str | None:
        """The task's state now."""
        key = self.key
        told = await _in(
            _KILLS, RuntimeTaskInstance.get_task_states, dag_id=key.dag_id, run_ids=[key.run_id],
            task_ids=[key.task_id], map_index=key.map_index,
        )  # fmt: skip
        found = [state for task, state in told.get(key.run_id, {}).items() if state]
        return str(found[0]) if found else None

    async def _xcom(self, key: str) -> Any:
        return await _in(_KILLS, XCom.get_one, key=key, **self.key.as_dict())

    async def _stored_place(self) -> Any:
        try:
            return await self._xcom(PLACE_KEY)
        except _NO_ANSWER as error:
            self.log.warning("what was told before is not known: %s", error)
            return None

    async def _keep(self, place: app.Place) -> None:
        """Before the lines are told: after a crash in between some are missing, none are twice."""
        await self._tolerant(XCom.set, key=PLACE_KEY, value=place.as_dict(), **self.key.as_dict())

    async def _tolerant(self, call: Callable[..., Any], *args: Any, **more: Any) -> None:
        """Tell Airflow something that the application can do without."""
        try:
            await _in(_LOOKS, call, *args, **more)
        except _NO_ANSWER as error:
            self.log.warning("Airflow did not take a note: %s", error)
