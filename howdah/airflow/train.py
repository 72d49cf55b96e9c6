"""Training as a task: on YARN without a worker's slot while it runs, or on this machine.

On YARN the application's id is stored before the task waits. So whichever process is killed -
worker, scheduler, triggerer - the task has one application and goes on with it:

    execute ─ stored id? tag? ─▶ howdah submit ─▶ store the id ─▶ defer ─▶ ApplicationTrigger
    execute_complete ◀─ it is over ─┘                └─ an older try killed it: submit again
"""

from __future__ import annotations

import howdah.airflow.required

import time
from collections.abc import Mapping
from typing import Any, NoReturn

from airflow.sdk import Context, ResumableJobMixin
from airflow.sdk.exceptions import AirflowException, AirflowTaskTimeout, TaskDeferralError
from airflow.sdk.execution_time.xcom import XCom

from howdah.airflow import links
from howdah.airflow.application import ownership
from howdah.airflow.application import watching as app
from howdah.airflow.application.task_application import TaskApplication
from howdah.airflow.failures import HowdahCommandFailed, failed, of_error
from howdah.airflow.lineage import touched
from howdah.airflow.local_training import scalars, train
from howdah.airflow.operators import HowdahOperator, task_key
from howdah.airflow.trigger import POSITION_KEY, ApplicationTrigger
from howdah.core import threads
from howdah.errors import ClusterError, HowdahError
from howdah.hadoop.resourcemanager import LIVE

_ON_KILL_SECONDS = 4.0
"""Airflow kills a task's process 5 s after SIGTERM."""


