"""The tasks of a run: each runs one `howdah` command on the machine that the Connection names."""

from __future__ import annotations

import howdah.airflow.required

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowSkipException

from howdah import redact
from howdah.airflow import DEFAULT_CONNECTION, failures, links, preflight
from howdah.airflow.application.ownership import TaskKey
from howdah.airflow.form import left_out, set_lines, trigger_form
from howdah.airflow.hook import HowdahHook, refusals
from howdah.airflow.lineage import touched
from howdah.airflow.lineage.reporting import ReportsLineage
from howdah.airflow.local_training import scalars
from howdah.config.loader import dump_yaml, from_dict
from howdah.config.splits import TEST
from howdah.errors import ConfigError
from howdah.hadoop.resourcemanager import APPLICATION

SPARK_GRACE_SECONDS = 90.0
"""A killed command kills its application with Spark's client, which starts a JVM first."""
_NAME_CHARACTERS = 200
"""Most characters of a run's id (at most 250) in a file's name (at most 255)."""


def task_key(context: Context) -> str:
    """The name of a run's task, the same for all its tries."""
    ti = context["ti"]
    return "/".join(map(str, (ti.dag_id, ti.run_id, ti.task_id, ti.map_index)))


def safe_name(text: str) -> str:
    """A text as one readable name in a path.

    Two DAG ids never give the same name: Airflow allows only characters that are kept here.
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "run"


def run_name(run_id: str) -> str:
    """A DAG run's id as one name in a path; two ids never give the same name.

    The name always has the id's hash, since the user who triggers a run may choose an id that
    reads like the name of another one.
    """
    digest = hashlib.sha256(run_id.encode()).hexdigest()[:12]
    return f"{safe_name(run_id)[:_NAME_CHARACTERS]}-{digest}"


class HowdahOperator(ReportsLineage, BaseOperator):
    """Base class: a Connection, a configuration, and commands that end when the task does.

    Args:
        conn_id: Connection of type "howdah".
        config: the run's configuration, nested: "config" of the output of the task `check`.
    """

    template_fields: Sequence[str] = ("conn_id", "config")
    template_fields_renderers: ClassVar[dict[str, str]] = {"config": "json"}
    ui_color = "#f4e9d8"

    def __init__(
        self,
        *,
        conn_id: str = DEFAULT_CONNECTION,
        config: Mapping[str, Any] | Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.conn_id = conn_id
        self.config = config
        self._hook: HowdahHook | None = None
        self.answered: dict[str, dict[str, Any]] = {}

    @property
    def hook(self) -> HowdahHook:
        """The Connection's hook."""
        if self._hook is None:
            self._hook = HowdahHook(self.conn_id)
        return self._hook

    def run_directory(self, context: Context) -> str:
        """The DAG run's directory, the same for all its tries, so that a retry resumes."""
        ti = context["ti"]
        return "/".join((self.hook.run_root.rstrip("/"), safe_name(ti.dag_id), run_name(ti.run_id)))

    def pre_execute(self, context: Any) -> None:
        """Refuse a Connection that was sent unless the installation allows it."""
        if dict(context["params"]).get("conn_id") == self.conn_id:
            self.hook.refuse_unless_listed()

    def cluster(self) -> str:
        """Where the task's job runs: "local" or "yarn", by job.on or else as the Connection says.

        Raises:
            HowdahCommandRefused: job.on is another cluster.
        """
        job = (self.config.get("job") if isinstance(self.config, Mapping) else None) or {}
        on = job.get("on") or self.hook.settings.on
        with refusals():
            require_cluster(on)
        return on

    def command(
        self, context: Context, *arguments: str, config: bool = True, **options: Any
    ) -> dict[str, Any]:
        """Run a howdah command with this task's configuration; return its JSON object."""
        if config and not isinstance(self.config, Mapping):
            raise failures.failed(
                {
                    "what": "the task has no configuration",
                    "where": self.task_id,
                    "expected": "the key `config` of the output of the task check",
                    "got": type(self.config).__name__,
                },
                2,
            )
        made = self.hook.run(
            [*arguments, "--json"], config=self.config if config else None,
            task=task_key(context), **options,
        )  # fmt: skip
        self.answered[arguments[0]] = made
        return made

    def begin_links(self, context: Context) -> dict[str, Any]:
        """Push no URL for each of the task's links: Airflow asks for all of them at the task's end,
        and logs a warning for each that was never pushed.

        Returns:
            The task's key, which `links.push` takes.
        """
        where = TaskKey.of(context["ti"]).as_dict()
        for link in self.operator_extra_links:
            links.push(where, type(link), None)
        return where

    def emit(self, context: Context, extra: Mapping[str, Any]) -> None:
        """Give each of the task's outlets (Assets) an event."""
        for outlet in self.outlets:
            context["outlet_events"][outlet].extra = extra

    def emit_published(self, context: Context, published: Mapping[str, Any]) -> dict[str, Any]:
        """Give each of the task's outlets an event with a published version; the event's fields."""
        keys = ("name", "version", "path", "run_id", "run_directory", "framework", "metrics")
        extra = {key: published.get(key) for key in keys}
        self.emit(context, extra)
        return extra

    def showing_application(self, where: Mapping[str, Any]) -> Callable[[str], None]:
        """A callback for `on_line` that logs each line. The first application that a line names
        becomes the task's link while the command runs.

        Args:
            where: dag_id, run_id, task_id and map_index of the task.
        """
        shown = False

        def on_line(line: str) -> None:
            nonlocal shown
            self.log.info("%s", line)
            application = None if shown else APPLICATION.search(line)
            if application is not None:
                shown = True
                if manager := self.manager():
                    page = links.application_page(manager, application.group())
                    links.push_meanwhile(where, links.ApplicationLink, page, self.log)

        return on_line

    def manager(self) -> Any:
        """YARN's ResourceManager; None: the Connection does not name a cluster."""
        try:
            return self.hook.resource_manager()
        except failures.HowdahCommandFailed:
            return None

    def on_kill(self) -> None:
        """End the command gracefully; the guard finishes that if Airflow kills this process."""
        if self._hook is not None:
            self._hook.cancel()


