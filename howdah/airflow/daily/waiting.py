"""The trigger of PartitionSensor: starts `howdah partition` at growing pauses.

Airflow's database holds it by class path and arguments: a deferred task of an earlier version is
resumed only while these names stay. A triggerer that takes over begins with the first pause again;
the deadline is a moment and stays.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from howdah.airflow import require

require()

from airflow.sdk.exceptions import AirflowException, AirflowRuntimeError  # noqa: E402
from airflow.triggers.base import BaseTrigger, TriggerEvent  # noqa: E402

from howdah.airflow.failures import HowdahCommandFailed, HowdahCommandRefused  # noqa: E402
from howdah.airflow.hook import HowdahHook  # noqa: E402
from howdah.errors import DataError, HowdahError  # noqa: E402

_GROWTH = 1.5
_END_SECONDS = 5.0
"""How long a look that is under way has to end when the trigger is cancelled."""

# Not asyncio's own threads: a cluster that hangs would hold all of them.
_LOOKS = ThreadPoolExecutor(max_workers=4, thread_name_prefix="howdah-partition")
_ENDS = ThreadPoolExecutor(max_workers=4, thread_name_prefix="howdah-partition-end")


def arguments(partitions: Sequence[str], source: str, ready: str | None) -> list[str]:
    """The command that looks, without --json and --config."""
    asked = ["partition", "--source", source]
    for partition in partitions:
        asked += ["--partition", partition]
    return asked + (["--ready", ready] if ready else [])


def not_come(event: Mapping[str, Any], source: str, partitions: Sequence[str]) -> DataError:
    """The error of a wait that is over."""
    got = f"missing: {', '.join(event.get('missing') or partitions)}; looks: {event['looks']}"
    if event.get("problem"):
        got += f"; the last look failed: {event['problem']}"
    return DataError(
        "the day's rows did not come in time",
        where=source,
        expected=f"{', '.join(partitions)} within the wait (daily.wait_hours)",
        got=got,
        remedy="see what writes them; then clear this task, which waits anew, or trigger a run for"
        " the partition",
    )


class PartitionTrigger(BaseTrigger):
    """Fires when all partitions are there, a look is refused, or the deadline has passed.

    Args:
        conn_id: Connection of the commands.
        config: of the command, nested.
        partitions, source, ready: see PartitionSensor.
        deadline: seconds since 1970.
        pause_seconds, longest_seconds: first and longest pause between two looks.
        key: the task's dag_id, run_id, task_id and map_index.
    """

    def __init__(
        self,
        conn_id: str,
        config: dict[str, Any],
        partitions: list[str],
        source: str,
        ready: str | None,
        deadline: float,
        pause_seconds: float,
        longest_seconds: float,
        key: dict[str, Any],
    ) -> None:
        super().__init__()
        self.conn_id, self.config, self.key = conn_id, config, key
        self.partitions, self.source, self.ready = partitions, source, ready
        self.deadline = deadline
        self.pause_seconds, self.longest_seconds = pause_seconds, longest_seconds
        self._hook: HowdahHook | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """For Airflow's database."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "conn_id": self.conn_id, "config": self.config, "partitions": self.partitions,
                "source": self.source, "ready": self.ready, "deadline": self.deadline,
                "pause_seconds": self.pause_seconds, "longest_seconds": self.longest_seconds,
                "key": self.key,
            },
        )  # fmt: skip

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """One event in every case: a trigger that raises fails its task without a reason."""
        try:
            event = await self._watch()
        except Exception as error:
            self.log.exception("Howdah's trigger has failed")
            found = HowdahError("the wait has failed", got=f"{type(error).__name__}: {error}")
            event = {"error": found.as_dict(), "code": 5}
        yield TriggerEvent(event)

    async def _watch(self) -> dict[str, Any]:
        pause, looks, missing, problem = self.pause_seconds, 0, None, None
        while True:
            # Before the look: the task has just looked, and so may a triggerer that was stopped.
            await asyncio.sleep(max(0.0, min(pause, self.deadline - time.time())))
            pause = min(_GROWTH * pause, self.longest_seconds)
            looks += 1
            try:
                looked = await asyncio.get_running_loop().run_in_executor(_LOOKS, self._look)
            except HowdahCommandRefused as error:
                return {"error": error.details, "code": error.code}
            except (HowdahCommandFailed, HowdahError, AirflowException, AirflowRuntimeError) as e:
                problem = str(e)
                self.log.warning("%s\nlooking again in %.0f s", problem, pause)
            else:
                problem, missing = None, looked["missing"]
                if looked["there"]:
                    self.log.info("%s: there, after %d looks", ", ".join(self.partitions), looks)
                    return {"there": True, "looks": looks}
                self.log.info("missing: %s; next look in %.0f s", ", ".join(missing), pause)
            if time.time() >= self.deadline:
                return {"there": False, "looks": looks, "missing": missing, "problem": problem}

    def _look(self) -> dict[str, Any]:
        self._hook = hook = HowdahHook(self.conn_id)
        try:
            return hook.run(
                [*arguments(self.partitions, self.source, self.ready), "--json"],
                config=self.config, on_line=lambda line: None,
                task="/".join(map(str, self.key.values())),
            )  # fmt: skip
        finally:
            self._hook = None

    async def cleanup(self) -> None:
        """The triggerer stops, or the task was cleared: end a look that is under way."""
        hook = self._hook
        if hook is not None:
            loop = asyncio.get_running_loop()
            await asyncio.shield(loop.run_in_executor(_ENDS, hook.cancel, _END_SECONDS))
