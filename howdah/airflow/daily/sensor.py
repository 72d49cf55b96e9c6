"""Wait for a day's partition without a worker's slot, and without a Hive client beside Airflow."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from howdah.airflow import require

require()

from airflow.sdk import Context  # noqa: E402

from howdah.airflow import failures  # noqa: E402
from howdah.airflow.application.ownership import TaskKey  # noqa: E402
from howdah.airflow.daily.waiting import PartitionTrigger, arguments, not_come  # noqa: E402
from howdah.airflow.operators import HowdahOperator  # noqa: E402

_DEADLINE = "howdah_deadline"
"""Key of the deadline (seconds since 1970) in the task's state: it is the same for all tries."""


class PartitionSensor(HowdahOperator):
    """Waits until partitions of a table, or a day's files, are there; returns them.

    `howdah partition` looks, on the machine where commands run: once in the task itself, then from
    a trigger, at pauses that grow by half.

    Args:
        partitions: each a=b/c=d.
        source: a table, or files with {column} for a partition's value.
        ready: a file or directory that marks a complete day, looked for instead.
        wait: False: the day was named by the user or process that made it; nothing is looked for.
        wait_hours: from the first try on; then the task fails for good.
        first_pause_seconds, longest_pause_seconds: between two looks.
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
        """Look once; if it is not there, this defers the task to a trigger."""
        if str(self.wait).lower() == "false":
            self.log.info("%s: named by its writer, not waited for", ", ".join(self.partitions))
            return self._found()
        deadline = self._deadline(context)
        try:
            looked = self.command(context, *arguments(self.partitions, self.source, self.ready))
        except failures.HowdahCommandRefused:
            raise
        except failures.HowdahCommandFailed as error:
            self.log.warning("%s\nlooking again until the deadline", error)
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
        self.log.info("%s: not there yet, waiting", ", ".join(self.partitions))
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
        """The partitions are there, or the wait is over."""
        if event.get("there"):
            return self._end(context)
        context["task_state_store"].delete(_DEADLINE)  # a cleared task waits anew
        if event.get("error"):
            raise failures.failed(event["error"], int(event["code"]))
        raise failures.of_error(not_come(event, self.source, self.partitions))

    def _end(self, context: Context) -> dict[str, Any]:
        context["task_state_store"].delete(_DEADLINE)
        self.log.info("%s: there", ", ".join(self.partitions))
        return self._found()

    def _found(self) -> dict[str, Any]:
        return {"source": self.source, "partitions": list(self.partitions)}
