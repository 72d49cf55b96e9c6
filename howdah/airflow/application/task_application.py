"""A task's application on YARN: find, submit and kill it, for one execution of the task."""

from __future__ import annotations

import howdah.airflow.required

import time
from collections.abc import Callable, Mapping
from typing import Any

from airflow.sdk.execution_time.xcom import XCom

from howdah.airflow.application import ownership
from howdah.airflow.failures import HowdahCommandFailed
from howdah.airflow.hook import HowdahHook
from howdah.core import threads
from howdah.errors import HowdahError, NotFound
from howdah.hadoop.resourcemanager import LIVE, OVER, ResourceManager, kill_and_wait

_BUSY = "this run is being submitted at this moment"
_BUSY_SECONDS, _BUSY_PAUSE_SECONDS = 120.0, 3.0
_INTERRUPTED = "its submission was interrupted"
"""Part of the diagnostics of an application that an interrupted `howdah submit` has killed."""
_END_SECONDS = 30.0
_OWNER_SECONDS = 1.0


class TaskApplication:
    """A task's application, as one execution of the task handles it.

    Args:
        hook: of the task's Connection.
        config: the run configuration, nested.
        key: the task.
        token: of this execution.
        claim: of the task, through all its tries.
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
        claim: str,
        try_number: int,
        log: Any,
    ) -> None:
        self.hook, self.config, self.key = hook, config, key
        self.token, self.try_number, self.log = token, try_number, log
        self._claim_tag = ownership.claim_tag(claim)
        self.id: str | None = None
        """The application to kill when the task ends; None: there is none."""
        self._manager: ResourceManager | None = None

    @property
    def manager(self) -> ResourceManager:
        """The ResourceManager that the Connection names."""
        if self._manager is None:
            self._manager = self.hook.resource_manager(user=self.user)
        return self._manager

    @property
    def user(self) -> str | None:
        """The proxied user (`run.user`)."""
        return (self.config.get("run") or {}).get("user")

    @property
    def _hash(self) -> str:
        return ownership.config_hash(self.config)

    # -------------------------------------------------------------------------------- ownership
    def claim(self) -> None:
        """Record in the task's XCom that this execution watches from now on."""
        value = {"token": self.token, "try_number": self.try_number}
        XCom.set(key=ownership.OWNER_KEY, value=value, **self.key.as_dict())

    def taken_over(self) -> bool:
        """True if a later execution of the task goes on with the application.

        Asked in a thread, for at most a second: in a signal handler the interrupted main thread may
        hold the connection to Airflow. Without an answer this execution counts as the owner.
        """
        answers: list[Any] = []
        threads.start(
            lambda: answers.append(XCom.get_one(key=ownership.OWNER_KEY, **self.key.as_dict())),
            name="howdah-owner",
            failed=threads.REPORT,
        ).join(_OWNER_SECONDS)
        owner = answers[0] if answers else None
        return isinstance(owner, Mapping) and owner.get("token") != self.token

    def ended_by_another(self, final_status: str, diagnostics: str) -> bool:
        """True if an earlier execution, which ended late, has killed this one's application."""
        if final_status != "KILLED":
            return False
        token = ownership.killed_by(diagnostics, self.key)
        return _INTERRUPTED in diagnostics or token not in (None, self.token)

    # ----------------------------------------------------------------------- finding, submitting
    def stored(self) -> dict[str, Any]:
        """What the task's state keeps for the next try."""
        return {"application": self.id, "config": self._hash}

    def status(self, stored: Mapping[str, Any]) -> str:
        """YARN's state of the application that an earlier try has stored.

        Returns:
            The final status if it is over; REPLACED if it had another configuration and was killed
            here; FORGOTTEN if YARN does not know it any more.
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
        """The application of this task with the same configuration, if one runs; others of this
        task are killed.

        Another user's application with this tag is neither adopted nor killed: once an application
        runs, every user can read its tags.
        """
        config_tag, running = ownership.config_tag(self._hash), None
        for report in self._of_own_user(
            self.manager.applications(applicationTags=self._claim_tag, states=LIVE)
        ):
            tags = str(report.get("applicationTags") or "").lower().split(",")
            if running is None and config_tag in tags:
                running = report["id"]
                self.log.info("this task has an application already: %s", running)
            else:
                self._end(report["id"], "this task has another")
        return running

    def _of_own_user(self, reports: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The reports whose user is the one that submits for this task."""
        if not reports:
            return []
        user = self.user or self.hook.run(["ps", "--json"], on_line=lambda line: None).get("user")
        for report in reports:
            if report.get("user") != user:
                self.log.warning(
                    "%s of %s has this task's tag, and is not %s's", report["id"],
                    report.get("user"), user,
                )  # fmt: skip
        return [report for report in reports if user and report.get("user") == user]

    def submit(self, task: str, on_line: Callable[[str], None]) -> str:
        """Run `howdah submit`; waits while an earlier try's submission is still being taken back.

        Args:
            task: names the task to the hook.
            on_line: called with each line of progress.
        Raises:
            HowdahCommandFailed, HowdahCommandRefused: as the command ended.
        """
        until = time.monotonic() + _BUSY_SECONDS
        while True:
            try:
                result = self.hook.run(
                    ["submit", "--json", "--on", "yarn"], config=self._tagged(), on_line=on_line,
                    task=task,
                )  # fmt: skip
                break
            except HowdahCommandFailed as error:
                if error.details.get("what") != _BUSY or time.monotonic() > until:
                    raise
            self.log.info("%s; waiting", _BUSY)
            time.sleep(_BUSY_PAUSE_SECONDS)
        done = "attached to" if result["attached"] else "submitted"
        self.log.info("%s %s", done, result["application"])
        return result["application"]

    def _tagged(self) -> dict[str, Any]:
        """The configuration with the tags that the task's applications are found by."""
        yarn = dict(self.config.get("yarn") or {})
        mine = [self._claim_tag, self.key.tag, ownership.config_tag(self._hash)]
        yarn["tags"] = [*(yarn.get("tags") or []), *mine]
        return {**self.config, "yarn": yarn}

    # ----------------------------------------------------------------------------------- killing
    def end(self, why: str) -> None:
        """Kill the application, if there is one; an error is logged, not raised."""
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
        state = kill_and_wait(self.manager, application, reason, seconds=_END_SECONDS)
        self.log.info("%s is %s", application, state)
