"""The first tasks of howdah_retrain: its turn, and the configuration of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from howdah.airflow import require

require()

from airflow.sdk import Context, Variable  # noqa: E402
from airflow.sdk.bases.sensor import BaseSensorOperator  # noqa: E402
from airflow.sdk.bases.skipmixin import SkipMixin  # noqa: E402
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance  # noqa: E402

from howdah.airflow.assets import DRIFT  # noqa: E402
from howdah.airflow.daily import days, form  # noqa: E402
from howdah.airflow.form import trigger_form  # noqa: E402
from howdah.airflow.hook import refusals  # noqa: E402
from howdah.airflow.operators import CheckOperator, task_key  # noqa: E402
from howdah.config import loader as configs  # noqa: E402
from howdah.config.options.partition import expanded, is_files  # noqa: E402
from howdah.config.splits import TEST  # noqa: E402
from howdah.errors import ConfigError  # noqa: E402

_BEGIN = "howdah_init_from"
"""Key of the model that the run begins from in the task's state: the same for all its tries."""
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
            # Queued ones do not count: they may wait for this one.
            if RuntimeTaskInstance.get_dr_count(ti.dag_id, run_ids=[run], states=["running"]):
                self.log.info("the run %s is under way: one at a time", run)
                return False
        return True


class CheckRetrainOperator(CheckOperator, SkipMixin):
    """Checks what was sent, and decides the day's keys: the source's partition, appending, the
    model that the run begins from. Within the cool-down after the last retraining began, an alarm's
    run is skipped whole.

    Returns what CheckOperator does, and what PartitionSensor waits for: {"source", "partitions",
    "ready", "wait"}.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._awaited: dict[str, Any] = {}

    def execute(self, context: Context) -> dict[str, Any]:
        with refusals():
            until = self._cooling(context)
        if until is not None:
            self.log.info("the last retraining began too short a time ago: skipped until %s", until)
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
                "nothing says where the labelled rows are", where="source",
                expected="a table or files: daily.retrain.source or data.source of the"
                " installation's defaults, or source of the form",
            )  # fmt: skip
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
        self.log.info("the day: %s, named by %s", day.name, day.by)
        self.log.info("begins from: %s", began or "the base model: nothing is published yet")
        self._note(context)
        return made

    def _begin(self, context: Context, defaults: Mapping[str, Any]) -> str | None:
        """The current version, as it was when this run was first checked: after its own publication
        another one is current, and the run's checkpoints belong to this one."""
        kept = context["task_state_store"]
        known = kept.get(_BEGIN)
        if isinstance(known, dict):
            return known["model"]
        found = self.hook.run(["published", "--json"], config=defaults, task=task_key(context))
        current = found["current"]
        model = f"{found['model']}@{current['version']}" if current else None
        kept.set(_BEGIN, {"model": model})
        return model

    # ------------------------------------------------------------------------------ cool-down
    def _cooling(self, context: Context) -> datetime | None:
        """Until when an alarm's run is skipped; None: this run begins."""
        events = context.get("triggering_asset_events") or {}
        if not events or any(_name(asset) != DRIFT.name for asset in events):
            return None
        began = _began().get(self._model())
        if not began or began[1] == context["ti"].run_id:
            return None
        hours = form.settings().retrain.cooldown_hours
        return days.cooling(datetime.fromisoformat(began[0]), datetime.now(UTC), hours)

    def _note(self, context: Context) -> None:
        """Note that the run has begun; a later alarm counts from then."""
        known, run = _began(), context["ti"].run_id
        if (known.get(self._model()) or ["", None])[1] != run:
            known[self._model()] = [datetime.now(UTC).isoformat(timespec="seconds"), run]
            Variable.set(_BEGAN, known, serialize_json=True)

    def _model(self) -> str:
        sections = trigger_form.sections(trigger_form.installed_defaults())
        return configs.from_dict(sections).model_directory


def _rows_of(source: str, day: days.Day, installed: configs.Config) -> dict[str, Any]:
    """The keys that name the day's rows: partitions of a table, or a file."""
    if not is_files(source):
        table = {"data.source": source, "data.partitions": days.merged(day.partitions)}
        return table | ({} if installed.data.names_table else {"data.format": "hive"})
    if len(day.partitions) > 1:
        raise ConfigError(
            "files of several days are appended by a run for each", where="partition", got=day.name
        )
    part = day.partitions[0]
    made = {"data.source": expanded(source, part), "data.append.part": part.replace("/", ",")}
    return made | ({"data.format": "auto"} if installed.data.names_table else {})


def _awaited(
    source: str, day: days.Day, ready: str | None, installed: configs.Config
) -> dict[str, Any]:
    """What PartitionSensor is asked for. Tables that only Spark's connectors know (Iceberg, Delta,
    JDBC) are waited for by the mark `ready` alone."""
    hive = not installed.data.names_table or installed.data.format == "hive"
    seen = ready is not None or is_files(source) or hive
    return {
        "source": source,
        "partitions": list(day.partitions),
        "ready": ready,
        "wait": day.by == "the date" and seen,
    }


def _began() -> dict[str, Sequence[Any]]:
    found = Variable.get(_BEGAN, default=None, deserialize_json=True)
    return dict(found) if isinstance(found, dict) else {}


def _name(asset: Any) -> str | None:
    return getattr(asset, "name", None)
