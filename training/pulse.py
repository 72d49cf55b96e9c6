"""What a training process tells its agent all the time: that it lives, what it does, how fast.

A thread of its own says every second which phase the main thread is in and since when, so that a
process that is stopped is silent and one whose main thread hangs says so. Without a link nothing is
told and no thread runs; what is left is a few additions a step.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from training.comm import Waits
from training.link import Link

__all__ = ["Pulse"]

_BEAT_SECONDS = 1.0
_STEP_SECONDS = 1.0
_DATA_SECONDS = 5.0
_KEEP = 0.8
"""Weight of the past in the moving averages."""


class Pulse:
    """Phases and figures of this process.

    Args:
        link: to the agent; None: nobody listens.
        waits: time in collectives, as the worlds of this process count it.
    """

    def __init__(self, link: Link | None, waits: Waits) -> None:
        self._link, self._waits = link, waits
        self._phase, self._since = "import", time.monotonic()
        self._step = 0
        self._total_steps = 0
        self._rank = 0
        self._work: float | None = None
        self._wait: float | None = None
        self._rate: float | None = None
        self._told = 0.0
        self._waited = 0.0

    def start(self) -> None:
        """Beat from now on."""
        if self._link is not None:
            threading.Thread(target=self._beat, name="beat", daemon=True).start()

    # -------------------------------------------------------------------------------- phases
    def enter(self, phase: str) -> str:
        """The main thread does this from now on; returns what it did before.

        Args:
            phase: import, join, prepare, compute, evaluate, save or end.
        """
        before = self._phase
        self._phase, self._since = phase, time.monotonic()
        return before

    @contextlib.contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """The main thread does this inside, and then again what it did before."""
        before = self.enter(phase)
        try:
            yield
        finally:
            self.enter(before)

    def doing(self) -> tuple[str, float]:
        """The phase and its seconds. Inside a collective it is "wait", whatever it serves."""
        now, phase, since = time.monotonic(), self._phase, self._since
        waiting = self._waits.since
        if waiting is not None:
            return "wait", max(0.0, now - waiting)
        return phase, max(0.0, now - max(since, self._waits.until))

    def _beat(self) -> None:
        while True:
            phase, seconds = self.doing()
            self._link.send("beat", phase=phase, phase_seconds=round(seconds, 3), step=self._step)
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
        if self._link is None:
            return
        waited = min(seconds, self._waits.total - self._waited)
        self._waited = self._waits.total
        self._work = _averaged(self._work, seconds - waited)
        self._wait = _averaged(self._wait, waited)
        self._rate = _averaged(self._rate, rows / max(seconds, 1e-9))
        now = time.monotonic()
        if now - self._told < _STEP_SECONDS and step != self._total_steps:
            return
        self._told = now
        self._link.send(
            "step",
            rank=self._rank,
            step=step,
            total_steps=self._total_steps,
            epoch=epoch,
            loss=loss,
            examples_per_second=round(self._rate, 3),
            step_seconds=round(self._work, 6),
            wait_seconds=round(self._wait, 6),
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


def _averaged(before: float | None, value: float) -> float:
    return value if before is None else _KEEP * before + (1.0 - _KEEP) * value
