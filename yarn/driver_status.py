"""What people are told of a job: `<run.directory>/yarn/status.json`, and the job's page."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from howdah.errors import as_dict
from howdah.speed import Speed
from yarn import hang
from yarn.driver_job import Job

__all__ = ["Chronicle"]

_EVENTS = 50
_LINES = 200
_STEPPING = ("compute", "wait", "input")
"""Phases of rank 0 in which steps are taken; it also waits for others in an evaluation's end."""
_CURVE = 500
"""Points of the loss curve; when there are more, every other one is left out."""


class Chronicle:
    """Remembers what a job has told, also of ranks that are gone; as dict on demand.

    Args:
        application: its id.
        attempt: which of the application's drivers this is.
    """

    def __init__(self, application: str, attempt: int) -> None:
        self._application, self._attempt = application, attempt
        self._started = time.time()
        self._events: deque[dict[str, Any]] = deque(maxlen=_EVENTS)
        self._lines: deque[tuple[int, str]] = deque(maxlen=_LINES)
        self._serial = 0
        self._curve: list[tuple[int, float]] = []
        self._every = 1
        self._step: dict[str, Any] = {}
        self._speed, self._clock, self._looked = Speed(), 0.0, time.monotonic()
        self._checkpoint: dict[str, Any] | None = None
        self._mlflow_run: str | None = None
        self.page: str | None = None

    def event(self, what: str) -> None:
        """Something has happened that people should know."""
        self._events.append({"time": time.time(), "what": what})

    def heard(self, message: dict[str, Any]) -> bool:
        """Take a message of a training process that is for people; False if it is none."""
        if message["type"] == "say":
            self._serial += 1
            self._lines.append((self._serial, str(message["line"])))
        elif message["type"] == "checkpoint":
            self._checkpoint = {"step": message["step"], "path": message["path"]}
            self.event(f"checkpoint of step {message['step']}")
        elif message["type"] == "tracking":
            self._mlflow_run = message["mlflow_run_id"]
        else:
            return False
        return True

    def progress(self, job: Job) -> float:
        """Take over how far rank 0 is; the done fraction, 0 to 1."""
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
            self._curve.pop()  # steps that are repeated: the last one counts
        self._curve.append((step, loss))
        if len(self._curve) > _CURVE:
            self._curve = self._curve[::2]

    def curve(self) -> list[tuple[int, float]]:
        """(step, loss) of rank 0."""
        return list(self._curve)

    def status(self, job: Job) -> dict[str, Any]:
        """The whole of status.json; howdah/yarn's readers rely on its keys."""
        step = self._step
        ranks = self._ranks(job)
        return {
            "application": self._application,
            "attempt": self._attempt,
            "state": _state(job),
            "generation": job.generation,
            "world_size": len(job.world) if job.mode == "running" else 0,
            "wanted": job.wanted,
            "step": step.get("step"),
            "total_steps": step.get("total_steps"),
            "epoch": step.get("epoch"),
            "loss": step.get("loss"),
            "examples_per_second": step.get("examples_per_second"),
            "eta_seconds": self._eta(job),
            "last_checkpoint": self._checkpoint,
            "restarts": job.ledger.restarts,
            "preemptions": job.ledger.preemptions,
            "tries": job.tries,
            "ranks": ranks,
            "events": list(self._events),
            "lines": [list(line) for line in self._lines],
            "error": as_dict(job.error) if job.error is not None else None,
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
        found = []
        for member in members:
            view, pace = member.view(now), member.pace()
            found.append(
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
        return found

    def _eta(self, job: Job) -> float | None:
        total = self._step.get("total_steps")
        if job.mode != "running" or not total:
            return None
        left = self._speed.left(self._clock, total)
        return None if left is None else round(left, 1)


def exit_code(job: Job) -> int:
    """What the driver, and `howdah submit --wait`, exit with."""
    return 0 if job.error is None else job.error.exit_code


def _state(job: Job) -> str:
    """One word for people and scripts."""
    if job.mode == "over":
        if job.error is None:
            return "finished"
        return "killed" if job.stopped else "failed"
    if job.mode == "ending":
        return "running" if job.done_since is not None else "stopping"
    if job.mode == "running":
        return "running"
    if job.generation == 0 and job.mode == "waiting":
        present = sum(member.alive for member in job.members.values())
        return "starting" if present >= job.wanted else "waiting"
    if any(member.phase in ("in", "left") for member in job.members.values()):
        return "resizing" if job.limits.elastic else "restarting"
    return "restarting"