class HowdahTrainOperator(ResumableJobMixin, HowdahOperator):
    """Trains; returns {"application", "run_directory", "metrics"}.

    Args:
        np: ranks on the task's machine (job.on: local).
    `execution_timeout` limits one try, waiting for the cluster included; when it has passed, the
    application is killed.
    """

    template_fields = (*HowdahOperator.template_fields, "np")
    external_id_key = "howdah_application"
    operator_extra_links = (
        links.ApplicationLink(),
        links.LogsLink(),
        links.JobPageLink(),
        links.ReportLink(),
        links.MlflowLink(),
    )

    def __init__(self, *, np: int | str = 1, **more: Any) -> None:
        super().__init__(**more)
        self.np = np
        self._deadline: float | None = None
        self._job: TaskApplication | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Train; on YARN this defers the task to a trigger."""
        self.begin_links(context)
        if self.cluster() == "local":
            return self._train_here(context)
        limit = self.execution_timeout
        self._deadline = time.time() + limit.total_seconds() if limit else None
        self._job = self._application(context, ownership.new_token())
        self._job.claim()
        return self._run_resumable(context)

    def _application(self, context: Context, token: str) -> TaskApplication:
        return TaskApplication(
            self.hook, self.config, ownership.TaskKey.of(context["ti"]), token=token,
            claim=self._claim(context), try_number=context["ti"].try_number, log=self.log,
        )  # fmt: skip

    def _claim(self, context: Context) -> str:
        """The task's random claim, stored before anything is submitted with it."""
        kept = context["task_state_store"]
        claim = kept.get(ownership.CLAIM_KEY)
        if not isinstance(claim, str):
            claim = ownership.new_claim()
            kept.set(ownership.CLAIM_KEY, claim)
        return claim

    def _run_resumable(self, context: Context) -> dict[str, Any]:
        """The mixin's steps; if they fail, the application is killed, since no trigger waits."""
        try:
            with self.hook.logged_in():
                return self.execute_resumable(context)
        except Exception as error:
            self._job.end("its task failed before it could wait")
            if isinstance(error, HowdahError):
                raise of_error(error) from None
            raise

    # --------------------------------------------------------------------- the mixin's steps
    def submit_job(self, context: Context) -> dict[str, Any]:
        """The application of this task that runs already, else a new one."""
        job = self._job
        job.id = job.find() or job.submit(task_key(context), self._line)
        return job.stored()

    def get_job_status(self, external_id: Any, context: Context) -> str:
        """YARN's state of the stored application."""
        return self._job.status(external_id)

    def is_job_active(self, status: str) -> bool:
        """True if the application has not ended."""
        return status in LIVE.split(",")

    def is_job_succeeded(self, status: str) -> bool:
        """True if it has succeeded, and only its result is still to be read."""
        return status == "SUCCEEDED"

    def poll_until_complete(self, external_id: Any, context: Context) -> NoReturn:
        """Defer to a trigger."""
        job = self._job
        job.id = external_id["application"]
        self._push_links(job)
        self.defer(
            trigger=ApplicationTrigger(
                conn_id=self.conn_id, application=job.id, key=job.key.as_dict(), token=job.token,
                try_number=job.try_number, user=job.user, deadline=self._deadline,
                tracking=links.tracking_page(self.config),
                run_directory=self.config["run"]["directory"],
            ),
            method_name="execute_complete",
        )  # fmt: skip
        raise AssertionError("defer() raises")

    def get_job_result(self, external_id: Any, context: Context) -> dict[str, Any]:
        """The scalar metrics; removes the stored id, so that a cleared task trains again."""
        status = self._log_rest(external_id["application"]) or {}
        self._push_report(self._job.key, self._job.manager.conf, report=True)
        context["task_state_store"].delete(self.external_id_key)
        self.answered["train"] = {"run_id": (status.get("run") or {}).get("run_id")}
        return {
            "application": external_id["application"],
            "run_directory": self.config["run"]["directory"],
            "metrics": scalars((status.get("run") or {}).get("metrics") or {}),
        }

    def lineage(self) -> touched.Touched:
        """The dataset and the model that it begins from in, the run's export out."""
        return touched.trained(self.lineage_places(), self.config, self.answered.get("train"))

    # ------------------------------------------------------------------------------- the end
    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """The application is over, or the trigger could not watch it."""
        application, self._deadline = event["application"], event["deadline"]
        self._job = job = self._application(context, event["token"])
        with self.hook.logged_in():
            if event.get("problem"):
                job.id = application
                job.end("it cannot be watched")
                raise AirflowException(f"{application} cannot be watched: {event['problem']}")
            if event.get("timed_out"):
                self._log_rest(application)
                what = f"the task's execution_timeout is over: {application} was killed"
                self.log.error(what)
                raise AirflowTaskTimeout(what)
            self.log.info("%s is %s (%s)", application, event["state"], event["final_status"])
            if event["final_status"] == "SUCCEEDED":
                return self.get_job_result({"application": application}, context)
        if job.ended_by_another(event["final_status"], event["diagnostics"]):
            self.log.warning("an earlier try has killed it: %s", event["diagnostics"])
            return self._run_resumable(context)
        raise self._failure(event, self._log_rest(application))

    def resume_execution(self, next_method: str, next_kwargs: Any, context: Context) -> Any:
        """Called by Airflow after a deferral. If the triggerer could not make the trigger (one
        that another version of Howdah stored), no process watches the application: kill it.
        """
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except TaskDeferralError:
            stored = context["task_state_store"].get(self.external_id_key)
            if stored:
                job = self._application(context, ownership.new_token())
                job.id = stored["application"]
                with self.hook.logged_in():
                    job.end("its trigger could not run")
            raise

    def _failure(
        self, event: Mapping[str, Any], status: Mapping[str, Any] | None
    ) -> HowdahCommandFailed:
        """Why the job failed: its driver's error, else YARN's diagnostics."""
        self.log.error("YARN's diagnostics: %s", event["diagnostics"] or "(none)")
        job = (status or {}).get("job") or {}
        if job.get("error"):
            return failed(job["error"], int(job.get("exit_code") or job["error"]["exit_code"]))
        error = ClusterError(
            f"the job ended as {event['state']} ({event['final_status']})",
            where=event["application"],
            got=event["diagnostics"] or None,
            remedy=f"howdah logs {event['application']}",
        )
        return failed(error.as_dict(), error.exit_code)

    # -------------------------------------------------------------------------- this machine
    def _train_here(self, context: Context) -> dict[str, Any]:
        key = ownership.TaskKey.of(context["ti"])
        self._push_report(key, None, report=False)
        tracking = links.tracking_page(self.config)
        links.push(key.as_dict(), links.MlflowLink, tracking)

        def on_line(line: str) -> None:
            self._line(line)
            if tracking and (run := links.logged_run(line)):
                page = links.tracked_run(tracking, run)
                links.push_meanwhile(key.as_dict(), links.MlflowLink, page, self.log)

        result = train(
            self.hook, self.config, task=task_key(context), np=int(self.np),
            on_line=on_line,
        )  # fmt: skip
        self._push_report(key, None, report=True)
        self.answered["train"] = result
        return result

    # ------------------------------------------------------------------------- log and links
    def _line(self, line: str) -> None:
        self.log.info("%s", line)

    def _push_links(self, job: TaskApplication) -> None:
        manager, where = job.manager, job.key.as_dict()
        report = manager.application(job.id)
        page = links.application_page(manager, job.id)
        links.push(where, links.ApplicationLink, page)
        links.push(where, links.LogsLink, report.get("amContainerLogs") or page)
        links.push(where, links.JobPageLink, manager.job_page(report))
        links.push(where, links.MlflowLink, links.tracking_page(self.config))
        self._push_report(job.key, manager.conf, report=False)

    def _push_report(self, key: ownership.TaskKey, conf: Any, *, report: bool) -> None:
        page = links.run_page(
            self.hook.settings, self.hook.run_root, self.config["run"]["directory"],
            conf=conf, report=report,
        )  # fmt: skip
        links.push(key.as_dict(), links.ReportLink, page)

    def _log_rest(self, application: str) -> dict[str, Any] | None:
        """Log the job's lines since the trigger's last report; its status, None if that fails."""
        try:
            status = self.hook.run(
                ["status", application, "--json"], config=self.config, on_line=self._line
            )
        except HowdahCommandFailed as error:
            self.log.warning("the job's status cannot be read: %s", error)
            return None
        where = self._job.key.as_dict()
        position = app.LogPosition.of(XCom.get_one(key=POSITION_KEY, **where), application)
        lines, position = app.job_lines(status.get("job"), position)
        for line in lines:
            self.log.info("%s", line)
        XCom.set(key=POSITION_KEY, value=position.as_dict(), **where)
        run = (status.get("run") or {}).get("mlflow_run_id")
        page = links.tracked_run(links.tracking_page(self.config), run)
        links.push(where, links.MlflowLink, page)
        return status

    # ------------------------------------------------------------------------------- killing
    def on_kill(self) -> None:
        """The task's process ends: kill the application, unless another try goes on with it."""
        super().on_kill()  # a submission under way kills what it has submitted
        if self._job is None or self._job.id is None:
            return
        threads.start(self._end_own, name="howdah-kill", failed=threads.REPORT).join(
            _ON_KILL_SECONDS
        )

    def _end_own(self) -> None:
        if self._job.taken_over():
            self.log.info("another try resumes %s", self._job.id)
        else:
            self._job.end("its task was ended")
