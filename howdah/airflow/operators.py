"""The tasks of a run: each runs one `howdah` command where the Connection says."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from howdah.airflow import DEFAULT_CONNECTION, require

require()

from airflow.sdk import BaseOperator, Context  # noqa: E402
from airflow.sdk.exceptions import AirflowSkipException  # noqa: E402

from howdah.airflow import failures, links, ownership  # noqa: E402
from howdah.airflow.hook import HowdahHook, refusals  # noqa: E402
from howdah.airflow.local_training import scalars  # noqa: E402
from howdah.errors import ConfigError  # noqa: E402

__all__ = [
    "CheckOperator",
    "CleanUpOperator",
    "EtlOperator",
    "EvaluateOperator",
    "GateOperator",
    "HowdahOperator",
    "PredictOperator",
    "PreflightOperator",
    "PublishOperator",
    "safe_name",
    "task_key",
]


_APPLICATION = re.compile(r"\bapplication_\d+_\d+\b")


def task_key(context: Context) -> str:
    """What names a task of a run through all its tries."""
    ti = context["ti"]
    return "/".join(map(str, (ti.dag_id, ti.run_id, ti.task_id, ti.map_index)))


def safe_name(text: str) -> str:
    """A text as one name in a path; two texts never give the same."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "run"
    if safe == text:
        return safe
    return f"{safe}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


class HowdahOperator(BaseOperator):
    """Base of all: a Connection, a configuration, and commands that end when the task does.

    Args:
        conn_id: Connection of type "howdah".
        config: the run's configuration, nested; of the task `check` (its output's "config").
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

    @property
    def hook(self) -> HowdahHook:
        """The Connection's hook, one for the task's life."""
        if self._hook is None:
            self._hook = HowdahHook(self.conn_id)
        return self._hook

    def command(
        self, context: Context, *words: str, config: bool = True, **options: Any
    ) -> dict[str, Any]:
        """Run a howdah command with this task's configuration; its JSON object."""
        if config and not isinstance(self.config, Mapping):
            raise failures.failed(
                {
                    "what": "the task has no configuration",
                    "where": self.task_id,
                    "expected": "the output of the task check: its key config",
                    "got": type(self.config).__name__,
                },
                2,
            )
        return self.hook.run(
            [*words, "--json"], config=self.config if config else None, task=task_key(context),
            **options,
        )  # fmt: skip

    def on_kill(self) -> None:
        """End the command in order; what takes longer than Airflow waits, the guard finishes."""
        if self._hook is not None:
            self._hook.cancel()


