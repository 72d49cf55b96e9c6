"""What a thread is doing and its last progress, so that long work does not look like a hang.

Code that takes long reports its progress, in whichever thread it runs:

    with activity.current().doing("evaluate", "evaluating test", total=100_000, unit="rows"):
        for batch in batches:
            ...
            activity.current().advanced(len(batch))

Only a thread that follows an `Activity` is recorded. In other threads `current()` records nothing,
so that storage and readers need not know which process they run in. A thread that waits for another
one's work (`waiting_for`) has that one's progress.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

Progress = Callable[[str], None]
"""Takes a line about work that goes on, for the person who waits for it."""

_SHORT_SECONDS = 3.0
"""Work that takes less needs no word on the time left."""
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
    """Description with progress; "" if only the phase is known."""


class _Frame:
    """One piece of work, which is a part of `outer`."""

    def __init__(
        self, phase: str, what: str, total: int | None, unit: str, outer: _Frame | None
    ) -> None:
        self.phase, self.what, self.total, self.unit, self.outer = phase, what, total, unit, outer
        self.since = self.began = time.monotonic()
        self.done = 0
        self.other: Activity | None = None
        """The activity that this one waits for."""

    def texts(self) -> list[str]:
        """Descriptions, from the outermost piece of work to this one."""
        texts = [] if self.outer is None else self.outer.texts()
        if self.what:
            texts.append(self._text())
        if self.other is not None:
            texts.append(self.other.snapshot().text)
        return texts

    def _text(self) -> str:
        if self.unit == "bytes":
            done, total, unit = self.done // 2**20, _mib(self.total), "MiB"
        else:
            done, total, unit = self.done, self.total, self.unit
        if total is not None:
            return f"{self.what}: {done:,} of {total:,} {unit}".rstrip() + self._left()
        return f"{self.what}: {done:,} {unit}".rstrip() if done else self.what

    def _left(self) -> str:
        """The time left at the speed so far, once that says something."""
        seconds = time.monotonic() - self.began
        if not self.done or not self.total or self.done >= self.total or seconds < _SHORT_SECONDS:
            return ""
        return ", " + time_left(seconds, self.done, self.total)


def time_left(seconds: float, done: int, total: int) -> str:
    """Say how long the rest of counted work takes at the speed so far.

    >>> time_left(10.0, 5, 10), time_left(60.0, 1, 11)
    ('about 10 s left', 'about 10 min left')
    """
    left = seconds * (total - done) / done
    return f"about {left:,.0f} s left" if left < 120 else f"about {left / 60:,.0f} min left"


class Activity:
    """What one thread does, perhaps with helper threads. Any thread may read it.

    Args:
        phase: the first phase.
        what: its description.
    """

    def __init__(self, phase: str = "", what: str = "") -> None:
        self._frame = _Frame(phase, what, None, "", None)
        self._progress = self._frame.since
        self._limits: dict[object, float] = {}
        """Deadlines of calls in progress, which may be of several threads."""
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
        """From now on, this thread's reports go to this activity."""
        _thread.activity = self

    def enter(self, phase: str, what: str = "") -> None:
        """Replace the phase."""
        self._frame = _Frame(phase, what, None, "", self._frame.outer)
        self.advanced()

    @contextlib.contextmanager
    def doing(
        self, phase: str = "", what: str = "", *, total: int | None = None, unit: str = ""
    ) -> Iterator[None]:
        """A block that does a piece of work, as a part of the present one.

        Args:
            phase: one word; "": the present phase.
            what: description.
            total: number of `unit`s to do; None: unknown.
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
        """Inside, this thread waits for the thread of `other`, and has its phase and progress."""
        if other is self:
            yield
            return
        with self.doing():
            self._frame.since, self._frame.other = time.monotonic(), other
            yield

    @contextlib.contextmanager
    def at_most(self, seconds: float) -> Iterator[None]:
        """Inside is a call with its own time limit: until then it does not count as hanging."""
        call = object()
        self._limits[call] = time.monotonic() + seconds
        try:
            yield
        finally:
            del self._limits[call]
            self.advanced()

    def advanced(self, count: int = 0) -> None:
        """The work progressed, by `count` of its units (0: uncounted)."""
        self._frame.done += count
        self._progress = time.monotonic()

    def note(self, text: str) -> None:
        """Set a note on the present work, for example on a retry; "" clears it.

        `hearing_notes` of the calling thread gets it too.
        """
        self._note = text
        self._progress = time.monotonic()
        _pass_on(text)

    def progressed(self) -> float:
        """time.monotonic() of its last progress, at the latest now."""
        frame, now = self._frame, time.monotonic()
        limits = [min(now, limit) for limit in list(self._limits.values())]
        last = max(frame.since, self._progress, *limits)
        return last if frame.other is None else max(last, frame.other.progressed())

    def snapshot(self) -> Snapshot:
        """Its present state."""
        frame, now = self._frame, time.monotonic()
        text = "; ".join(filter(None, (*frame.texts(), self._note)))
        idle = max(0.0, now - self.progressed())
        phase = frame.phase if frame.other is None else frame.other.snapshot().phase
        return Snapshot(phase, max(0.0, now - frame.since), idle, text)


def _mib(size: int | None) -> int | None:
    return None if size is None else -(-size // 2**20)


class _Unfollowed(Activity):
    """The activity of threads that follow none: it records nothing, so any of them may share it."""

    @contextlib.contextmanager
    def doing(
        self, phase: str = "", what: str = "", *, total: int | None = None, unit: str = ""
    ) -> Iterator[None]:
        yield

    @contextlib.contextmanager
    def waiting_for(self, other: Activity) -> Iterator[None]:
        yield

    @contextlib.contextmanager
    def at_most(self, seconds: float) -> Iterator[None]:
        yield

    def advanced(self, count: int = 0) -> None:
        pass

    def note(self, text: str) -> None:
        _pass_on(text)


class Stages:
    """The numbered stages of a piece of work; a call passes a line on.

    At its end each stage is a line with its seconds. While it lasts this thread's activity has it;
    where no terminal shows that, it is a line of its own as soon as it takes long.

    Args:
        names: of all stages in their order; those that some work lacks are left out.
        progress: gets the lines, also from another thread.
    """

    LONG = 3.0  # seconds

    def __init__(self, names: Sequence[str], progress: Progress) -> None:
        self._names, self._progress = names, progress
        self._line, self._since = "", 0.0
        self._timer: threading.Timer | None = None

    def __call__(self, line: str) -> None:
        self._progress(line)

    def __enter__(self) -> Stages:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.end(failed=kind is not None)

    def begin(self, name: str) -> None:
        """End the stage before and begin this one."""
        self.end()
        self._line = f"{self._names.index(name) + 1}/{len(self._names)} {name}"
        self._since = time.monotonic()
        if is_followed():
            current().enter(name, self._line)
        else:
            self._timer = threading.Timer(self.LONG, self._progress, [f"{self._line} ..."])
            self._timer.daemon = True
            self._timer.start()

    def end(self, *, failed: bool = False) -> None:
        """End the stage, if there is one; one that has failed leaves no line."""
        if self._timer is not None:
            self._timer.cancel()
        if self._line and not failed:
            self._progress(f"{self._line}: {time.monotonic() - self._since:.1f} s")
        self._line, self._timer = "", None


# ------------------------------------------------------------------ of the calling thread
_UNFOLLOWED = _Unfollowed()


def current() -> Activity:
    """The activity that this thread follows; one that records nothing if it follows none."""
    return getattr(_thread, "activity", _UNFOLLOWED)


def is_followed() -> bool:
    """Return whether this thread's reports go to an activity, so that they need no lines."""
    return current() is not _UNFOLLOWED


@contextlib.contextmanager
def hearing_notes(listener: Callable[[str], None]) -> Iterator[None]:
    """Inside, `listener` gets each note of this thread, also if it follows no activity, to pass
    them to processes that wait for this thread."""
    before = getattr(_thread, "listener", None)
    _thread.listener = listener
    try:
        yield
    finally:
        _thread.listener = before


def _pass_on(text: str) -> None:
    listener = getattr(_thread, "listener", None)
    if listener is not None:
        listener(text)
