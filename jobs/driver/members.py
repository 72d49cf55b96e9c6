"""The driver's view of a worker: its container, its process, its rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from howdah.errors import HowdahError, TrainingError, WorkersLost
from howdah.jobs.driver.faults import Fault
from howdah.jobs.hang import Pace, View

Phase = Literal["starting", "ready", "placed", "in", "left", "finished", "ended", "gone"]
"""A worker's phase: its process imports; waits for its first world; has a rank; has joined the
world; has left it and waits for the next; reports that it is done; has ended; its container has
ended."""

UNHEARD_SECONDS = 6.0
"""Silence of an agent after which the state of its process counts as unknown; it reports and polls
every few seconds (jobs/driver/driver.py)."""
_BUSY_SHARE = 0.1
"""A rank computes if it has used more than this share of a processor since its last progress.
Horovod's thread and our own take some hundredths beside a main thread that hangs; a rank that
computes has at least this share even where ten ranks use one processor."""


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
    """Time when the process was last ordered to start."""
    ready_since: float = 0.0
    rank: int | None = None
    """Rank in its present world; None: it has no world."""
    old_rank: int | None = None
    """Rank in the world whose state it holds."""
    failures: int = 0
    """Number of processes of this container that have failed."""
    unfit: bool = False
    """Its container must be exchanged, since its process failed because of the node."""
    kill_reason: str | None = None
    """Why the driver has ordered its process to be killed."""
    kill_follows: bool = False
    """It is killed because another worker was lost, whose loss counts for both."""
    abandoned: bool = False
    """It was sent SIGTERM, since its world has lost a rank and cannot go on."""
    leaving: str | None = None
    """The signal that its agent has received."""
    diagnosis: dict[str, Any] | None = None
    old_step: int | None = None
    """Step of the state that it holds."""
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
        """True while its agent runs."""
        return self.phase != "gone"

    @property
    def running(self) -> bool:
        """True while its training process runs, as far as the driver knows."""
        return self.phase not in ("gone", "ended") and self.process > 0

    def heard(self, now: float) -> bool:
        """True unless its agent is silent, so that the state of its process is current."""
        return now - self.contact <= UNHEARD_SECONDS

    def delay(self, seconds: float) -> None:
        """Discount the seconds for which the driver was stopped."""
        self.contact += seconds
        self.beat_time += seconds
        self.started += seconds
        self.ready_since += seconds

    def begin_process(self, now: float) -> None:
        """Discard the reports of an earlier training process when a new one is ordered."""
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
        """The worker's state for jobs/hang.py."""
        age = max(0.0, now - self.beat_time)
        since_beat = self.kernel.get("cpu_seconds", 0.0) - self._cpu_at_beat
        idle = self.beat.get("idle_seconds", 0.0) + age
        since_progress = self.beat.get("idle_cpu_seconds", 0.0) + since_beat
        # State R: its main thread has work, even if other processes leave it hardly any CPU time.
        runs = self.kernel.get("state") == "R"
        stopped = self.kernel.get("state") in ("T", "t")
        return View(
            member=self.id,
            rank=self.rank if self.rank is not None else -1,
            phase=self.beat.get("phase", "import"),
            phase_seconds=self.beat.get("phase_seconds", 0.0) + age,
            idle_seconds=idle,
            silent_seconds=age,
            # One that is stopped may have computed for a second after its last report.
            awake=not stopped and (runs or since_beat > _BUSY_SHARE * age),
            busy=runs or since_progress > _BUSY_SHARE * idle,
            stopped=stopped,
            step_seconds=self.step.get("step_seconds") or 0.0,
        )

    def pace(self) -> Pace | None:
        """The duration of its steps; None: not reported yet."""
        if self.step.get("step_seconds") is None:
            return None
        return Pace(self.step["step_seconds"], self.step.get("wait_seconds") or 0.0)


@dataclass(frozen=True)
class Loss:
    """The early end of a worker's process, or of the worker."""

    member: str
    node: str
    rank: int | None
    why: str
    exit_code: int | None = None
    """The process's exit code; negative: the signal. None: it ended with its container."""
    lines: tuple[str, ...] = ()
    """The last lines of its log."""
    failure: dict[str, Any] | None = None
    """The process's message about its end ("failed")."""

    preempted: bool = False
    """The cluster has preempted the container."""
    follows: bool = False
    """The driver killed it because another worker was lost."""
    fault: Fault = "unknown"
    """What is at fault according to the process's error (jobs/driver/faults.py)."""
    step: int | None = None
    """Steps completed when the process failed; None: not known."""

    @property
    def consequence(self) -> bool:
        """True if it ended because another worker did."""
        return self.follows or bool(self.failure and self.failure.get("consequence"))

    @property
    def fatal(self) -> bool:
        """True if a new process would end in the same way on any node."""
        return self.fault == "job" and not self.consequence

    @property
    def who(self) -> str:
        """The worker's description for messages."""
        rank = "a worker without a rank" if self.rank is None else f"rank {self.rank}"
        return f"{rank} on {self.node} ({self.member})"

    @property
    def what(self) -> str:
        """The message that names the worker and why it was lost."""
        failure = self.failure or {}
        signalled = (failure.get("error") or {}).get("error") in ("Interrupted", "Terminated")
        vain = failure.get("consequence") and not signalled
        after = ", after another rank was lost or missed a collective" if vain else ""
        return f"{self.who} was lost: {self.why}{after}"

    @property
    def of_a_world(self) -> bool:
        """True if it had a rank or its process has ended; False if it was lost before that."""
        return self.rank is not None or self.exit_code is not None

    def error(self) -> HowdahError:
        """The process's own error, or else one that reports its loss."""
        error = (self.failure or {}).get("error")
        lines = "\n".join(self.lines)
        if error and not self.consequence:
            where = "; ".join(filter(None, (error.get("where"), self.who)))
            return TrainingError.from_dict({**error, "where": where})
        return WorkersLost(
            self.what,
            where=f"node {self.node}, container {self.member}",
            got="the last lines of its log:\n" + lines if lines else None,
            remedy="`howdah logs` shows the whole log; a resubmission resumes from the newest"
            " checkpoint",
        )
