"""Training as a task: on YARN without a worker's slot while it runs, or on this machine.

On YARN the application's id is kept before anything waits, so that whatever is killed - worker,
scheduler, triggerer - the task has one application, and goes on with it:

    execute ─ stored id? tag? ─▶ howdah submit ─▶ store the id ─▶ defer ─▶ ApplicationTrigger
    execute_complete ◀─ it is over ─┘                └─ an older try ended it: once more
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any, NoReturn

from howdah.airflow import require

require()

from airflow.sdk import Context, ResumableJobMixin  # noqa: E402
from airflow.sdk.exceptions import AirflowException, AirflowTaskTimeout  # noqa: E402
from airflow.sdk.execution_time.xcom import XCom  # noqa: E402

from howdah.airflow import application as app  # noqa: E402
from howdah.airflow import links, ownership  # noqa: E402
from howdah.airflow.failures import HowdahCommandFailed, failed  # noqa: E402
from howdah.airflow.local_training import scalars, train  # noqa: E402
from howdah.airflow.operators import HowdahOperator, task_key  # noqa: E402
from howdah.airflow.trigger import PLACE_KEY, ApplicationTrigger  # noqa: E402
from howdah.errors import ConfigError, HowdahError, NotFound, as_dict  # noqa: E402
from howdah.hadoop.resourcemanager import OVER  # noqa: E402

__all__ = ["HowdahTrainOperator"]

_BUSY = "this run is being submitted at this moment"
_BUSY_SECONDS, _BUSY_PAUSE_SECONDS = 120.0, 3.0
_INTERRUPTED = "its submission was interrupted"
"""What `howdah submit` tells YARN of an application that it takes back."""
_ON_KILL_SECONDS = 4.0
"""Airflow kills a task's process 5 s after it has told it to end."""
_CLUSTER_EXIT_CODE = 5


