"""The tasks of howdah_daily: score a day's rows, judge their drift, raise the alarm, inform."""

from __future__ import annotations

import howdah.airflow.required

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import Context
from airflow.sdk.bases.skipmixin import SkipMixin
from airflow.sdk.exceptions import AirflowSkipException

from howdah.airflow import failures, links
from howdah.airflow.alerts import notifiers
from howdah.airflow.application.ownership import TaskKey
from howdah.airflow.daily import days
from howdah.airflow.hook import refusals
from howdah.airflow.lineage import touched
from howdah.airflow.operators import HowdahOperator, task_key
from howdah.config.options.partition import is_files
from howdah.core.address import split_address
from howdah.errors import ConfigError, DataError

_SPARK_GRACE_SECONDS = 90.0
"""A killed command kills its application with Spark's client, which starts a JVM first."""
_ALARM = "CheckFailed"
"""The error of `howdah drift` for an alarm, exit code 1."""


class ScoreOperator(HowdahOperator):
    """Classifies the rows of a day: of a table into a table by `howdah score`, of files into a file
    by `howdah predict`.

    A partition is replaced whole. One that this model has scored and that has not changed since is
    skipped, so a retried or cleared task does again only what is not done.

    Args:
        model: published model, version, run directory or export.
        source: a table, or files.
        partitions: of the table, each a=b/c=d; of files the one that they are of.
        target: table or file of the scores.
        force: score again what is scored.
        since: of a table and one partition: an earlier one, from which on all up to it are scored
            that have changed since they were.
    Returns:
        {"model", "source", "version", "run_id", "output", "files", "rows", "partitions":
        [{"partition", "state", "rows", "errors"}]}.
    """

    operator_extra_links = (links.ApplicationLink(),)
    template_fields: Sequence[str] = (
        *HowdahOperator.template_fields, "model", "source", "partitions", "target", "force",
        "since",
    )  # fmt: skip

    def __init__(
        self,
        *,
        model: str,
        source: str,
        partitions: Sequence[str] | Any,
        target: str,
        force: bool | Any = False,
        since: str | Any | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.model, self.source, self.partitions = model, source, partitions
        self.target, self.force, self.since = target, force, since

    def execute(self, context: Context) -> dict[str, Any]:
        where = TaskKey.of(context["ti"]).as_dict()
        links.begin(where, self.operator_extra_links)
        files = is_files(self.source)
        words = self._of_files() if files else self._of_table()
        made = self.command(
            context, *words, grace_seconds=_SPARK_GRACE_SECONDS,
            on_line=self.showing_application(where),
        )  # fmt: skip
        return self._result(made, files=files)

    def _of_files(self) -> list[str]:
        # The output belongs to the DAG run: a retry replaces what an earlier try left.
        asked = ["predict", "--model", self.model, "--source", self.source]
        return [*asked, "--output", self.target, "--overwrite"]

    def _of_table(self) -> list[str]:
        words = ["score", "--model", self.model, "--source", self.source, "--output", self.target]
        if self.since and len(self.partitions) == 1:
            words += ["--since", self.since, "--until", self.partitions[0]]
        else:
            for partition in self.partitions:
                words += ["--partition", partition]
        return [*words, *(["--force"] if str(self.force).lower() == "true" else [])]

    def _result(self, made: Mapping[str, Any], *, files: bool) -> dict[str, Any]:
        keys = ("partition", "state", "rows", "errors")
        done = [{key: each.get(key) for key in keys} for each in made.get("partitions") or []]
        if files:
            counts = {"rows": made.get("rows"), "errors": made.get("errors")}
            done = [{"partition": self.partitions[0], "state": "scored", **counts}]
        elif self.since:
            done = self._of_days(done)
        for each in done:
            self.log.info("%s: %s, rows: %s, errors: %s", *(each[key] for key in keys))
        return {
            "model": self.model,
            "source": self.source,
            "version": made.get("version"),
            "run_id": made.get("run_id"),
            "output": self.target,
            "files": files,
            "rows": sum(each["rows"] or 0 for each in done),
            "partitions": done,
        }

    def _of_days(self, done: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The day asked for, and earlier ones that were scored anew: those are judged again.

        Raises:
            DataError: the table does not have the day; walking from an earlier one does not miss
                it.
        """
        missing = [one for one in self.partitions if one not in {one["partition"] for one in done}]
        if missing:
            raise failures.of_error(
                DataError(
                    "the table has no such partition",
                    where=self.source,
                    got=", ".join(missing),
                    remedy="a directory that no statement has added is not a partition (MSCK REPAIR"
                    " TABLE); then clear this task",
                )
            )
        return [
            one for one in done if one["partition"] in self.partitions or one["state"] == "scored"
        ]

    def lineage(self) -> touched.Touched:
        """The day's rows in, the scores out."""
        made = self.answered.get("score") or self.answered.get("predict") or {}
        return touched.scored(
            self.lineage_places(), source=self.source, output=self.target,
            partitions=self.partitions, model=self.model, made=made,
        )  # fmt: skip


class DriftOperator(HowdahOperator, SkipMixin):
    """Judges a day's rows against those that the model was made of: a branch.

    An alarm runs what follows; without one it is skipped. Both ends are a success: that the rows
    have drifted is no failure of the task.

    Args:
        scored: the output of ScoreOperator (templated).
        model: as it was asked for.
        directory: of the DAG run, for the pages.
    Returns (also where what follows is skipped):
        {"alarm", "model", "version", "output", "columns", "page", "partitions": [{"partition",
        "state": "alarm"|"ok"|"too few rows", "columns", "page"}]}.
    """

    operator_extra_links = (links.DriftLink(),)
    template_fields: Sequence[str] = (
        *HowdahOperator.template_fields, "scored", "model", "directory",
    )  # fmt: skip

    def __init__(self, *, scored: Any, model: str, directory: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.scored, self.model, self.directory = scored, model, directory

    def execute(self, context: Context) -> dict[str, Any]:
        where = TaskKey.of(context["ti"]).as_dict()
        links.begin(where, self.operator_extra_links)
        judged = [self._judge(context, each["partition"]) for each in self.scored["partitions"]]
        moved = [each for each in judged if each["state"] == "alarm"]
        shown = (moved or judged)[0] if judged else {}
        result = {
            "alarm": bool(moved),
            **{key: self.scored.get(key) for key in ("model", "version", "output")},
            "columns": sorted({column for each in moved for column in each["columns"]}),
            "page": shown.get("page"),
            "partitions": judged,
        }
        if shown.get("page"):
            links.push(where, links.DriftLink, shown["page"])
        if moved:
            self.log.warning("alarm: %s", ", ".join(result["columns"]))
            return result
        # Skipping ends the task at once, without its result.
        context["ti"].xcom_push("return_value", result)
        following = context["task"].get_flat_relatives(upstream=False)
        self.log.info("no alarm: what follows is skipped")
        self.skip(context["ti"], list(following))
        return result

    def _judge(self, context: Context, partition: str) -> dict[str, Any]:
        place = f"{self.directory}/drift/{partition.replace('/', ',')}"
        if self.scored["files"]:
            # The texts, not the predictions: those have no lengths and tokens to compare. The
            # version that scored them, though another one may be current by now.
            asked = ["drift", "--model", self._scorer(), "--source", self.scored["source"]]
        else:
            asked = ["drift", "--model", self.model]
            asked += ["--table", self.scored["output"], "--partition", partition]
        words = [*asked, "--output", place, "--json"]
        done = self.hook.call(words, config=self.config, task=task_key(context))
        found = done.result or {}
        alarm = done.code == 1 and found.get("error") == _ALARM
        if not alarm and (done.code != 0 or done.result is None):
            raise failures.failed(self.hook.error_of(words, done), done.code)
        columns = columns_of(found)
        state = "alarm" if alarm else str(found.get("state") or "ok")
        self.log.info("%s: %s", partition, ", ".join([state, *columns]))
        for problem in found.get("problems") or []:
            self.log.warning("%s", problem.get("what"))
        page = links.file_page(self.hook.settings, self.hook.run_root, f"{place}/drift.html")
        return {
            "partition": partition, "state": state, "columns": columns,
            "page": page or f"{place}/drift.html",
        }  # fmt: skip

    def _scorer(self) -> str:
        """The model at the version that has scored; one that is not published: as it is."""
        version = self.scored.get("version")
        model, number = split_address(self.model)
        return self.model if version is None or number is not None else f"{model}/v={version}"

    def lineage(self) -> touched.Touched:
        """What was judged in; a page is no dataset."""
        scored = self.scored if isinstance(self.scored, Mapping) else {}
        return touched.judged(self.lineage_places(), scored=scored)


def columns_of(found: Mapping[str, Any]) -> list[str]:
    """The columns with an alarm, of what `howdah drift --json` prints: a verdict, or for an alarm
    its error, whose problems name the columns as `where`."""
    named = found.get("alarms")
    if isinstance(named, Sequence) and not isinstance(named, str):
        return [str(each) for each in named]
    return [str(each.get("where") or each.get("what")) for each in found.get("problems") or []]


class AlarmOperator(HowdahOperator):
    """Raises the alarm: each of the task's outlets (the Asset howdah_drift) gets an event.

    It runs only where a day has drifted. The DAG run ends well all the same: that this task ran,
    and was not skipped, is what its page shows.

    Args:
        judged: the output of DriftOperator (templated).
    Returns:
        The event's extra: {"model", "version", "table", "partitions", "columns", "page", "howdah"}.
    """

    operator_extra_links = (links.DriftLink(),)
    template_fields: Sequence[str] = (*HowdahOperator.template_fields, "judged")

    def __init__(self, *, judged: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.judged = judged

    def execute(self, context: Context) -> dict[str, Any]:
        judged = self.judged
        where = TaskKey.of(context["ti"]).as_dict()
        links.push(where, links.DriftLink, judged["page"])
        partitions = [e["partition"] for e in judged["partitions"] if e["state"] == "alarm"]
        extra = {
            "model": judged["model"], "version": judged["version"], "table": judged["output"],
            "partitions": partitions, "columns": judged["columns"], "page": judged["page"],
        }  # fmt: skip
        try:
            extra["howdah"] = {days.PARTITIONS: days.merged(partitions)}
        except ConfigError:  # no one data.partitions has just these: the list above names them
            extra["howdah"] = {}
        for outlet in self.outlets:
            context["outlet_events"][outlet].extra = extra
        self.log.warning("%s. Page: %s", sentence(extra), judged["page"])
        return extra


def sentence(alarm: Mapping[str, Any]) -> str:
    """An alarm in a line.

    Args:
        alarm: the extra of its event.
    """
    version = f" version {alarm['version']}" if alarm.get("version") is not None else ""
    days_, columns = ", ".join(alarm["partitions"]), ", ".join(alarm["columns"])
    return f"drift of {days_} against {alarm['model']}{version}: {columns}"


class NotifyOperator(HowdahOperator):
    """Informs of an alarm by the notifiers of the Connection; skipped where it has none for it.

    A task of its own after the alarm: a chat that does not answer is tried again, and at last shown
    as a failed task, while the alarm's event is out.

    Args:
        alarm: the output of AlarmOperator (templated).
    """

    template_fields: Sequence[str] = (*HowdahOperator.template_fields, "alarm")

    def __init__(self, *, alarm: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.alarm = alarm

    def execute(self, context: Context) -> dict[str, Any]:
        alarm = self.alarm
        about = {**alarm, "event": "drift", "what": sentence(alarm)}
        with refusals():
            sent = notifiers.notify(self.hook, "drift", context, about)
        if not sent:
            raise AirflowSkipException(f"the Connection {self.conn_id} has no notifier for drift")
        return {"notified": sent}
