"""The tasks of howdah_daily: score a day's rows, check their drift, raise the alarm, notify."""

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
from howdah.airflow.operators import SPARK_GRACE_SECONDS, HowdahOperator, task_key
from howdah.config.options.partition import is_files
from howdah.core.address import split_address
from howdah.errors import ConfigError, DataError

_ALARM = "CheckFailed"
"""Error class of `howdah drift` for an alarm (exit code 1)."""


class ScoreOperator(HowdahOperator):
    """Classifies the rows of a day: a table's into a table by `howdah score`, those of files into a
    file by `howdah predict`.

    A partition is replaced as a whole. A partition that this model has scored and that has not
    changed since is skipped, so a retried or cleared task does not repeat finished work.

    Args:
        model: published model, version, run directory or export.
        source: a table, or files.
        partitions: the table's partitions, each a=b/c=d; with files, the one that they belong to.
        target: table or file of the scores.
        force: score again partitions that are already scored.
        since: with a table and one partition: an earlier partition. All partitions from it up to
            that one are scored again if they have changed.
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
        where = self.begin_links(context)
        files = is_files(self.source)
        words = self._of_files() if files else self._of_table()
        made = self.command(
            context, *words, grace_seconds=SPARK_GRACE_SECONDS,
            on_line=self.showing_application(where),
        )  # fmt: skip
        return self._result(made, files=files)

    def _of_files(self) -> list[str]:
        # The output belongs to the DAG run: a retry replaces what an earlier try left.
        words = ["predict", "--model", self.model, "--source", self.source]
        return [*words, "--output", self.target, "--overwrite"]

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
        """The run's day, and earlier days that were scored again: their drift is checked again.

        Raises:
            DataError: the table does not have the day. (`howdah score --since` does not notice.)
        """
        missing = [one for one in self.partitions if one not in {one["partition"] for one in done}]
        if missing:
            raise failures.of_error(
                DataError(
                    f"the table does not have the partition {', '.join(missing)}",
                    where=self.source,
                    remedy="register a directory as a partition (MSCK REPAIR TABLE), then clear"
                    " this task",
                )
            )
        return [
            one for one in done if one["partition"] in self.partitions or one["state"] == "scored"
        ]

    def lineage(self) -> touched.Touched:
        """Input: the day's rows. Output: the scores."""
        made = self.answered.get("score") or self.answered.get("predict") or {}
        return touched.scored(
            self.lineage_places(), source=self.source, output=self.target,
            partitions=self.partitions, model=self.model, made=made,
        )  # fmt: skip


class DriftOperator(HowdahOperator, SkipMixin):
    """Compares a day's rows with the model's training data; a branch.

    The tasks that follow run only after an alarm. Both ends are a success: drift of the rows does
    not fail the task.

    Args:
        scored: the output of ScoreOperator (templated).
        model: the model as the run names it.
        directory: the DAG run's directory, for the pages.
    Returns (also where the following tasks are skipped):
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
        where = self.begin_links(context)
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
        self.log.info("no alarm: the following tasks are skipped")
        self.skip(context["ti"], list(following))
        return result

    def _judge(self, context: Context, partition: str) -> dict[str, Any]:
        place = f"{self.directory}/drift/{partition.replace('/', ',')}"
        if self.scored["files"]:
            # The source, not the predictions, has lengths and tokens to compare. The model is the
            # version that scored it, since another version may be current now.
            rows = ["drift", "--model", self._scorer(), "--source", self.scored["source"]]
        else:
            rows = ["drift", "--model", self.model]
            rows += ["--table", self.scored["output"], "--partition", partition]
        words = [*rows, "--output", place, "--json"]
        done = self.hook.call(words, config=self.config, task=task_key(context))
        verdict = done.result or {}
        alarm = done.code == 1 and verdict.get("error") == _ALARM
        if not alarm and (done.code != 0 or done.result is None):
            raise failures.failed(self.hook.error_of(words, done), done.code)
        columns = columns_of(verdict)
        state = "alarm" if alarm else str(verdict.get("state") or "ok")
        self.log.info("%s: %s", partition, ", ".join([state, *columns]))
        for problem in verdict.get("problems") or []:
            self.log.warning("%s", problem.get("what"))
        page = links.file_page(self.hook.settings, self.hook.run_root, f"{place}/drift.html")
        return {
            "partition": partition, "state": state, "columns": columns,
            "page": page or f"{place}/drift.html",
        }  # fmt: skip

    def _scorer(self) -> str:
        """The model at the version that has scored; the model itself if it is not published."""
        version = self.scored.get("version")
        model, number = split_address(self.model)
        return self.model if version is None or number is not None else f"{model}@{version}"

    def lineage(self) -> touched.Touched:
        """Input: the rows or scores that were checked. A page is not a dataset: no output."""
        scored = self.scored if isinstance(self.scored, Mapping) else {}
        return touched.judged(self.lineage_places(), scored=scored)


def columns_of(verdict: Mapping[str, Any]) -> list[str]:
    """The columns with an alarm in the JSON object of `howdah drift --json`: a verdict, or an
    alarm's error, whose problems name the columns as `where`."""
    named = verdict.get("alarms")
    if isinstance(named, Sequence) and not isinstance(named, str):
        return [str(each) for each in named]
    return [str(each.get("where") or each.get("what")) for each in verdict.get("problems") or []]


class AlarmOperator(HowdahOperator):
    """Raises the alarm: each of the task's outlets (the Asset howdah_drift) gets an event.

    It runs only if a day has drifted. The DAG run still succeeds: its page shows the alarm by this
    task, which is otherwise skipped.

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
        except ConfigError:  # one data.partitions cannot name exactly these; the list above does
            extra["howdah"] = {}
        self.emit(context, extra)
        self.log.warning("%s. Page: %s", sentence(extra), judged["page"])
        return extra


def sentence(alarm: Mapping[str, Any]) -> str:
    """One line about an alarm, from the extra of its event."""
    version = f" version {alarm['version']}" if alarm.get("version") is not None else ""
    days_, columns = ", ".join(alarm["partitions"]), ", ".join(alarm["columns"])
    return f"drift of {days_} from {alarm['model']}{version}: {columns}"


class NotifyOperator(HowdahOperator):
    """Sends an alarm by the notifiers of the Connection; skipped if none is for drift.

    It is a separate task after the alarm: a chat that does not answer is tried again, and in the
    end shown as a failed task, but the alarm's event is already sent.

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
            raise AirflowSkipException(f"no notifier for drift in the Connection {self.conn_id}")
        return {"notified": sent}