class CheckOperator(HowdahOperator):
    """Checks the values that were sent, logs the whole configuration, and returns it.

    Values come from the form, the API or an Asset's event. Keys, values and the installation's
    policy are checked here; each command that gets the configuration applies the policy again on
    the machine where it runs.

    Returns {"config", "conn_id", "run_directory"}. The run directory is the same for
    every try of the DAG run, so a retry resumes. A subclass sets keys by `decided`.

    Args:
        on: "local" or "yarn"; none: the param `job.on`, else as the Connection says.
    """

    template_fields: Sequence[str] = ("conn_id", "on")

    def __init__(self, *, on: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.on = on

    def execute(self, context: Context) -> dict[str, Any]:
        directory = self.run_directory(context)
        with refusals():
            params = trigger_form.sent(context)
            on = self.on or params.get("job.on") or self.hook.settings.on
            require_cluster(on)  # no schema was applied to an event
            _reachable(directory, on, self.conn_id)
            defaults = trigger_form.installed_defaults()
            lines = set_lines.parse(params.get(set_lines.SET), trigger_form.sections(defaults))
            values = {**params, **lines.values}
            decided = self.decided(context, values)
            overrides = {**decided, "run.directory": directory, "job.on": on}
            nested = trigger_form.config(
                {name: value for name, value in params.items() if name in values},
                on=on, overrides=overrides, defaults=defaults, judge=self.hook.judge(),
            )  # fmt: skip
            checked = from_dict(nested, where="what the trigger form sent")
        self.log.info("job.on: %s, Connection: %s", on, self.conn_id)
        self.log.info("the whole configuration:\n%s", dump_yaml(redact.config(checked)))
        return {
            "config": left_out.leave_out(checked.model_dump(mode="json")),
            "conn_id": self.conn_id,
            "run_directory": checked.run.directory,
        }

    def decided(self, context: Context, sent: dict[str, Any]) -> dict[str, Any]:
        """{key: value} that the run sets itself, overriding the values that were sent.

        Args:
            sent: {key: value}; an override removes the entries that are not configuration keys.
        """
        return {}


def require_cluster(on: str) -> None:
    """Refuse a cluster to which Airflow's tasks do not submit.

    Raises:
        ConfigError: it is neither local nor yarn.
    """
    if on not in trigger_form.CLUSTERS:
        raise ConfigError(
            "Airflow's tasks train on their machine or on YARN",
            where="job.on",
            expected=" or ".join(trigger_form.CLUSTERS),
            got=str(on),
        )


def _reachable(directory: str, on: str, conn_id: str) -> None:
    """Refuse a local run directory for YARN, whose containers cannot reach it."""
    if on == "yarn" and ("://" not in directory or directory.startswith("file://")):
        raise ConfigError(
            "the cluster's nodes cannot reach a local run directory (job.on: yarn)",
            where=f"Airflow Connection {conn_id}, field run_root",
            expected="shared storage, such as hdfs:///user/me/howdah/runs",
            got=directory,
        )


class PreflightOperator(HowdahOperator):
    """Checks before any work starts whether the run can succeed.

    It checks the machine, the cluster, and the configuration as the program there reads it. If the
    ETL has no source, the dataset exists, so the job is checked too: steps, queue, containers and
    capacity.

    Args:
        np: ranks on the task's machine (job.on: local).
    """

    template_fields: Sequence[str] = ("conn_id", "config", "np")

    def __init__(self, *, np: int | str = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.np = np

    def execute(self, context: Context) -> dict[str, Any]:
        self.command(context, "config", "check")
        horovod = False
        on = self.cluster()
        if on == "local":
            with refusals():
                preflight.ranks(self.config, int(self.np))
            horovod = int(self.np) > 1 and preflight.over_horovod(self.config)
        result = preflight.doctor(self.hook, on, self.log, horovod=horovod)
        if on == "yarn":
            result["yarn"] = preflight.resource_manager(self.hook, self.log)
        if not has_source(self.config):
            result["job"] = self._job(context)
        return result

    def _job(self, context: Context) -> dict[str, Any]:
        if self.cluster() == "yarn":
            job = self.command(context, "submit", "--dry-run", "--on", "yarn")["application"]
            return {key: job.get(key) for key in ("name", "queue", "workers", "attempts")}
        plan = self.command(context, "plan", "--np", str(int(self.np)))
        keys = ("dataset", "rows", "world_size", "steps_per_epoch", "steps")
        return {key: plan.get(key) for key in keys}


def has_source(config: Mapping[str, Any]) -> bool:
    """True if the configuration names a source for the ETL."""
    data = config.get("data") or {}
    return bool(data.get("source") or data.get("query_file"))


class EtlOperator(HowdahOperator):
    """Writes the dataset with Spark, on this machine or on YARN, unless it is unchanged.

    Without a source it is skipped: the run uses the existing dataset.
    """

    operator_extra_links = (links.ApplicationLink(), links.ReportLink())

    def execute(self, context: Context) -> dict[str, Any]:
        where = self.begin_links(context)
        if isinstance(self.config, Mapping) and not has_source(self.config):
            raise AirflowSkipException("data.source is not set: the run uses the existing dataset")
        made = self.command(
            context, "etl", grace_seconds=SPARK_GRACE_SECONDS,
            on_line=self.showing_application(where),
        )  # fmt: skip
        state = "unchanged" if made["unchanged"] else "written"
        self.log.info("dataset %s: %s, rows: %s", state, made["dataset"], made["rows"])
        manager = self.manager()
        page = links.run_page(
            self.hook.settings, self.hook.run_root, made["dataset"],
            conf=manager and manager.conf, report=True,
        )  # fmt: skip
        links.push(where, links.ReportLink, page)
        return made

    def lineage(self) -> touched.Touched:
        """Input: the source's rows. Output: a version of the dataset."""
        return touched.etl(self.lineage_places(), self.config, self.answered.get("etl"))


class EvaluateOperator(HowdahOperator):
    """Evaluates the run's model on a split of the dataset.

    Args:
        split: train, validation or test.
        model: an export or a run directory; none: the configuration's run.
    """

    template_fields: Sequence[str] = ("conn_id", "config", "split", "model")

    def __init__(self, *, split: str = TEST, model: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.split = split
        self.model = model

    def execute(self, context: Context) -> dict[str, Any]:
        arguments = ["evaluate", "--split", self.split]
        if self.model:
            arguments += ["--model", self.model]
        evaluated = self.command(context, *arguments)
        metrics = scalars(evaluated["metrics"])
        self.log.info("%s: %s", evaluated["split"], metrics)
        return {"split": evaluated["split"], "metrics": metrics}


class GateOperator(HowdahOperator):
    """Compares the run's metrics with the gate's bounds; a miss fails the task without a retry.

    A gate with `min_over_baseline` measures the baseline first, on the run's dataset.
    """

    def execute(self, context: Context) -> dict[str, Any]:
        gate = self.config["gate"] if isinstance(self.config, Mapping) else {}
        if gate.get("min_over_baseline") is not None:
            measured = self.command(context, "evaluate", "--baseline")
            metrics = {split: scalars(of) for split, of in measured["metrics"].items()}
            self.log.info("baseline: %s", metrics)
        return self.command(context, "gate")


class PublishOperator(HowdahOperator):
    """Publishes the run's export as the model's newest version.

    Each of the task's outlets (Assets) gets an event with the version and its metrics. Warnings of
    the report are only logged (--anyway): the tasks gate and approve decide here.

    Args:
        note: text that is kept with the version.
    """

    template_fields: Sequence[str] = ("conn_id", "config", "note")

    def __init__(self, *, note: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.note = note

    def execute(self, context: Context) -> dict[str, Any]:
        arguments = ["publish", "--anyway", *(["--note", self.note] if self.note else [])]
        published = self.command(context, *arguments)
        event = self.emit_published(context, published)
        self.log.info(
            "published %s version %s: %s", *(published[k] for k in ("name", "version", "path"))
        )
        return {**event, "changed": published.get("changed")}

    def lineage(self) -> touched.Touched:
        """Input: the run. Output: a version of the model."""
        made = self.answered.get("publish")
        return touched.published(self.lineage_places(), self.config, made)


class PredictOperator(HowdahOperator):
    """Classifies the rows of a source with a published model, a run's model or an export.

    Args:
        model, source: --model and --source of `howdah predict`.
        target: its --output.
        text_columns, id_column, master: its options; none: its defaults.
        overwrite: replace an existing output, once the new one is complete.
        batch: its --batch, such as "{{ ds }}" with a table as target.
        config: a configuration with `data.spark`, for a Spark master; none: the defaults.
    """

    template_fields: Sequence[str] = (
        "conn_id", "config", "model", "source", "target", "text_columns", "id_column", "master",
        "overwrite", "batch",
    )  # fmt: skip

    def __init__(
        self,
        *,
        model: str,
        source: str,
        target: str,
        text_columns: Sequence[str] | None = None,
        id_column: str | None = None,
        master: str | None = None,
        overwrite: bool | Any = False,
        batch: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.model = model
        self.source = source
        self.target = target
        self.text_columns = text_columns
        self.id_column = id_column
        self.master = master
        self.overwrite = overwrite
        self.batch = batch

    def execute(self, context: Context) -> dict[str, Any]:
        arguments = ["predict", "--model", self.model, "--source", self.source]
        arguments += ["--output", self.target]
        for column in self.text_columns or []:
            arguments += ["--text-column", column]
        options = {"id-column": self.id_column, "master": self.master, "batch": self.batch}
        for name, value in options.items():
            arguments += [f"--{name}", value] if value else []
        arguments += ["--overwrite"] if self.overwrite else []
        config = isinstance(self.config, Mapping)
        return self.command(context, *arguments, config=config, grace_seconds=SPARK_GRACE_SECONDS)

    def lineage(self) -> touched.Touched:
        """Inputs: the rows and the model. Output: the predictions."""
        return touched.scored(
            self.lineage_places(), source=self.source, output=self.target, model=self.model,
            made=self.answered.get("predict") or {},
        )  # fmt: skip


class CleanUpOperator(HowdahOperator):
    """Kills the run's application if it still runs; a teardown that never fails a finished run."""

    def execute(self, context: Context) -> dict[str, Any]:
        if not isinstance(self.config, Mapping) or self.cluster() != "yarn":
            self.log.info("nothing to kill: local commands end with their tasks")
            return {"application": None}
        try:
            killed = self.command(context, "kill")
        except failures.HowdahCommandFailed as error:
            if error.details.get("error") == "NotFound":
                self.log.info("nothing to kill: this run has not submitted an application")
            else:  # a warning only: the run's own result does not depend on it
                self.log.warning("the run's application could not be killed: %s", error)
            return {"application": None}
        self.log.info("%s is %s", killed["application"], killed["state"])
        return {"application": killed["application"], "state": killed["state"]}
