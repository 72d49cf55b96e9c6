"""Which ranks hang, and which are slow, by what every rank reports of itself. Pure functions.

Only progress counts. A rank hangs when it has made no progress for `hang_seconds`, in
whatever phase: rows evaluated, shards verified, bytes moved and attempts to reach a storage all
count, and a phase may last as long as it makes progress. A collective ends when all ranks have come
to it: a rank that waits in one only reports that another one has not come, and is never to blame
for it.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_OTHERS = ("join", "cache")
"""Phases in which a rank waits for others: to form a world with it (join; Horovod ends that wait
itself, after `gloo_timeout_seconds`), or for a shard that another process of its node fetches."""
_BUSY_FACTOR = 10
"""How many times `hang_seconds` a rank may compute without progress that it can report: its first
step traces and compiles the model, and a large micro-batch takes a slow processor minutes. So long
may also the phases in `_OTHERS` take."""
_STEP_FACTOR = 10
"""How many of its usual steps a rank may spend on one."""
_QUIET_SECONDS = 5.0
"""Reports come every second; a rank whose last report is older may be stopped."""
_SLOWER = 1.5
"""A straggler's own work takes this many times the other ranks' median."""
_SLOWER_SECONDS = 0.02


@dataclass(frozen=True)
class View:
    """What is known of a rank at this moment."""

    member: str
    rank: int
    phase: str
    phase_seconds: float
    """Seconds in this phase until now, the age of its last report included."""
    idle_seconds: float
    """Seconds since its last progress, likewise."""
    silent_seconds: float
    """Age of its last report."""
    awake: bool = False
    """It has used a processor since its last report: it computes, and holds Python's lock."""
    busy: bool = False
    """It has used a processor since its last progress."""
    stopped: bool = False
    """The kernel says that it is stopped (SIGSTOP, a debugger)."""
    step_seconds: float = 0.0
    """Its own work of a step, usually; 0: its process has not taken one."""


@dataclass(frozen=True)
class Verdict:
    """A rank that hangs."""

    member: str
    rank: int
    why: str


def hanging(views: Sequence[View], hang_seconds: float) -> list[Verdict]:
    """The ranks of one world that hang.

    Args:
        views: all ranks of the world.
        hang_seconds: seconds without progress that count as a hang.
    Returns:
        Those to be ended, all at once; [] while all is well, or may still be.
    """
    found = []
    for view in views:
        why = _standstill(view, hang_seconds)
        if why is not None:
            found.append(Verdict(view.member, view.rank, why))
    return found


def blocked(views: Sequence[View], hang_seconds: float) -> float | None:
    """Seconds that every rank has waited in a collective, though none is missing; None: not so.

    The network between some of them drops what they send.
    """
    quiet = min(_QUIET_SECONDS, hang_seconds / 2)
    waiting = [view for view in views if view.phase == "wait" and view.silent_seconds < quiet]
    if len(views) < 2 or len(waiting) < len(views):
        return None
    shortest = min(view.phase_seconds for view in views)
    return shortest if shortest >= hang_seconds else None


def held_up(view: View, seconds: float) -> str | None:
    """How a rank has stood still while others waited for it in vain, which may be for less than
    `hang_seconds`; None: it waited in a collective itself, or got on.

    Args:
        view: of a rank that still runs.
        seconds: for which it must have stood still.
    """
    return _stands_still(view, seconds, seconds)


def _standstill(view: View, hang_seconds: float) -> str | None:
    """Why a rank is taken to hang; None if it is not."""
    limit = hang_seconds
    if view.busy or view.phase in _OTHERS:
        limit *= _BUSY_FACTOR
    if view.phase == "compute":
        limit = max(limit, view.step_seconds * _STEP_FACTOR)
    return _stands_still(view, hang_seconds, limit)


def _stands_still(view: View, silent_seconds: float, idle_seconds: float) -> str | None:
    """How a rank has been silent, or without progress, for so long; None: it has not been."""
    if view.silent_seconds >= silent_seconds and not view.awake:
        how = "stopped by a signal" if view.stopped else "silent"
        return f"{how} for {view.silent_seconds:.0f} s, last in phase {view.phase}"
    if view.phase == "wait" or view.idle_seconds < idle_seconds:
        return None
    stopped = "stopped by a signal, " if view.stopped else ""
    return f"{stopped}no progress for {view.idle_seconds:.0f} s in phase {view.phase}"


@dataclass(frozen=True)
class Pace:
    """How long a rank's steps take: its own work, and its time in collectives (seconds)."""

    step_seconds: float
    wait_seconds: float


def stragglers(paces: Mapping[int, Pace]) -> set[int]:
    """The ranks whose own work takes markedly longer than the others': all others wait for them.

    A rank's time in collectives says nothing by itself: all ranks but the slowest wait.
    """
    ordered = sorted(pace.step_seconds for pace in paces.values())
    found = set()
    for rank, pace in paces.items():
        usual = _median_without(ordered, pace.step_seconds)
        if usual is None:
            continue
        slower = pace.step_seconds - usual
        if pace.step_seconds > usual * _SLOWER and slower > _SLOWER_SECONDS:
            found.add(rank)
    return found


def _median_without(ordered: Sequence[float], value: float) -> float | None:
    """The median of sorted values but one of them; None: there is no other.

    >>> _median_without([1.0, 2.0, 3.0, 9.0], 2.0)
    3.0
    """
    count = len(ordered) - 1
    if not count:
        return None
    position = bisect.bisect_left(ordered, value)

    def other(index: int) -> float:
        return ordered[index if index < position else index + 1]

    return (other((count - 1) // 2) + other(count // 2)) / 2