class HowdahTrainOperator(ResumableJobMixin, HowdahOperator):
    """Trains, and answers with {"application", "run_directory", "metrics"}.

    Args:
        backend: "yarn" or "local"; none: as the Connection says.
        np, launcher: of the local backend, see local_training.
        poll_seconds: between two looks at the application.
    `execution_timeout` is the time that one try has for all of it, waiting for the cluster
    included; the application is killed when it is over.
    """

    template_fields = (*HowdahOperator.template_fields, "backend", "np", "launcher")
    external_id_key = "howdah_application"
    operator_extra_links = (
        links.ApplicationLink(),
        links.LogsLink(),
        links.JobPageLink(),
        links.ReportLink(),
        links.MlflowLink(),
    )

    def __init__(
        self,
        *,
        backend: str | None = None,
        np: int | str = 1,
        launcher: str = "horovodrun",
        poll_seconds: float = 2.0,
        **more: Any,
    ) -> None:
        super().__init__(**more)
        self.backend, self.np, self.launcher = backend, np, launcher
        self.poll_seconds = poll_seconds
        self._key: ownership.TaskKey | None = None
        self._token, self._try_number = "", 0
        self._deadline: float | None = None
        self._application: str | None = None
        self._made: Any = None

    # ---------------------------------------------------------------------------- execution
    def execute(self, context: Context) -> dict[str, Any]:
        """Train; on YARN this ends by waiting in a trigger."""
        backend = self.backend or self.hook.backend
        if backend == "local":
            return self._train_here(context)
        if backend != "yarn":
            error = ConfigError("no such backend", expected="yarn or local", got=str(backend))
            raise failed(as_dict(error), error.exit_code)
        limit = self.execution_timeout
        deadline = time.time() + limit.total_seconds() if limit else None
        self._begin(context, ownership.new_token(), deadline)
        XCom.set(
            key=ownership.OWNER_KEY, **self._where(),
            value={"token": self._token, "try_number": self._try_number},
        )  # fmt: skip
        return self._go_on(context)

    def _begin(self, context: Context, token: str, deadline: float | None) -> None:
        task_instance = context["ti"]
        self._key = ownership.TaskKey.of(task_instance)
        self._token, self._try_number = token, task_instance.try_number
        self._deadline = deadline

    def _go_on(self, context: Context) -> dict[str, Any]:
        """The mixin's way; what it has submitted does not run on without anybody who waits."""
        try:
            with self.hook.logged_in():
                return self.execute_resumable(context)
        except HowdahError as error:
            self._end("its task failed before it could wait")
            raise failed(as_dict(error), error.exit_code) from None
        except Exception:
            self._end("its task failed before it could wait")
            raise

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """The application is over, or cannot be watched any more."""
        self._begin(context, event["token"], event["deadline"])
        self._application = application = event["application"]
        if event.get("problem"):
            self._end("it cannot be watched")
            raise AirflowException(f"{application} cannot be watched: {event['problem']}")
        if event.get("timed_out"):
            self._tell_rest(context)
            raise AirflowTaskTimeout(
                f"{application} was killed: the task's execution_timeout is over"
            )
        self.log.info("%s is %s (%s)", application, event["state"], event["final_status"])
        if event["final_status"] == "SUCCEEDED":
            return self.get_job_result({"application": application}, context)
        self._application = None  # it is over: nothing is left to be killed
        if self._lost(event):
            self.log.warning("an earlier try has ended it; submitting again: %s",
                             event["diagnostics"])  # fmt: skip
            return self._go_on(context)
        self._fail(event, self._tell_rest(context))

    def _lost(self, event: Mapping[str, Any]) -> bool:
        """An earlier try, told late that it was over, has ended what this one had taken over."""
        if event["final_status"] != "KILLED":
            return False
        told = event["diagnostics"]
        return _INTERRUPTED in told or ownership.killer(told, self._key) not in (None, self._token)

    # --------------------------------------------------------------------- the mixin's steps
    def submit_job(self, context: Context) -> dict[str, Any]:
        """An application of this task that is there already, else a new one."""
        there = self._stray()
        if there is None:
            told = self._submit(context)
            there = told["application"]
            self.log.info("%s %s", "attached to" if told["attached"] else "submitted", there)
        self._application = there
        return self._held(there)

    def get_job_status(self, external_id: Any, context: Context) -> str:
        """YARN's word for the stored application; REPLACED or FORGOTTEN: there is none of use."""
        try:
            report = self._manager.application(external_id["application"])
        except NotFound:
            return "FORGOTTEN"
        if report["state"] in OVER:
            return str(report.get("finalStatus"))
        if external_id.get("config") != ownership.config_hash(self._config):
            self.log.warning("%s was submitted with another configuration: ending it", report["id"])
            self._end_other(report["id"])
            return "REPLACED"
        return str(report["state"])

    def is_job_active(self, status: str) -> bool:
        """It may be waited for."""
        return status in app.LIVE.split(",")

    def is_job_succeeded(self, status: str) -> bool:
        """It ended well, and only its result has not been taken."""
        return status == "SUCCEEDED"

    def poll_until_complete(self, external_id: Any, context: Context) -> NoReturn:
        """Wait in a trigger."""
        self._application = application = external_id["application"]
        self._push_links(self._manager.application(application))
        self.defer(
            trigger=ApplicationTrigger(
                conn_id=self.conn_id, application=application, key=self._key.as_dict(),
                token=self._token, try_number=self._try_number, user=self._user,
                deadline=self._deadline, poll_seconds=self.poll_seconds,
            ),
            method_name="execute_complete",
        )  # fmt: skip
        raise AssertionError("defer() raises")

    def get_job_result(self, external_id: Any, context: Context) -> dict[str, Any]:
        """The small metrics; the stored id goes, so that a cleared task trains anew."""
        application = self._application = external_id["application"]
        told = self._tell_rest(context)
        self._push_report(report=True)
        context["task_state_store"].delete(self.external_id_key)
        run = (told or {}).get("run") or {}
        return {
            "application": application,
            "run_directory": self._config["run"]["directory"],
            "metrics": scalars(run.get("metrics") or {}),
        }

    # -------------------------------------------------------------------------- this machine
    def _train_here(self, context: Context) -> dict[str, Any]:
        self._key = ownership.TaskKey.of(context["ti"])
        self._push_report(report=False)
        links.push(self._where(), links.MlflowLink, links.tracking_page(self._config, None))
        told = train(
            self.hook, self._config, task=task_key(context), np=int(self.np),
            launcher=self.launcher, on_line=self._line,
        )  # fmt: skip
        self._push_report(report=True)
        return told

    # ---------------------------------------------------------------------------- submitting
    def _stray(self) -> str | None:
        """An application of this task of which no id was kept; of others than ours, none stays."""
        found = None
        tagged = self._manager.applications(applicationTags=self._key.tag, states=app.LIVE)
        wanted = ownership.config_tag(ownership.config_hash(self._config))
        for report in tagged:
            tags = str(report.get("applicationTags") or "").lower().split(",")
            if found is None and wanted in tags:
                found = report["id"]
                self.log.info("this task has an application already: %s", found)
            else:
                self.log.warning("ending %s, of this task too", report["id"])
                self._end_other(report["id"])
        return found

    def _submit(self, context: Context) -> dict[str, Any]:
        """`howdah submit`; waits while a submission that a killed try has left comes to its end."""
        until = time.monotonic() + _BUSY_SECONDS
        while True:
            try:
                return self.hook.run(
                    ["submit", "--json"], config=self._tagged(), on_line=self._line,
                    task=task_key(context),
                )  # fmt: skip
            except HowdahCommandFailed as error:
                if error.told.get("what") != _BUSY or time.monotonic() > until:
                    raise
            self.log.info("%s; waiting", _BUSY)
            time.sleep(_BUSY_PAUSE_SECONDS)

    def _tagged(self) -> dict[str, Any]:
        """The configuration with the tags that this task's applications are found by."""
        yarn = dict(self._config.get("yarn") or {})
        mine = [self._key.tag, ownership.config_tag(ownership.config_hash(self._config))]
        yarn["tags"] = [*(yarn.get("tags") or []), *mine]
        return {**self._config, "yarn": yarn}

    def _held(self, application: str) -> dict[str, Any]:
        return {"application": application, "config": ownership.config_hash(self._config)}

    # ------------------------------------------------------------------------------- telling
    def _line(self, line: str) -> None:
        self.log.info("%s", line)

    def _push_links(self, report: Mapping[str, Any]) -> None:
        manager, where = self._manager, self._where()
        page = f"{manager.urls[0]}/cluster/app/{report['id']}"
        links.push(where, links.ApplicationLink, page)
        links.push(where, links.LogsLink, report.get("amContainerLogs") or page)
        links.push(where, links.JobPageLink, manager.page(report))
        self._push_report(report=False)
        links.push(where, links.MlflowLink, links.tracking_page(self._config, None))

    def _push_report(self, *, report: bool) -> None:
        """Of YARN's run directory, or this machine's (which has no `_manager`)."""
        conf = self._manager.conf if self._application else None
        page = links.run_page(
            self.hook.settings, self.hook.run_root, self._config["run"]["directory"],
            conf=conf, report=report,
        )  # fmt: skip
        links.push(self._where(), links.ReportLink, page)

    def _tell_rest(self, context: Context) -> dict[str, Any] | None:
        """What the job has said since the trigger's last look; its whole account, if it is had."""
        application = str(self._application or context["task_state_store"].get(
            self.external_id_key)["application"])  # fmt: skip
        try:
            told = self.hook.run(
                ["status", application, "--json"], config=self._config, on_line=self._line
            )
        except HowdahCommandFailed as error:
            self.log.warning("the job's own account cannot be had: %s", error)
            return None
        place = app.Place.of(XCom.get_one(key=PLACE_KEY, **self._where()), application)
        lines, place = app.job_lines(told.get("job"), place)
        for line in lines:
            self.log.info("%s", line)
        XCom.set(key=PLACE_KEY, value=place.as_dict(), **self._where())
        run = told.get("run") or {}
        page = links.tracking_page(self._config, run.get("mlflow_run_id"))
        links.push(self._where(), links.MlflowLink, page)
        return told

    def _fail(self, event: Mapping[str, Any], told: Mapping[str, Any] | None) -> NoReturn:
        """Raise what the job died of: its driver's own error, else what YARN says."""
        self.log.error("YARN's diagnostics: %s", event["diagnostics"] or "(none)")
        job = (told or {}).get("job") or {}
        if job.get("error"):
            raise failed(job["error"], int(job.get("exit_code") or job["error"]["exit_code"]))
        raise failed(
            {
                "what": f"the job ended as {event['state']} ({event['final_status']})",
                "where": event["application"],
                "got": event["diagnostics"] or None,
                "remedy": f"howdah logs {event['application']}",
            },
            _CLUSTER_EXIT_CODE,
        )

    # ------------------------------------------------------------------------------- killing
    def on_kill(self) -> None:
        """The task's process was told to end: nothing of it stays on the cluster.

        In a signal handler: the main thread may hold the line to Airflow that is asked here.
        """
        self.hook.cancel()  # a submission under way takes back what it has submitted
        if self._application is None:
            return
        thread = threading.Thread(target=self._end_own, name="howdah-kill", daemon=True)
        thread.start()
        thread.join(_ON_KILL_SECONDS)

    def _end_own(self) -> None:
        asking = threading.Thread(target=self._ask_owner, name="howdah-owner", daemon=True)
        self._owner: Any = None
        asking.start()
        asking.join(1.0)  # no answer: the application is ours as far as we know
        if isinstance(self._owner, Mapping) and self._owner.get("token") != self._token:
            self.log.info("another try goes on with %s", self._application)
            return
        self._end("its task was ended")

    def _ask_owner(self) -> None:
        self._owner = XCom.get_one(key=ownership.OWNER_KEY, **self._where())

    def _end(self, why: str) -> None:
        """Kill our application, if there is one that may still run."""
        application, self._application = self._application, None
        if application is None:
            return
        self.log.info("killing %s: %s", application, why)
        try:
            state = app.end(self._manager, application, self._reason(why), seconds=30.0)
            self.log.info("%s is %s", application, state)
        except HowdahError as error:
            self.log.error("%s was not killed: %s", application, error)

    def _end_other(self, application: str) -> None:
        state = app.end(
            self._manager, application, self._reason("another takes its place"), seconds=30.0
        )
        self.log.info("%s is %s", application, state)

    def _reason(self, why: str) -> str:
        return self._key.reason(self._try_number, self._token, why)

    # ------------------------------------------------------------------------------ the rest
    @property
    def _config(self) -> dict[str, Any]:
        """The configuration, as the task before has checked it."""
        return self.config

    @property
    def _user(self) -> str | None:
        return (self._config.get("run") or {}).get("user")

    @property
    def _manager(self) -> Any:
        if self._made is None:
            self._made = self.hook.resource_manager(user=self._user)
        return self._made

    def _where(self) -> dict[str, Any]:
        return self._key.as_dict()