class CheckOperator(HowdahOperator):
    """Checks what the trigger form sent, logs the whole configuration, and hands it on.

    Returns {"config", "backend", "conn_id", "run_directory"}. The run directory is the same for
    every try of the DAG run: a retry goes on where the last one ended.

    Args:
        backend: "local" or "yarn"; none: the param `backend`, else the Connection's.
    """

    template_fields: Sequence[str] = ("conn_id", "backend")

    def __init__(self, *, backend: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.backend = backend

    def execute(self, context: Context) -> dict[str, Any]:
        from howdah.airflow import form
        from howdah.config import dump_yaml, from_dict

        ti = context["ti"]
        directory = "/".join(
            (self.hook.run_root.rstrip("/"), safe_name(ti.dag_id), safe_name(ti.run_id))
        )
        with refusals():
            params = form.sent(context)
            backend = self.backend or params.get("backend") or self.hook.backend
            _reachable(directory, backend, self.conn_id)
            nested = form.config(params, backend=backend, overrides={"run.directory": directory})
            checked = from_dict(nested, where="what the trigger form sent")
        self.log.info("backend: %s, Connection: %s", backend, self.conn_id)
        self.log.info("the whole configuration:\n%s", dump_yaml(checked))
        return {
            "config": checked.model_dump(mode="json"),
            "backend": backend,
            "conn_id": self.conn_id,
            "run_directory": checked.run.directory,
        }


def _reachable(directory: str, backend: str, conn_id: str) -> None:
    """A job's containers do not see this machine's directories."""
    if backend == "yarn" and ("://" not in directory or directory.startswith("file://")):
        raise ConfigError(
            "run directories of the backend yarn must lie where the cluster's nodes find them",
            where=f"Airflow Connection {conn_id}, field run_root",
            expected="such as hdfs:///user/me/howdah/runs",
            got=directory,
        )


class PreflightOperator(HowdahOperator):
    """Finds out before anything is spent whether the run can work.

    The machine, the cluster, and whether the program takes the configuration; without a source for
    the ETL the dataset is there, and the job itself is looked at: steps, queue, containers, room.

    Args:
        backend: "local" or "yarn".
        np: ranks of the local backend.
    """

    template_fields: Sequence[str] = ("conn_id", "config", "backend", "np")

    def __init__(self, *, backend: str = "local", np: int | str = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.backend = backend
        self.np = np

    def execute(self, context: Context) -> dict[str, Any]:
        from howdah.airflow import preflight

        self.command(context, "config", "check")
        if self.backend == "local":
            with refusals():
                preflight.ranks(self.config, int(self.np))
        found = preflight.doctor(self.hook, self.backend, self.log)
        if self.backend == "yarn":
            found["yarn"] = preflight.resource_manager(self.hook, self.log)
        if not has_source(self.config):
            found["job"] = self._job(context)
        return found

    def _job(self, context: Context) -> dict[str, Any]:
        if self.backend == "yarn":
            asked = self.command(context, "submit", "--dry-run")["application"]
            return {key: asked.get(key) for key in ("name", "queue", "workers", "attempts")}
        plan = self.command(context, "plan", "--np", str(int(self.np)))
        keys = ("dataset", "rows", "world_size", "steps_per_epoch", "steps")
        return {key: plan.get(key) for key in keys}


def has_source(config: Mapping[str, Any]) -> bool:
    """True if there is something to make a dataset of."""
    data = config.get("data") or {}
    return bool(data.get("source") or data.get("query_file"))


class EtlOperator(HowdahOperator):
    """Makes the dataset, or finds it unchanged: on this machine's Spark, or on YARN.

    Without a source it is skipped: the run takes the dataset that is there.
    """

    operator_extra_links = (links.ApplicationLink(), links.ReportLink())

    def execute(self, context: Context) -> dict[str, Any]:
        where = ownership.TaskKey.of(context["ti"]).as_dict()
        links.begin(where, self.operator_extra_links)
        if isinstance(self.config, Mapping) and not has_source(self.config):
            raise AirflowSkipException("no source is given: the dataset is taken as it is")
        shown = False

        def tell(line: str) -> None:
            nonlocal shown
            self.log.info("%s", line)
            if not shown and (found := _APPLICATION.search(line)):
                shown = True
                self._show_application(where, found.group())

        # Killed, an application is ended by Spark's own client: a JVM starts first.
        made = self.command(context, "etl", grace_seconds=90.0, on_line=tell)
        state = "unchanged" if made["unchanged"] else "written"
        self.log.info("dataset %s: %s, rows: %s", state, made["dataset"], made["rows"])
        manager = self._manager()
        page = links.run_page(
            self.hook.settings, self.hook.run_root, made["dataset"],
            conf=manager and manager.conf, report=True,
        )  # fmt: skip
        links.push(where, links.ReportLink, page)
        return made

    def _show_application(self, where: Mapping[str, Any], application: str) -> None:
        if manager := self._manager():
            page = links.application_page(manager, application)
            links.push_meanwhile(where, links.ApplicationLink, page, self.log)

    def _manager(self) -> Any:
        """YARN's ResourceManager; None: the Connection knows of no cluster."""
        try:
            return self.hook.resource_manager()
        except failures.HowdahCommandFailed:
            return None


class EvaluateOperator(HowdahOperator):
    """Evaluates the run's model on a split of the dataset.

    Args:
        split: train, validation or test.
        model: an export or a run directory; none: the configuration's run.
    """

    template_fields: Sequence[str] = ("conn_id", "config", "split", "model")

    def __init__(self, *, split: str = "test", model: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.split = split
        self.model = model

    def execute(self, context: Context) -> dict[str, Any]:
        words = ["evaluate", "--split", self.split]
        if self.model:
            words += ["--model", self.model]
        told = self.command(context, *words)
        found = scalars(told["metrics"])
        self.log.info("%s: %s", told["split"], found)
        return {"split": told["split"], "metrics": found}


class GateOperator(HowdahOperator):
    """Holds the run's metrics against the gate; a model that misses it fails for good."""

    def execute(self, context: Context) -> dict[str, Any]:
        return self.command(context, "gate")


class PublishOperator(HowdahOperator):
    """Publishes the run's export as the model's newest version.

    Each of the task's outlets (Assets) gets an event with the version and its metrics.

    Args:
        note: kept with the version.
    """

    template_fields: Sequence[str] = ("conn_id", "config", "note")

    def __init__(self, *, note: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.note = note

    def execute(self, context: Context) -> dict[str, Any]:
        words = ["publish", *(["--note", self.note] if self.note else [])]
        told = self.command(context, *words)
        keys = ("name", "version", "path", "run_id", "run_directory", "framework", "metrics")
        small = {key: told.get(key) for key in keys}
        for outlet in self.outlets:
            context["outlet_events"][outlet].extra = small
        self.log.info(
            "published %s version %s: %s", *(told[k] for k in ("name", "version", "path"))
        )
        return {**small, "changed": told.get("changed")}


class PredictOperator(HowdahOperator):
    """Classifies the rows of a source with a published model, a run's or an export.

    Args:
        model, source: as `howdah predict` takes them.
        target: its --output.
        text_columns, id_column, master: likewise; none: its own defaults.
        overwrite: replace an output that is there, once the new one is whole.
        config: with `data.spark`, for a Spark master; none: the defaults.
    """

    template_fields: Sequence[str] = (
        "conn_id", "config", "model", "source", "target", "text_columns", "id_column", "master",
        "overwrite",
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

    def execute(self, context: Context) -> dict[str, Any]:
        words = ["predict", "--model", self.model, "--source", self.source]
        words += ["--output", self.target]
        for column in self.text_columns or []:
            words += ["--text-column", column]
        if self.id_column:
            words += ["--id-column", self.id_column]
        if self.master:
            words += ["--master", self.master]
        if self.overwrite:
            words += ["--overwrite"]
        given = isinstance(self.config, Mapping)
        return self.command(context, *words, config=given, grace_seconds=90.0)


class CleanUpOperator(HowdahOperator):
    """Ends what the run may have left running; a teardown, which never fails a good run.

    Args:
        backend: "local" or "yarn".
    """

    template_fields: Sequence[str] = ("conn_id", "config", "backend")

    def __init__(self, *, backend: str = "local", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.backend = backend

    def execute(self, context: Context) -> dict[str, Any]:
        if self.backend != "yarn" or not isinstance(self.config, Mapping):
            self.log.info("nothing to end: commands on a machine end with their tasks")
            return {"application": None}
        try:
            told = self.command(context, "kill")
        except failures.HowdahCommandFailed as error:
            if error.told.get("error") == "NotFound":
                self.log.info("nothing to end: no application was submitted for this run")
            else:  # told, and left to who looks after the cluster: the run itself is what it was
                self.log.warning("could not look after the run's application: %s", error)
            return {"application": None}
        self.log.info("%s is %s", told["application"], told["state"])
        return {"application": told["application"], "state": told["state"]}
