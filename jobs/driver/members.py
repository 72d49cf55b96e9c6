"""A worker as the driver knows it: its container, its process, its rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from howdah.errors import HowdahError, TrainingError, WorkersLost
from howdah.jobs.driver.faults import Fault
from howdah.jobs.hang import Pace, View

Phase = Literal["starting", "ready", "placed", "in", "left", "finished", "ended", "gone"]
"""Of a worker: its process imports; waits for its first world; has been given a rank; has joined
the world; has left it and waits for the next; reports that it is done; has ended; the container is
gone."""

UNHEARD_SECONDS = 6.0
"""Silence of an agent, which reports and asks for orders every few seconds (jobs/driver/driver.py),
after which the state of its process is not known."""
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
    unfit: bool = False
    """Its container is to be given back for another: its process failed of something on its
    node."""
    kill_reason: str | None = None
    """Why the driver has ordered its process to be killed."""
    kill_follows: bool = False
    """It is killed because another worker was lost, which counts for both."""
    abandoned: bool = False
    """Its world has lost a rank and cannot go on: it was asked to end (SIGTERM)."""
    leaving: str | None = None
    """The signal that its agent has received."""
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
    """Its devices, for CUDA_VISIBLE_DEVICES."""
    refused: HowdahError | None = None
    """Why its container was refused."""
    _cpu_at_beat: float = 0.0

    @property
    def alive(self) -> bool:
        """Its agent runs."""
        return self.phase != "gone"

    @property
    def running(self) -> bool:
        """Its training process runs, as far as the driver knows."""
        return self.phase not in ("gone", "ended") and self.process > 0

    def heard(self, now: float) -> bool:
        """What is known of its process is current: its agent is not silent."""
        return now - self.contact <= UNHEARD_SECONDS

    def delay(self, seconds: float) -> None:
        """Do not count the seconds for which the driver was stopped."""
        self.contact += seconds
        self.beat_time += seconds
        self.started += seconds
        self.ready_since += seconds

    def begin_process(self, now: float) -> None:
        """Forget the reports of an earlier training process: a new one is ordered."""
        self.process += 1
        self.phase, self.started = "starting", now
        self.rank = self.old_rank = self.old_step = self.pid = self.committed = None
        self.kill_reason = self.diagnosis = None
        self.kill_follows = self.abandoned = False
        self.beat, self.step, self.kernel, self._cpu_at_beat = {}, {}, {}, 0.0
        self.beat_time = now

    def reported(self, state: dict[str, Any], now: float) -> None:
        """Take its agent's report of the process's state."""
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
        """The input of jobs/hang.py."""
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
        """How long its steps take; None: not reported yet."""
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
    """The process's own message about its end ("failed")."""

    preempted: bool = False
    """The cluster has preempted the container."""
    follows: bool = False
    """The driver killed it because another worker was lost."""
    fault: Fault = "unknown"
    """Whose it is, by the process's error (jobs/driver/faults.py)."""
    step: int | None = None
    """Steps done when the process failed; None: not known."""

    @property
    def consequence(self) -> bool:
        """It ended because another one did."""
        return self.follows or bool(self.failure and self.failure.get("consequence"))

    @property
    def fatal(self) -> bool:
        """A new process would end in the same way, on whatever node."""
        return self.fault == "job" and not self.consequence

    @property
    def who(self) -> str:
        """The worker, for messages."""
        rank = "a worker without a rank" if self.rank is None else f"rank {self.rank}"
        return f"{rank} on {self.node} ({self.member})"

    @property
    def what(self) -> str:
        """Who was lost and why, for messages."""
        failure = self.failure or {}
        asked = (failure.get("error") or {}).get("error") in ("Interrupted", "Terminated")
        vain = failure.get("consequence") and not asked  # it was not ended by a signal
        after = ", as another rank was lost or did not come to a collective" if vain else ""
        return f"{self.who} was lost: {self.why}{after}"

    @property
    def of_a_world(self) -> bool:
        """It had a rank, or its process has ended: no container that was lost before that."""
        return self.rank is not None or self.exit_code is not None

    def error(self) -> HowdahError:
        """The process's own error, or that it was lost."""
        error = (self.failure or {}).get("error")
        lines = "\n".join(self.lines)
        if error and not self.consequence:
            where = "; ".join(filter(None, (error.get("where"), self.who)))
            return TrainingError.from_dict({**error, "where": where})
        return WorkersLost(
            self.what,
            where=f"node {self.node}, container {self.member}",
            expected="its training process to run to the end",
            got="the last lines of its log:\n" + lines if lines else None,
            remedy="`howdah logs` shows the whole log; submitted again, the run goes on from its"
            " newest checkpoint",
        )
