"""The job's status, as `<run.directory>/job/status.json` and the job's page show it."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from howdah.core.speed import Speed
from howdah.jobs import hang
from howdah.jobs.driver.job import Job

_EVENTS = 50
_LINES = 200
_EVALUATIONS = 100
"""Evaluations that the status keeps, the newest ones."""
_STEPPING = ("compute", "wait", "input")
"""Phases of rank 0 that belong to a step; it also waits for others at an evaluation's end."""
_CURVE = 500
"""Most points of the loss curve; when there are more, every other one is dropped."""


class JobStatus:
    """Collects a job's events, console lines, progress and checkpoints, even of ended ranks.

    Args:
        application: the application's id.
        attempt: the number of the application's driver.
    """

    def __init__(self, application: str, attempt: int) -> None:
        self._application, self._attempt = application, attempt
        self._started = time.time()
        self._events: deque[dict[str, Any]] = deque(maxlen=_EVENTS)
        self._lines: deque[tuple[int, str]] = deque(maxlen=_LINES)
        self._serial = 0
        self._curve: list[tuple[int, float]] = []
        self._step: dict[str, Any] = {}
        self._speed, self._clock, self._looked = Speed(), 0.0, time.monotonic()
        self._checkpoint: dict[str, Any] | None = None
        self._saving: int | None = None
        self._mlflow_run: str | None = None
        self._evaluations: deque[dict[str, Any]] = deque(maxlen=_EVALUATIONS)
        self.page: str | None = None

    def event(self, what: str, *, routine: bool = False) -> None:
        """Add an event.

        Args:
            routine: it comes in every job, and `howdah train` does not show it.
        """
        self._events.append({"time": time.time(), "what": what, "routine": routine})

    def take(self, message: dict[str, Any]) -> bool:
        """Take a training process's message if it belongs in the status; False if it does not."""
        if message["type"] == "say":
            self._serial += 1
            self._lines.append((self._serial, str(message["line"])))
        elif message["type"] == "checkpoint":
            saved = {"step": message["step"], "path": message["path"], "time": time.time()}
            self._checkpoint = saved
            self._saving = None
            self.event(f"checkpoint of step {message['step']}", routine=True)
        elif message["type"] == "saving":
            self._saving = message["step"]
        elif message["type"] == "evaluation":
            self._evaluations.append({name: message[name] for name in ("step", "split", "metrics")})
        elif message["type"] == "tracking":
            self._mlflow_run = message["mlflow_run_id"]
        else:
            return False
        return True

    def cut_short(self) -> str:
        """The sentence for a job that ended while a checkpoint was being saved; "" if none was."""
        if self._saving is None:
            return ""
        saved = self._checkpoint
        newest = "an earlier attempt's, if any" if saved is None else saved["path"]
        return f"the save of step {self._saving} was cut short; newest complete one: {newest}"

    def progress(self, job: Job) -> float:
        """Update from rank 0's newest report, and return the fraction that is done, 0 to 1."""
        leader = next((m for m in job.members.values() if m.running and m.rank == 0), None)
        now = time.monotonic()
        if leader is not None and leader.beat.get("phase") in _STEPPING:
            self._clock += now - self._looked
        self._looked = now
        if leader is not None and leader.step and leader.step != self._step:
            self._step = leader.step
            step, loss = leader.step.get("step"), leader.step.get("loss")
            if isinstance(step, int) and isinstance(loss, int | float):
                self._mark(step, float(loss))
            if isinstance(step, int):
                self._speed.mark(self._clock, step)
        if job.done_since is not None:
            return 1.0
        total = self._step.get("total_steps")
        return min(1.0, self._step.get("step", 0) / total) if total else 0.0

    def _mark(self, step: int, loss: float) -> None:
        while self._curve and self._curve[-1][0] >= step:
            self._curve.pop()  # a repeated step replaces its earlier point
        self._curve.append((step, loss))
        if len(self._curve) > _CURVE:
            self._curve = self._curve[::2]

    @property
    def step(self) -> int | None:
        """The newest step of rank 0."""
        step = self._step.get("step")
        return step if isinstance(step, int) else None

    def curve(self) -> list[tuple[int, float]]:
        """(step, loss) of rank 0."""
        return list(self._curve)

    def status(self, job: Job) -> dict[str, Any]:
        """The contents of status.json, whose keys yarn/ and howdah/airflow/ read."""
        step = self._step
        ranks = self._ranks(job)
        return {
            "application": self._application,
            "attempt": self._attempt,
            "state": _state(job),
            "generation": job.worlds.generation,
            "world_size": len(job.worlds.slots) if job.mode == "running" else 0,
            "fewest_workers": job.limits.fewest,
            "most_workers": job.limits.most,
            "wanted": job.workers.target,
            "step": step.get("step"),
            "total_steps": step.get("total_steps"),
            "epoch": step.get("epoch"),
            "loss": step.get("loss"),
            "examples_per_second": step.get("examples_per_second"),
            "eta_seconds": self._eta(job),
            "last_checkpoint": self._checkpoint,
            "saving": self._saving,
            "evaluations": list(self._evaluations),
            "restarts": job.budget.restarts,
            "preemptions": job.budget.preemptions,
            "tries": job.budget.tries,
            "excluded_nodes": job.nodes.all_excluded(),
            "ranks": ranks,
            "events": list(self._events),
            "lines": [list(line) for line in self._lines],
            "error": job.error.as_dict() if job.error is not None else None,
            "exit_code": exit_code(job) if job.mode == "over" else None,
            "page": self.page,
            "mlflow_run_id": self._mlflow_run,
            "started": self._started,
            "updated": time.time(),
        }

    def _ranks(self, job: Job) -> list[dict[str, Any]]:
        now = time.monotonic()
        members = sorted(
            (m for m in job.members.values() if m.alive and m.process),
            key=lambda m: (m.rank is None, m.rank or 0),
        )
        paces = {m.rank: pace for m in members if m.rank is not None and (pace := m.pace())}
        slow = hang.stragglers(paces)
        ranks = []
        for member in members:
            view, pace = member.view(now), member.pace()
            ranks.append(
                {
                    "rank": member.rank,
                    "container": member.id,
                    "node": member.node,
                    "pid": member.pid,
                    "process": member.process,
                    "state": member.phase,
                    "phase": view.phase,
                    "phase_seconds": round(view.phase_seconds, 1),
                    "doing": str(member.beat.get("doing") or ""),
                    "silent_seconds": round(view.silent_seconds, 1),
                    "stopped": view.stopped,
                    "step": member.step.get("step"),
                    "committed": member.committed,
                    "step_seconds": pace.step_seconds if pace else None,
                    "wait_seconds": pace.wait_seconds if pace else None,
                    "straggler": member.rank in slow,
                    "resident_bytes": member.kernel.get("resident_bytes"),
                    "data": {k: v for k, v in member.data.items() if k not in ("type", "process")},
                }
            )
        return ranks

    def _eta(self, job: Job) -> float | None:
        total = self._step.get("total_steps")
        if job.mode != "running" or not total:
            return None
        seconds = self._speed.left(self._clock, total)
        return None if seconds is None else round(seconds, 1)


def exit_code(job: Job) -> int:
    """The exit code of the driver and of `howdah submit --wait`."""
    return 0 if job.error is None else job.error.exit_code


def _state(job: Job) -> str:
    """The job's state in one word."""
    if job.mode == "over":
        if job.error is None:
            return "finished"
        return "killed" if job.stopped else "failed"
    if job.mode == "ending":
        return "running" if job.done_since is not None else "stopping"
    if job.mode == "running":
        return "running"
    if job.worlds.generation == 0 and job.mode == "waiting":
        present = sum(member.alive for member in job.members.values())
        return "starting" if present >= job.workers.target else "waiting"
    in_a_world = any(member.phase in ("in", "left") for member in job.members.values())
    return "resizing" if job.limits.elastic and in_a_world else "restarting"
