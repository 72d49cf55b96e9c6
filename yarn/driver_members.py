"""What the driver knows of a worker: its container, its process, its place in the world."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from howdah import errors
from howdah.errors import HowdahError, TrainingError
from yarn.hang import Pace, View

__all__ = ["Loss", "Member", "Phase"]

Phase = Literal["starting", "ready", "placed", "in", "left", "finished", "ended", "gone"]
"""Of a worker: its process imports; waits for its first world; has been given one; has joined it;
has left it and waits for the next; says that it is done; has ended; the container is gone."""

_RETRY = ("StorageUnavailable", "SafeMode", "StorageError", "ClusterError")
"""Errors of a process that a new one may be spared; any other would meet it again."""


_BUSY_SHARE = 0.1
"""Of a processor, used since the last progress: a rank that uses more computes. Horovod's thread
and our own take some hundredths beside a main thread that hangs; a rank that computes has at least
this share also where ten ranks use one processor."""


@dataclass
class Member:
    """One worker. Times are the driver's monotonic seconds."""

    id: str
    node: str
    facts: dict[str, Any]
    contact: float
    phase: Phase = "starting"
    process: int = 0
    """Number of its training process, 1 for the first."""
    pid: int | None = None
    started: float = 0.0
    """When the process was last ordered to start."""
    ready_since: float = 0.0
    rank: int | None = None
    """In the world that it has been given; None: in none."""
    old_rank: int | None = None
    """In the world whose state it holds."""
    failures: int = 0
    """Processes of this container that have failed."""
    kill_reason: str | None = None
    """Why we have ordered its process to be killed."""
    kill_follows: bool = False
    """It is killed for another's loss, which counts for both."""
    abandoned: bool = False
    """Its world has lost a rank and is not going on: it was asked to end (SIGTERM)."""
    leaving: str | None = None
    """The signal that its agent has been sent by somebody."""
    diagnosis: dict[str, Any] | None = None
    old_step: int | None = None
    """The step of that state."""
    committed: int | None = None
    """Step of its copy in memory."""
    beat: dict[str, Any] = field(default_factory=dict)
    beat_time: float = 0.0
    step: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    kernel: dict[str, Any] = field(default_factory=dict)
    gpus: list[str] = field(default_factory=list)
    """The devices that are its own, for CUDA_VISIBLE_DEVICES."""
    refused: HowdahError | None = None
    """Why its container got no place in the job."""
    _cpu_at_beat: float = 0.0

    @property
    def alive(self) -> bool:
        """Its agent is there."""
        return self.phase != "gone"

    @property
    def running(self) -> bool:
        """Its training process is there, as far as we know."""
        return self.phase not in ("gone", "ended") and self.process > 0

    def begin_process(self, now: float) -> None:
        """A new training process is ordered: nothing that the old one said counts."""
        self.process += 1
        self.phase, self.started = "starting", now
        self.rank = self.old_rank = self.old_step = self.pid = self.committed = None
        self.kill_reason = self.diagnosis = None
        self.kill_follows = self.abandoned = False
        self.beat, self.step, self.kernel, self._cpu_at_beat = {}, {}, {}, 0.0
        self.beat_time = now

    def reported(self, state: dict[str, Any], now: float) -> None:
        """Take what its agent says of the process now."""
        if state.get("process") != self.process:
            return
        self.step = state.get("step", self.step)
        self.data = state.get("data", self.data)
        self.kernel = state.get("kernel") or {}
        if "beat" in state:
            time_of_beat = now - state["beat_age"]
            if state["beat"] != self.beat or time_of_beat > self.beat_time + 0.5:
                self._cpu_at_beat = self.kernel.get("cpu_seconds", 0.0)
                self.beat_time = time_of_beat
            self.beat = state["beat"]

    def view(self, now: float) -> View:
        """As yarn/hang.py looks at it."""
        age = max(0.0, now - self.beat_time)
        since_beat = self.kernel.get("cpu_seconds", 0.0) - self._cpu_at_beat
        idle = self.beat.get("idle_seconds", 0.0) + age
        since_progress = self.beat.get("idle_cpu_seconds", 0.0) + since_beat
        # Its main thread has work, also where others leave it hardly any processor time.
        runs = self.kernel.get("state") == "R"
        return View(
            member=self.id,
            rank=self.rank if self.rank is not None else -1,
            phase=self.beat.get("phase", "import"),
            phase_seconds=self.beat.get("phase_seconds", 0.0) + age,
            idle_seconds=idle,
            silent_seconds=age,
            awake=runs or since_beat > _BUSY_SHARE * age,
            busy=runs or since_progress > _BUSY_SHARE * idle,
            stopped=self.kernel.get("state") in ("T", "t"),
            step_seconds=self.step.get("step_seconds") or 0.0,
        )

    def pace(self) -> Pace | None:
        """How long its steps take; None: not told yet."""
        if self.step.get("step_seconds") is None:
            return None
        return Pace(self.step["step_seconds"], self.step.get("wait_seconds") or 0.0)


@dataclass(frozen=True)
class Loss:
    """The end of a worker's process, or of the worker, that was not its last step."""

    member: str
    node: str
    rank: int | None
    why: str
    exit_code: int | None = None
    """Of the process; negative: the signal. None: it went with its container."""
    lines: tuple[str, ...] = ()
    """The last of its log."""
    failure: dict[str, Any] | None = None
    """What the process itself said of its end (the link's "failed")."""

    preempted: bool = False
    """The queue has taken the container back."""
    follows: bool = False
    """The driver killed it for another's loss."""

    @property
    def consequence(self) -> bool:
        """It ended because another one did."""
        return self.follows or bool(self.failure and self.failure.get("consequence"))

    @property
    def fatal(self) -> bool:
        """A new process would end in the same way."""
        if not self.failure or self.consequence:
            return False
        error = self.failure.get("error") or {}
        return error.get("error") not in _RETRY

    @property
    def who(self) -> str:
        """The worker in words."""
        rank = "a worker without a rank" if self.rank is None else f"rank {self.rank}"
        return f"{rank} on {self.node} ({self.member})"

    def error(self) -> HowdahError:
        """As an error for people: the process's own, or that it was lost."""
        told = (self.failure or {}).get("error")
        lines = "\n".join(self.lines)
        if told and not self.consequence:
            kind = getattr(errors, str(told.get("error")), TrainingError)
            if not (isinstance(kind, type) and issubclass(kind, HowdahError)):
                kind = TrainingError
            fields = {name: told.get(name) for name in ("expected", "got", "remedy")}
            where = "; ".join(filter(None, (told.get("where"), self.who)))
            return kind(told["what"], where=where, **fields)
        return TrainingError(
            f"{self.who} was lost: {self.why}",
            where=f"node {self.node}, container {self.member}",
            expected="its training process to run to the end",
            got="the last lines of its log:\n" + lines if lines else None,
            remedy="`howdah logs` shows the whole log; submitted again, the run goes on from its"
            " newest checkpoint",
        )
