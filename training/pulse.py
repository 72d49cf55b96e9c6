"""What a training process reports all the time: that it lives, what it does, how far it is.

A thread of its own reports every second which phase the main thread is in, for how long, and how
long ago it last got on (howdah/activity.py). A process that is stopped reports nothing; one whose
main thread hangs reports no progress. An agent hears of it over the link (training/link.py); people
hear of a phase that takes long by a line of rank 0.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from howdah.activity import Activity, Snapshot
from training.comm import Waits
from training.link import Link

__all__ = ["Pulse"]

_BEAT_SECONDS = 1.0
_SAY_SECONDS = 30.0
"""A phase that takes longer is spoken of, and again after as long."""
_STEP_SECONDS = 1.0
_DATA_SECONDS = 5.0
_KEEP = 0.8
"""Weight of the past in the moving averages."""
_STEPS_TO_KNOW = 3
"""Steps of a process until its averages say how long a step takes: the first ones trace and compile
the model, also for widths that come up for the first time."""


class Pulse:
    """Phases, progress and figures of this process.

    Args:
        link: to the agent; None: there is none.
        waits: time in collectives, as the worlds of this process count it.
    """

    def __init__(self, link: Link | None, waits: Waits) -> None:
        self._link, self._waits = link, waits
        self.activity = Activity("import")
        """Of the main thread."""
        self._beats = _Beats(self.activity, waits)
        self._step = 0
        self._total_steps = 0
        self._rank = 0
        self._steps_here = 0
        self._work: float | None = None
        self._wait: float | None = None
        self._rate: float | None = None
        self._told = 0.0
        self._waited = 0.0

    def start(self, say: Callable[[str], None] | None = None) -> None:
        """Report from now on; to be called in the main thread.

        Args:
            say: takes a line for people about a phase that takes long; None: no lines.
        """
        self.activity.follow()
        if self._link is not None or say is not None:
            threading.Thread(target=self._beat, args=(say,), name="beat", daemon=True).start()

    # -------------------------------------------------------------------------------- phases
    def enter(self, phase: str) -> None:
        """The main thread does this from now on.

        Args:
            phase: import, join, prepare, compute, evaluate, save or end.
        """
        self.activity.enter(phase)

    @contextlib.contextmanager
    def during(self, phase: str, what: str = "") -> Iterator[None]:
        """The main thread does this inside, and then again what it did before."""
        with self.activity.doing(phase, what):
            yield

    def take_over(self, phase: str) -> None:
        """The thread that calls this acts for the process from now on, in this phase: the main
        thread hangs in a collective, and does not come back."""
        self.activity = Activity(phase)
        self.activity.follow()
        self._beats = _Beats(self.activity, Waits())

    def doing(self) -> Snapshot:
        """What the main thread does. Inside a collective the phase is "wait", whatever it serves,
        and nothing is known of progress: that is the other ranks'."""
        return self._beats.look()[0]

    def _beat(self, say: Callable[[str], None] | None) -> None:
        said_at, said = 0.0, ""
        while True:
            now, cpu_seconds = self._beats.look()
            if self._link is not None:
                self._link.send(
                    "beat",
                    phase=now.phase,
                    phase_seconds=round(now.seconds, 3),
                    idle_seconds=round(now.idle_seconds, 3),
                    idle_cpu_seconds=round(cpu_seconds, 3),
                    doing=now.text,
                    step=self._step,
                )
            long = min(now.seconds, time.monotonic() - said_at) >= _SAY_SECONDS
            if say is not None and long and now.text not in ("", said):
                said_at, said = time.monotonic(), now.text
                say(said)
            time.sleep(_BEAT_SECONDS)

    # --------------------------------------------------------------------------------- steps
    def begin(self, rank: int, step: int, total_steps: int) -> None:
        """The steps of a world begin."""
        self._rank, self._step, self._total_steps = rank, step, total_steps
        self._work = self._wait = self._rate = None
        self._waited = self._waits.total
        self.enter("compute")

    def step_done(self, *, step: int, epoch: float, loss: float, rows: int, seconds: float) -> None:
        """A step is done.

        Args:
            step: steps done.
            epoch: epochs done, with a fraction.
            loss: of the step, over the global batch.
            rows: of the global batch.
            seconds: that it took, without evaluations and pauses.
        """
        self._step = step
        self.activity.advanced()
        if self._link is None:
            return
        waited = min(seconds, self._waits.total - self._waited)
        self._waited = self._waits.total
        self._steps_here += 1
        if self._steps_here > _STEPS_TO_KNOW:
            self._work = _averaged(self._work, seconds - waited)
            self._wait = _averaged(self._wait, waited)
            self._rate = _averaged(self._rate, rows / max(seconds, 1e-9))
        now = time.monotonic()
        if now - self._told < _STEP_SECONDS and step != self._total_steps:
            return
        self._told = now
        figures = {}
        if self._work is not None:
            figures = {
                "examples_per_second": round(self._rate, 3),
                "step_seconds": round(self._work, 6),
                "wait_seconds": round(self._wait, 6),
            }
        self._link.send(
            "step",
            rank=self._rank,
            step=step,
            total_steps=self._total_steps,
            epoch=epoch,
            loss=loss,
            **figures,
        )

    def tell(self, kind: str, **fields: Any) -> None:
        """Tell something else: commit, checkpoint, tracking."""
        if self._link is not None:
            self._link.send(kind, **fields)

    def watch_data(self, counts: Callable[[], dict[str, int]]) -> None:
        """Tell what was read, whenever it has changed.

        Args:
            counts: local_bytes, remote_bytes and fetches of this process so far.
        """
        if self._link is not None:
            threading.Thread(
                target=self._tell_data, args=(counts,), name="data", daemon=True
            ).start()

    def _tell_data(self, counts: Callable[[], dict[str, int]]) -> None:
        told: dict[str, int] = {}
        while True:
            if (found := counts()) != told:
                told = found
                self._link.send("data", **found)
            time.sleep(_DATA_SECONDS)


class _Beats:
    """Looks at the main thread's activity and at the processor time since its last progress."""

    def __init__(self, activity: Activity, waits: Waits) -> None:
        self._activity, self._waits = activity, waits
        self._modules = 0
        self._progress = 0.0
        self._cpu_at_progress = 0.0

    def look(self) -> tuple[Snapshot, float]:
        """What the main thread does, and the seconds of processor time that the whole process has
        used since it last got on."""
        now, found = time.monotonic(), self._activity.snapshot()
        waiting, until = self._waits.since, self._waits.until
        if waiting is not None:
            seconds = max(0.0, now - waiting)
            text = "; ".join(filter(None, (found.text, "waiting for the other ranks")))
            return Snapshot("wait", seconds, seconds, text), 0.0
        if found.phase == "import" and len(sys.modules) != self._modules:
            self._modules = len(sys.modules)
            self._activity.advanced()
        progress = max(now - found.idle_seconds, until)
        cpu = time.process_time()
        if progress > self._progress + 0.01:
            self._progress, self._cpu_at_progress = progress, cpu
        seconds = max(0.0, min(found.seconds, now - until))
        idle = max(0.0, now - progress)
        return replace(found, seconds=seconds, idle_seconds=idle), cpu - self._cpu_at_progress


def _averaged(before: float | None, value: float) -> float:
    return value if before is None else _KEEP * before + (1.0 - _KEEP) * value
