"""Workers in a Spark application: each is a Spark job of one task, in its own job group.

A barrier stage would not do: Spark cannot recover from the loss of one of its tasks. The job's
driver waits for all its workers itself.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from howdah.core import threads
from howdah.jobs.backend import Container
from howdah.jobs.clusters.backend import CallsDriver
from howdah.jobs.clusters.worker import Assignment, run_agent

_LOST = ("ExecutorLostFailure", "executor lost", "Remote RPC client disassociated")
_MESSAGE_CHARACTERS = 500
_ABORT_SECONDS = 2.0
"""How long Spark may take to fail a job whose task has failed, or to hand over its result."""


@dataclass
class _Call:
    """One Spark job."""

    done: bool = False
    ran: bool = False
    """Its task has been seen running."""
    idle: float | None = None
    """Monotonic time since which its task has not been seen running."""
    code: int | None = None
    lost: bool = False
    message: str = ""
    node: str = ""
    """Host name of the task, which it reports only at its end."""


class SparkDriver(CallsDriver[_Call]):
    """The backend whose containers are tasks of the session's application."""

    def __init__(self, context: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._context = context

    def begin(self, assignment: Assignment) -> _Call:
        call = _Call()

        def failed(error: Exception) -> None:
            call.code, call.message, call.done = 1, str(error)[:_MESSAGE_CHARACTERS], True

        # Py4J pairs each Python thread with a JVM thread, which holds the job group.
        name = f"spark-{assignment.container}"
        threads.start(self._run, assignment, call, name=name, failed=failed)
        return call

    def _run(self, assignment: Assignment, call: _Call) -> None:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        name = assignment.container
        # An interrupted task's thread ends its Python process; the kernel then ends the agent.
        self._context.setJobGroup(name, "a worker of a Howdah job", interruptOnCancel=True)
        try:
            # The assignment is in the closure, since `parallelize` would write its key to a file.
            task = self._context.parallelize([0], 1).map(_Task(assignment))
            node, code = task.collect()[0]
            if not call.done:
                call.node = node
                call.code, call.lost = (1, True) if code is None else (code, False)
        except (Py4JError, PySparkException, OSError) as error:
            text = str(error)
            if not call.done:
                call.code, call.lost = 1, any(word in text for word in _LOST)
                call.message = text[:_MESSAGE_CHARACTERS]
        call.done = True

    def look(self, name: str, call: _Call) -> Container:
        if call.done:
            reason = None if call.code == 0 else "lost" if call.lost else "failed"
            return Container(name, call.node, "ended", call.code, reason, call.message)
        tracker = self._context.statusTracker()
        for number in tracker.getJobIdsForGroup(name):
            job = tracker.getJobInfo(number)
            for stage in job.stageIds if job is not None else ():
                info = tracker.getStageInfo(stage)
                if info is not None and info.numActiveTasks:
                    call.ran, call.idle = True, None
                    return Container(name, call.node, "running")
        if not call.ran:
            return Container(name, "", "requested")
        call.idle = call.idle or time.monotonic()
        if time.monotonic() - call.idle > _ABORT_SECONDS:
            # Spark does not fail the tasks of a lost node: they would wait for another executor.
            call.code, call.lost, call.done = 1, True, True
            call.message = "Spark has lost the executor of its task"
            self.end(name, call)
        return Container(name, call.node, "running")

    def end(self, name: str, call: _Call) -> None:
        self._context.cancelJobGroup(name)


@dataclass(frozen=True)
class _Task:
    """The function of a Spark task: it runs the agent and returns (host, exit code).

    The exit code is None where Spark has retried the task of a lost worker: only the job's driver
    decides whether to replace a worker.
    """

    assignment: Assignment

    def __call__(self, _: int) -> tuple[str, int | None]:
        from pyspark import TaskContext

        context = TaskContext.get()
        if context.attemptNumber() > 0:
            return os.uname().nodename, None
        devices = context.resources().get("gpu")
        env = {} if devices is None else {"CUDA_VISIBLE_DEVICES": ",".join(devices.addresses)}
        return os.uname().nodename, run_agent(self.assignment, env)
