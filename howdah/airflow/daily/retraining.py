"""The first tasks of howdah_retrain: its turn, and the configuration of the run."""

from __future__ import annotations

import howdah.airflow.required

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from airflow.sdk import Context, Variable
from airflow.sdk.bases.sensor import BaseSensorOperator
from airflow.sdk.bases.skipmixin import SkipMixin
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from howdah.airflow.assets import DRIFT
from howdah.airflow.daily import days, form
from howdah.airflow.form import trigger_form
from howdah.airflow.hook import refusals
from howdah.airflow.operators import CheckOperator, task_key
from howdah.config import loader as configs
from howdah.config.model import Config
from howdah.config.options.partition import expanded, is_files
from howdah.config.splits import TEST
from howdah.errors import ConfigError

_BEGIN = "howdah_init_from"
"""Key in the task's state of the model that the run begins from: the same for all its tries."""
_BEGAN = "howdah_retrain_began"
"""Airflow Variable: {publish directory of the model: [when the last retraining began, its run]}."""
_BETTER = "gate.better_than_published"


class TurnSensor(BaseSensorOperator):
    """Waits until no other run of its DAG is under way: one day is appended and trained at a time.

    `max_active_runs` of a DAG does not count the runs of a back-fill, which has its own limit (10
    by default). Waits without a worker's slot (mode reschedule).

    Args:
        last: id of the DAG's last task.
    """

    def __init__(self, *, last: str, **kwargs: Any) -> None:
        options = {"mode": "reschedule", "poke_interval": 15.0, "timeout": 7 * 86_400.0}
        super().__init__(**{**options, **kwargs})
        self.last = last

    def poke(self, context: Context) -> bool:
        ti = context["ti"]
        states = RuntimeTaskInstance.get_task_states(
            dag_id=ti.dag_id, task_ids=[ti.task_id, self.last]
        )
        for run in days.ahead(states, ti.run_id, turn=ti.task_id, last=self.last):
            # Queued runs do not count: they may wait for this one.
            if RuntimeTaskInstance.get_dr_count(ti.dag_id, run_ids=[run], states=["running"]):
                self.log.info("waiting for the run %s: runs are serial", run)
                return False
        return True


class CheckRetrainOperator(CheckOperator, SkipMixin):
    """Checks the values that were sent, and sets the day's keys: the source's partition, appending,
    the model that the run begins from. A run that an alarm starts within the cool-down (counted
    from the start of the last retraining) is skipped.

    Returns the output of CheckOperator with the arguments of PartitionSensor: {"source",
    "partitions", "ready", "wait"}.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._awaited: dict[str, Any] = {}

    def execute(self, context: Context) -> dict[str, Any]:
        with refusals():
            until = self._cooling(context)
        if until is not None:
            self.log.info("within the cool-down of the last retraining, until %s: skipped", until)
            self.skip(context["ti"], list(context["task"].get_flat_relatives(upstream=False)))
        return {**super().execute(context), **self._awaited}

    def decided(self, context: Context, sent: dict[str, Any]) -> dict[str, Any]:
        """The keys that the day decides."""
        fixed = form.settings()
        day = form.day_of(
            context, fixed.partition, sent.pop("partition", None), timezone=fixed.timezone
        )
        source = sent.pop("source", None) or sent.pop("data.source", None)
        sent.pop(days.PARTITIONS, None)
        defaults = trigger_form.installed_defaults()
        installed = configs.from_dict(
            trigger_form.sections(defaults), where="the installation's defaults"
        )
        source = source or fixed.retrain.source or installed.data.source
        if not source:
            raise ConfigError(
                "the source of the labelled rows is not set",
                where="source",
                expected="a table or files: source of the form, or daily.retrain.source or"
                " data.source of the installation's defaults",
            )
        made = {"data.append.enabled": True, **_rows_of(source, day, installed)}
        self._awaited = _awaited(source, day, fixed.retrain.ready, installed)
        if fixed.retrain.dataset and "data.dataset" not in sent:
            made["data.dataset"] = fixed.retrain.dataset
        if not installed.data.append.frozen:
            made["data.append.frozen"] = [TEST]
        if "better_than_published" not in (defaults.get("gate") or {}) and _BETTER not in sent:
            made[_BETTER] = True
        began = self._begin(context, trigger_form.sections(defaults))
        if began:
            made["model.init_from"] = began
        self.log.info("day: %s, from %s", day.name, day.by)
        self.log.info("begins from: %s", began or "the base model (no version is published yet)")
        self._note(context)
        return made

    def _begin(self, context: Context, defaults: Mapping[str, Any]) -> str | None:
        """The version that was current when this run was first checked. After the run's own
        publication another version is current, but its checkpoints belong to this one."""
        kept = context["task_state_store"]
        stored = kept.get(_BEGIN)
        if isinstance(stored, dict):
            return stored["model"]
        published = self.hook.run(
            ["model", "published", "--json"], config=defaults, task=task_key(context)
        )
        current = published["current"]
        model = f"{published['model']}@{current['version']}" if current else None
        kept.set(_BEGIN, {"model": model})
        return model

    # ------------------------------------------------------------------------------ cool-down
    def _cooling(self, context: Context) -> datetime | None:
        """End of the cool-down, if it skips this run; None: the run begins."""
        events = context.get("triggering_asset_events") or {}
        if not events or any(getattr(asset, "name", None) != DRIFT.name for asset in events):
            return None
        began = _began().get(self._model())
        if not began or began[1] == context["ti"].run_id:
            return None
        hours = form.settings().retrain.cooldown_hours
        return days.cooling(datetime.fromisoformat(began[0]), datetime.now(UTC), hours)

    def _note(self, context: Context) -> None:
        """Store the start of this run, from which the cool-down is counted."""
        began, run = _began(), context["ti"].run_id
        if (began.get(self._model()) or ["", None])[1] != run:
            began[self._model()] = [datetime.now(UTC).isoformat(timespec="seconds"), run]
            Variable.set(_BEGAN, began, serialize_json=True)

    def _model(self) -> str:
        sections = trigger_form.sections(trigger_form.installed_defaults())
        return configs.from_dict(sections).model_directory


def _rows_of(source: str, day: days.Day, installed: Config) -> dict[str, Any]:
    """The keys that name the day's rows: partitions of a table, or a file."""
    if not is_files(source):
        table = {"data.source": source, "data.partitions": days.merged(day.partitions)}
        return table | ({} if installed.data.names_table else {"data.format": "hive"})
    if len(day.partitions) > 1:
        what = "files of several days are appended by one run for each day"
        raise ConfigError(what, where="partition", got=day.name)
    part = day.partitions[0]
    made = {"data.source": expanded(source, part), "data.append.part": part.replace("/", ",")}
    return made | ({"data.format": "auto"} if installed.data.names_table else {})


def _awaited(source: str, day: days.Day, ready: str | None, installed: Config) -> dict[str, Any]:
    """The arguments of PartitionSensor. For tables that need Spark's connectors (Iceberg, Delta,
    JDBC) it can only wait for the marker `ready`."""
    hive = not installed.data.names_table or installed.data.format == "hive"
    seen = ready is not None or is_files(source) or hive
    return {
        "source": source,
        "partitions": list(day.partitions),
        "ready": ready,
        "wait": day.by == "the date" and seen,
    }


def _began() -> dict[str, Sequence[Any]]:
    value = Variable.get(_BEGAN, default=None, deserialize_json=True)
    return dict(value) if isinstance(value, dict) else {}
