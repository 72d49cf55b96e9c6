"""The application that a task has on YARN: found, submitted and ended for one try of the task."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from howdah.airflow import require

require()

from airflow.sdk.execution_time.xcom import XCom  # noqa: E402

from howdah.airflow import application as app  # noqa: E402
from howdah.airflow import ownership  # noqa: E402
from howdah.airflow.failures import HowdahCommandFailed  # noqa: E402
from howdah.airflow.hook import HowdahHook  # noqa: E402
from howdah.errors import HowdahError, NotFound  # noqa: E402
from howdah.hadoop.resourcemanager import LIVE, OVER, ResourceManager  # noqa: E402

__all__ = ["TaskApplication"]

_BUSY = "this run is being submitted at this moment"
_BUSY_SECONDS, _BUSY_PAUSE_SECONDS = 120.0, 3.0
_INTERRUPTED = "its submission was interrupted"
"""What `howdah submit` tells YARN of an application that it takes back."""
_END_SECONDS = 30.0
_OWNER_SECONDS = 1.0


class TaskApplication:
    """A task's application, as one execution of the task has it in hand.

    Args:
        hook: of the task's Connection.
        config: the run configuration, nested.
        key: the task.
        token: of this execution.
        try_number: of the task.
        log: the task's.
    """

    def __init__(
        self,
        hook: HowdahHook,
        config: Mapping[str, Any],
        key: ownership.TaskKey,
        *,
        token: str,
        try_number: int,
        log: Any,
    ) -> None:
        self.hook, self.config, self.key = hook, config, key
        self.token, self.try_number, self.log = token, try_number, log
        self.id: str | None = None
        """What is to be ended when the task is; None: nothing."""
        self._manager: ResourceManager | None = None

    @property
    def manager(self) -> ResourceManager:
        """The cluster's, as the Connection tells it."""
        if self._manager is None:
            self._manager = self.hook.resource_manager(user=self.user)
        return self._manager

    @property
    def user(self) -> str | None:
        """Whom the run acts for."""
        return (self.config.get("run") or {}).get("user")

    @property
    def _hash(self) -> str:
        return ownership.config_hash(self.config)

    # ------------------------------------------------------------------------------ whose it is
    def claim(self) -> None:
        """Say that this execution is the one that watches, from here on."""
        value = {"token": self.token, "try_number": self.try_number}
        XCom.set(key=ownership.OWNER_KEY, value=value, **self.key.as_dict())

    def taken_over(self) -> bool:
        """A later execution of the task goes on with the application.

        Asked in a thread, for a second: in a signal handler the interrupted main thread may hold
        the line to Airflow. No answer: it is ours as far as we know.
        """
        told: list[Any] = []
        thread = threading.Thread(
            target=lambda: told.append(XCom.get_one(key=ownership.OWNER_KEY, **self.key.as_dict())),
            name="howdah-owner", daemon=True,
        )  # fmt: skip
        thread.start()
        thread.join(_OWNER_SECONDS)
        owner = told[0] if told else None
        return isinstance(owner, Mapping) and owner.get("token") != self.token

    def ended_by_another(self, final_status: str, diagnostics: str) -> bool:
        """An earlier execution, told late that it was over, has ended what this one had."""
        if final_status != "KILLED":
            return False
        who = ownership.killer(diagnostics, self.key)
        return _INTERRUPTED in diagnostics or who not in (None, self.token)

    # --------------------------------------------------------------------------- finding, making
    def stored(self) -> dict[str, Any]:
        """What is kept of it for the next try."""
        return {"application": self.id, "config": self._hash}

    def status(self, stored: Mapping[str, Any]) -> str:
        """YARN's word for the application of an earlier try.

        Returns:
            The final status of one that is over; REPLACED, FORGOTTEN: there is none of use.
        """
        try:
            report = self.manager.application(stored["application"])
        except NotFound:
            return "FORGOTTEN"
        if report["state"] in OVER:
            return str(report.get("finalStatus"))
        if stored.get("config") != self._hash:
            self.log.warning("%s was submitted with another configuration", report["id"])
            self._end(report["id"], "another takes its place")
            return "REPLACED"
        return str(report["state"])

    def find(self) -> str | None:
        """An application of this task of which no id was kept; of others than ours none stays."""
        wanted, found = ownership.config_tag(self._hash), None
        for report in self.manager.applications(applicationTags=self.key.tag, states=LIVE):
            tags = str(report.get("applicationTags") or "").lower().split(",")
            if found is None and wanted in tags:
                found = report["id"]
                self.log.info("this task has an application already: %s", found)
            else:
                self._end(report["id"], "this task has another")
        return found

    def submit(self, task: str, on_line: Callable[[str], None]) -> str:
        """`howdah submit`; waits while the submission of a try that was killed comes to its end.

        Args:
            task: names the task to the hook.
            on_line: told each line of progress.
        Raises:
            HowdahCommandFailed, HowdahCommandRefused: as the command ended.
        """
        until = time.monotonic() + _BUSY_SECONDS
        while True:
            try:
                told = self.hook.run(
                    ["submit", "--json"], config=self._tagged(), on_line=on_line, task=task
                )
                break
            except HowdahCommandFailed as error:
                if error.told.get("what") != _BUSY or time.monotonic() > until:
                    raise
            self.log.info("%s; waiting", _BUSY)
            time.sleep(_BUSY_PAUSE_SECONDS)
        word = "attached to" if told["attached"] else "submitted"
        self.log.info("%s %s", word, told["application"])
        return told["application"]

    def _tagged(self) -> dict[str, Any]:
        """The configuration with the tags that the task's applications are found by."""
        yarn = dict(self.config.get("yarn") or {})
        mine = [self.key.tag, ownership.config_tag(self._hash)]
        yarn["tags"] = [*(yarn.get("tags") or []), *mine]
        return {**self.config, "yarn": yarn}

    # ------------------------------------------------------------------------------------ ending
    def end(self, why: str) -> None:
        """Kill it, if there is one that may still run; what goes wrong is told, not raised."""
        application, self.id = self.id, None
        if application is None:
            return
        try:
            self._end(application, why)
        except HowdahError as error:
            self.log.error("%s was not killed: %s", application, error)

    def _end(self, application: str, why: str) -> None:
        self.log.info("killing %s: %s", application, why)
        reason = self.key.reason(self.try_number, self.token, why)
        state = app.end(self.manager, application, reason, seconds=_END_SECONDS)
        self.log.info("%s is %s", application, state)
