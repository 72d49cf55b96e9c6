"""What a thread is doing and when it last got on, so that long work is not taken for a hang.

Code that takes long says how far it is, in whichever thread it runs:

    with activity.doing("evaluate", "evaluating test", total=100_000, unit="rows"):
        for batch in batches:
            ...
            activity.advanced(len(batch))

Only a thread that follows an `Activity` is recorded. In every other thread these calls do nothing,
so that storage and readers need not know which process they run in. A thread that waits for the
work of another one (`waiting_for`) gets on as that one does.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = [
    "Activity",
    "Snapshot",
    "advanced",
    "at_most",
    "current",
    "doing",
    "note",
    "waiting_for",
]

_thread = threading.local()


@dataclass(frozen=True)
class Snapshot:
    """An activity at one moment."""

    phase: str
    seconds: float
    """Since the phase began."""
    idle_seconds: float
    """Since the last progress."""
    text: str
    """In words, with how far it is; "" where nothing is known but the phase."""


class _Frame:
    """One piece of work; `outer` is the one that it is a part of."""

    def __init__(
        self, phase: str, what: str, total: int | None, unit: str, outer: _Frame | None
    ) -> None:
        self.phase, self.what, self.total, self.unit, self.outer = phase, what, total, unit, outer
        self.since = time.monotonic()
        self.done = 0
        self.other: Activity | None = None
        """The activity that this one waits for."""

    def texts(self) -> list[str]:
        """In words, what it is a part of first."""
        texts = [] if self.outer is None else self.outer.texts()
        if self.what:
            texts.append(self._own())
        if self.other is not None:
            texts.append(self.other.snapshot().text)
        return texts

    def _own(self) -> str:
        if self.unit == "bytes":
            done, total, unit = self.done // 2**20, _mib(self.total), "MiB"
        else:
            done, total, unit = self.done, self.total, self.unit
        if total is not None:
            return f"{self.what}: {done:,} of {total:,} {unit}".rstrip()
        return f"{self.what}: {done:,} {unit}".rstrip() if done else self.what


class Activity:
    """What one thread does, perhaps with helpers. Every thread may look.

    Args:
        phase: to begin with.
        what: the same in words.
    """

    def __init__(self, phase: str = "", what: str = "") -> None:
        self._frame = _Frame(phase, what, None, "", None)
        self._progress = self._frame.since
        self._limits: dict[object, float] = {}
        """Until when calls under way may take; of several threads where some follow it."""
        self._note = ""

    @contextlib.contextmanager
    def followed(self) -> Iterator[Activity]:
        """Inside, this thread's reports go to this activity."""
        before = current()
        _thread.activity = self
        try:
            yield self
        finally:
            _thread.activity = before

    def follow(self) -> None:
        """As `followed`, for as long as this thread lives."""
        _thread.activity = self

    def enter(self, phase: str, what: str = "") -> None:
        """This phase takes the place of the one before."""
        self._frame = _Frame(phase, what, None, "", self._frame.outer)
        self.advanced()

    @contextlib.contextmanager
    def doing(
        self, phase: str = "", what: str = "", *, total: int | None = None, unit: str = ""
    ) -> Iterator[None]:
        """Inside is a piece of work; afterwards goes on what it was a part of.

        Args:
            phase: one word; "": the phase goes on.
            what: in words.
            total: of `unit`s to be done; None: unknown.
            unit: what `advanced` counts; "bytes" are shown as MiB.
        """
        outer = self._frame
        self._frame = _Frame(phase or outer.phase, what, total, unit, outer)
        if not phase:
            self._frame.since = outer.since
        self.advanced()
        try:
            yield
        finally:
            self._frame = outer
            self.advanced()

    @contextlib.contextmanager
    def waiting_for(self, other: Activity) -> Iterator[None]:
        """Inside, this thread only waits for the thread of `other`: it is in the phase that that
        one is in, and gets on as that one does."""
        with self.doing():
            self._frame.since, self._frame.other = time.monotonic(), other
            yield

    @contextlib.contextmanager
    def at_most(self, seconds: float) -> Iterator[None]:
        """Inside is a call that ends by itself, with an error, after so long: until then it does
        not hang."""
        call = object()
        self._limits[call] = time.monotonic() + seconds
        try:
            yield
        finally:
            del self._limits[call]
            self.advanced()

    def advanced(self, count: int = 0) -> None:
        """The work got on, by `count` of its units (0: it cannot be counted)."""
        self._frame.done += count
        self._progress = time.monotonic()

    def note(self, text: str) -> None:
        """Something that people should know of the work now, a retry for example; "": no more."""
        self._note = text
        self._progress = time.monotonic()

    def progressed(self) -> float:
        """When it last got on (time.monotonic), at the latest now."""
        frame, now = self._frame, time.monotonic()
        limits = [min(now, limit) for limit in list(self._limits.values())]
        last = max(frame.since, self._progress, *limits)
        return last if frame.other is None else max(last, frame.other.progressed())

    def snapshot(self) -> Snapshot:
        """How things are now."""
        frame, now = self._frame, time.monotonic()
        text = "; ".join(filter(None, (*frame.texts(), self._note)))
        idle = max(0.0, now - self.progressed())
        phase = frame.phase if frame.other is None else frame.other.snapshot().phase
        return Snapshot(phase, max(0.0, now - frame.since), idle, text)


def _mib(size: int | None) -> int | None:
    return None if size is None else -(-size // 2**20)


# ------------------------------------------------------------------ of the thread that calls
def current() -> Activity | None:
    """The activity that this thread follows."""
    return getattr(_thread, "activity", None)


def advanced(count: int = 0) -> None:
    """As `Activity.advanced`, for the activity of this thread."""
    own = current()
    if own is not None:
        own.advanced(count)


def note(text: str) -> None:
    """As `Activity.note`, for the activity of this thread."""
    own = current()
    if own is not None:
        own.note(text)


@contextlib.contextmanager
def doing(
    phase: str = "", what: str = "", *, total: int | None = None, unit: str = ""
) -> Iterator[None]:
    """As `Activity.doing`, for the activity of this thread."""
    own = current()
    if own is None:
        yield
        return
    with own.doing(phase, what, total=total, unit=unit):
        yield


@contextlib.contextmanager
def waiting_for(other: Activity) -> Iterator[None]:
    """As `Activity.waiting_for`, for the activity of this thread."""
    own = current()
    if own is None or own is other:
        yield
        return
    with own.waiting_for(other):
        yield


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """As `Activity.at_most`, for the activity of this thread."""
    own = current()
    if own is None:
        yield
        return
    with own.at_most(seconds):
        yield
