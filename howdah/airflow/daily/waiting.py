"""The trigger of PartitionSensor: starts `howdah partition` at growing pauses.

Airflow's database holds it by class path and arguments, so renaming either breaks tasks that are
deferred during an upgrade. A triggerer that takes over begins with the first pause again; the
deadline is a point in time and stays.
"""

from __future__ import annotations

import howdah.airflow.required

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from airflow.sdk.exceptions import AirflowException, AirflowRuntimeError
from airflow.triggers.base import BaseTrigger, TriggerEvent

from howdah.airflow.failures import HowdahCommandFailed, HowdahCommandRefused
from howdah.airflow.hook import HowdahHook
from howdah.errors import DataError, HowdahError

_GROWTH = 1.5
_END_SECONDS = 5.0
"""Time limit for a running check to end when the trigger is cancelled."""

# Separate from asyncio's threads: a cluster that hangs would block all of them.
_LOOKS = ThreadPoolExecutor(max_workers=4, thread_name_prefix="howdah-partition")
_ENDS = ThreadPoolExecutor(max_workers=4, thread_name_prefix="howdah-partition-end")


def arguments(partitions: Sequence[str], source: str, ready: str | None) -> list[str]:
    """The command that checks, without --json and --config."""
    words = ["partition", "--source", source]
    for partition in partitions:
        words += ["--partition", partition]
    return words + (["--ready", ready] if ready else [])


def not_come(event: Mapping[str, Any], source: str, partitions: Sequence[str]) -> DataError:
    """The error after the deadline."""
    got = f"missing after {event['looks']} checks: {', '.join(event.get('missing') or partitions)}"
    if event.get("problem"):
        got += f"; the last check failed: {event['problem']}"
    return DataError(
        "the day's rows did not arrive before the deadline (daily.wait_hours)",
        where=source,
        got=got,
        remedy="check the process that writes them; then clear this task, which waits again, or"
        " trigger a run for the partition",
    )


class PartitionTrigger(BaseTrigger):
    """Fires when all partitions exist, a check is refused, or the deadline has passed.

    Args:
        conn_id: Connection of the commands.
        config: the command's configuration, nested.
        partitions, source, ready: see PartitionSensor.
        deadline: seconds since 1970.
        pause_seconds, longest_seconds: first and longest pause between two checks.
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
        """Class path and arguments, for Airflow's database."""
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
        """Yield one event in every case: a trigger that raises fails its task without a reason."""
        try:
            event = await self._watch()
        except Exception as error:
            self.log.exception("Howdah's trigger failed")
            failure = HowdahError("the wait failed", got=f"{type(error).__name__}: {error}")
            event = {"error": failure.as_dict(), "code": 5}
        yield TriggerEvent(event)

    async def _watch(self) -> dict[str, Any]:
        pause, looks, missing, problem = self.pause_seconds, 0, None, None
        while True:
            # Pause first: the task, or a triggerer that was stopped, may have checked just now.
            await asyncio.sleep(max(0.0, min(pause, self.deadline - time.time())))
            pause = min(_GROWTH * pause, self.longest_seconds)
            looks += 1
            try:
                looked = await asyncio.get_running_loop().run_in_executor(_LOOKS, self._look)
            except HowdahCommandRefused as error:
                return {"error": error.details, "code": error.code}
            except (HowdahCommandFailed, HowdahError, AirflowException, AirflowRuntimeError) as e:
                problem = str(e)
                self.log.warning("%s\nchecking again in %.0f s", problem, pause)
            else:
                problem, missing = None, looked["missing"]
                if looked["there"]:
                    self.log.info("%s: exists, after %d checks", ", ".join(self.partitions), looks)
                    return {"there": True, "looks": looks}
                self.log.info("missing: %s; next check in %.0f s", ", ".join(missing), pause)
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
        """End a running check: the triggerer stops, or the task was cleared."""
        hook = self._hook
        if hook is not None:
            loop = asyncio.get_running_loop()
            await asyncio.shield(loop.run_in_executor(_ENDS, hook.cancel, _END_SECONDS))
