"""A sensor for a day's partition that needs no worker's slot and no Hive client beside Airflow."""

from __future__ import annotations

import howdah.airflow.required

import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from airflow.sdk import Context

from howdah.airflow import failures
from howdah.airflow.application.ownership import TaskKey
from howdah.airflow.daily.waiting import PartitionTrigger, arguments, not_come
from howdah.airflow.operators import HowdahOperator

_DEADLINE = "howdah_deadline"
"""Key in the task's state of the deadline (seconds since 1970), the same for all tries."""


class PartitionSensor(HowdahOperator):
    """Waits until partitions of a table, or a day's files, exist; returns them.

    `howdah partition` checks on the machine where commands run: once in the task itself, then from
    a trigger, at pauses that grow by half.

    Args:
        partitions: partitions, each a=b/c=d.
        source: a table, or files with {column} for a partition's value.
        ready: a file or directory that marks a complete day; checked instead.
        wait: False: the partitions' writer started the run, so they exist; nothing is checked.
        wait_hours: time limit from the first try on; then the task fails for good.
        first_pause_seconds, longest_pause_seconds: pauses between two checks.
    """

    template_fields: Sequence[str] = (
        *HowdahOperator.template_fields, "partitions", "source", "ready", "wait",
    )  # fmt: skip

    def __init__(
        self,
        *,
        partitions: Sequence[str] | Any,
        source: str,
        ready: str | None = None,
        wait: bool | Any = True,
        wait_hours: float = 12.0,
        first_pause_seconds: float = 60.0,
        longest_pause_seconds: float = 900.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.partitions, self.source, self.ready, self.wait = partitions, source, ready, wait
        self.wait_hours = wait_hours
        self.first_pause_seconds = first_pause_seconds
        self.longest_pause_seconds = longest_pause_seconds

    def execute(self, context: Context) -> dict[str, Any]:
        """Check once; if a partition is missing, defer the task to a trigger."""
        if str(self.wait).lower() == "false":
            self.log.info("%s: named by its writer, so it exists", ", ".join(self.partitions))
            return self._result()
        deadline = self._deadline(context)
        try:
            looked = self.command(context, *arguments(self.partitions, self.source, self.ready))
        except failures.HowdahCommandRefused:
            raise
        except failures.HowdahCommandFailed as error:
            self.log.warning("%s\nchecking again until the deadline", error)
            looked = {"there": False}
        if looked["there"]:
            return self._end(context)
        self._defer(context, deadline)

    def _deadline(self, context: Context) -> float:
        kept = context["task_state_store"]
        deadline = kept.get(_DEADLINE)
        if not isinstance(deadline, int | float):
            deadline = time.time() + 3600.0 * self.wait_hours
            kept.set(_DEADLINE, deadline)
        return float(deadline)

    def _defer(self, context: Context, deadline: float) -> NoReturn:
        self.log.info("%s: missing, waiting", ", ".join(self.partitions))
        self.defer(
            trigger=PartitionTrigger(
                conn_id=self.conn_id, config=dict(self.config or {}),
                partitions=list(self.partitions), source=self.source, ready=self.ready,
                deadline=deadline, pause_seconds=self.first_pause_seconds,
                longest_seconds=self.longest_pause_seconds,
                key=TaskKey.of(context["ti"]).as_dict(),
            ),
            method_name="execute_complete",
        )  # fmt: skip
        raise AssertionError("defer() raises")

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Return the partitions that the trigger has seen, or raise its error."""
        if event.get("there"):
            return self._end(context)
        context["task_state_store"].delete(_DEADLINE)  # a cleared task gets a new deadline
        if event.get("error"):
            raise failures.failed(event["error"], int(event["code"]))
        raise failures.of_error(not_come(event, self.source, self.partitions))

    def _end(self, context: Context) -> dict[str, Any]:
        context["task_state_store"].delete(_DEADLINE)
        self.log.info("%s: exists", ", ".join(self.partitions))
        return self._result()

    def _result(self) -> dict[str, Any]:
        return {"source": self.source, "partitions": list(self.partitions)}
