"""The heartbeat of a training process: it shows that the process runs, its phase and its progress.

A separate thread reports every second which phase the main thread is in, for how long, and how long
ago it last made progress (howdah/core/activity.py). A stopped process reports nothing; a process
whose main thread hangs reports no progress. Reports go to the agent over the control channel
(training/elastic/control_channel.py); rank 0's log also gets a line about a phase that takes long.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from howdah.core import threads
from howdah.core.activity import Activity, Snapshot
from howdah.training.comm.base import Waits
from howdah.training.elastic.control_channel import ControlChannel

_BEAT_SECONDS = 1.0
_FIRST_SECONDS = 3.0
"""A phase that takes longer is told to the user."""
_SAY_SECONDS = 10.0
"""Its progress is told again after this time."""
_WAIT_SECONDS = 30.0
"""From then on it is told that it waits for the other ranks; a few seconds of that are normal."""
_STEP_SECONDS = 1.0
_DATA_SECONDS = 5.0
_KEEP = 0.8
"""Weight of the past in the moving averages."""
_STEPS_TO_KNOW = 3
"""Number of first steps that the averages leave out: they trace and compile the model, for each new
width."""


class Heartbeat:
    """Reports phases, progress and rates of this process.

    Args:
        channel: the channel to the agent; None: there is no agent.
        waits: time in collectives, over all worlds of this process.
    """

    def __init__(self, channel: ControlChannel | None, waits: Waits) -> None:
        self._channel, self._waits = channel, waits
        self.activity = Activity("import", "starting the framework")
        """The activity of the main thread."""
        self._beats = _Beats(self.activity, waits)
        self._step = 0
        self._total_steps = 0
        self._rank = 0
        self._steps_here = 0
        self._work: float | None = None
        self._wait: float | None = None
        self._rate: float | None = None
        self._sent_at = 0.0
        self._waited = 0.0

    def start(self, say: Callable[[str], None] | None = None) -> None:
        """Start to report; must be called in the main thread.

        Args:
            say: logs a line about a phase that takes long; None: no lines.
        """
        self.activity.follow()
        if self._channel is not None or say is not None:
            # An agent treats a missing beat as a hang, so an exception must not end the thread.
            threads.start(self._beat, say, name="beat", failed=threads.RESTART)

    @property
    def step(self) -> int:
        """Number of steps done, as the last beat reported it."""
        return self._step

    # -------------------------------------------------------------------------------- phases
    def enter(self, phase: str, what: str = "") -> None:
        """Set the phase of the main thread.

        Args:
            phase: import, join, prepare, compute, evaluate, save or end.
            what: description, if a user should hear of it where it takes long.
        """
        self.activity.enter(phase, what)

    @contextlib.contextmanager
    def during(self, phase: str, what: str = "") -> Iterator[None]:
        """Set the phase of the main thread inside; afterwards the previous one is restored."""
        before = self._waits.total
        with self.activity.doing(phase, what):
            yield
        if phase == "evaluate":  # a step's seconds leave it out, and so do its waits
            self._waited += self._waits.total - before

    def take_over(self, phase: str) -> None:
        """Report the calling thread from now on, in this phase: the main thread hangs in a
        collective that does not return."""
        self.activity = Activity(phase)
        self.activity.follow()
        self._beats = _Beats(self.activity, Waits())

    def doing(self) -> Snapshot:
        """The activity of the main thread. Inside a collective the phase is always "wait", and
        progress is unknown, since it depends on the other ranks."""
        return self._beats.look()[0]

    def _beat(self, say: Callable[[str], None] | None) -> None:
        told = Told()
        while True:
            now, cpu_seconds = self._beats.look()
            if self._channel is not None:
                self._channel.send(
                    "beat",
                    phase=now.phase,
                    phase_seconds=round(now.seconds, 3),
                    idle_seconds=round(now.idle_seconds, 3),
                    idle_cpu_seconds=round(cpu_seconds, 3),
                    doing=now.text,
                    step=self._step,
                )
            line = told.line(now, self.activity.snapshot())
            if say is not None and line is not None:
                say(line)
            time.sleep(_BEAT_SECONDS)

    # --------------------------------------------------------------------------------- steps
    def begin(self, rank: int, step: int, total_steps: int) -> None:
        """Reset the averages: the steps of a world begin."""
        self._rank, self._step, self._total_steps = rank, step, total_steps
        self._work = self._wait = self._rate = None
        self._waited = self._waits.total
        self.enter("compute")

    def step_done(self, *, step: int, epoch: float, loss: float, rows: int, seconds: float) -> None:
        """Count a step, and report it at most once per second.

        Args:
            epoch: epochs done, with a fraction.
            loss: the step's loss over the global batch.
            rows: number of rows of the global batch.
            seconds: duration of the step, without evaluations and pauses.
        """
        self._step = step
        self.activity.advanced()
        if self._channel is None:
            return
        waited = min(seconds, self._waits.total - self._waited)
        self._waited = self._waits.total
        self._steps_here += 1
        if self._steps_here > _STEPS_TO_KNOW:
            self._work = _averaged(self._work, seconds - waited)
            self._wait = _averaged(self._wait, waited)
            self._rate = _averaged(self._rate, rows / max(seconds, 1e-9))
        now = time.monotonic()
        if now - self._sent_at < _STEP_SECONDS and step != self._total_steps:
            return
        self._sent_at = now
        rates = {}
        if self._work is not None:
            rates = {
                "examples_per_second": round(self._rate, 3),
                "step_seconds": round(self._work, 6),
                "wait_seconds": round(self._wait, 6),
            }
        self._channel.send(
            "step",
            rank=self._rank,
            step=step,
            total_steps=self._total_steps,
            epoch=epoch,
            loss=loss,
            **rates,
        )

    def send(self, kind: str, **fields: Any) -> None:
        """Send another message: commit, checkpoint, tracking..."""
        if self._channel is not None:
            self._channel.send(kind, **fields)

    def watch_data(self, counts: Callable[[], dict[str, int]]) -> None:
        """Send the counts of bytes read whenever they have changed.

        Args:
            counts: returns local_bytes, remote_bytes and fetches of this process so far.
        """
        if self._channel is not None:
            threads.start(self._send_data, counts, name="data", failed=threads.RESTART)

    def _send_data(self, counts: Callable[[], dict[str, int]]) -> None:
        sent: dict[str, int] = {}
        while True:
            if (current := counts()) != sent:
                sent = current
                self._channel.send("data", **current)
            time.sleep(_DATA_SECONDS)


class Told:
    """What the user is told of phases that take long."""

    def __init__(self) -> None:
        self._at, self._text = float("-inf"), ""

    def line(self, now: Snapshot, work: Snapshot) -> str | None:
        """A line if it is time for one.

        Args:
            now: what the process does, which may be to wait for other ranks.
            work: what it does but for that.
        """
        of = now if now.phase == "wait" and now.seconds >= _WAIT_SECONDS else work
        quiet = time.monotonic() - self._at
        if of.seconds < _FIRST_SECONDS or quiet < _SAY_SECONDS or of.text in ("", self._text):
            return None
        self._at, self._text = time.monotonic(), of.text
        return of.text


class _Beats:
    """Reads the main thread's activity and the processor time since its last progress."""

    def __init__(self, activity: Activity, waits: Waits) -> None:
        self._activity, self._waits = activity, waits
        self._modules = 0
        self._progress = 0.0
        self._cpu_at_progress = 0.0

    def look(self) -> tuple[Snapshot, float]:
        """(the main thread's activity, seconds of processor time that the whole process has used
        since its last progress)."""
        now, snapshot = time.monotonic(), self._activity.snapshot()
        waiting, until = self._waits.since, self._waits.until
        if waiting is not None:
            seconds = max(0.0, now - waiting)
            text = "; ".join(filter(None, (snapshot.text, "waiting for the other ranks")))
            return Snapshot("wait", seconds, seconds, text), 0.0
        if snapshot.phase == "import" and len(sys.modules) != self._modules:
            self._modules = len(sys.modules)
            self._activity.advanced()
        progress = max(now - snapshot.idle_seconds, until)
        cpu = time.process_time()
        if progress > self._progress + 0.01:
            self._progress, self._cpu_at_progress = progress, cpu
        seconds = max(0.0, min(snapshot.seconds, now - until))
        idle = max(0.0, now - progress)
        return replace(snapshot, seconds=seconds, idle_seconds=idle), cpu - self._cpu_at_progress


def _averaged(before: float | None, value: float) -> float:
    return value if before is None else _KEEP * before + (1.0 - _KEEP) * value
