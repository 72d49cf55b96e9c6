"""Pure functions that decide from the ranks' reports which ranks hang and which are slow.

Only progress counts. A rank hangs when it has made no progress for `hang_seconds`, in any phase:
rows evaluated, shards verified, bytes moved and attempts to reach a storage all count, and a phase
may last as long as it makes progress. A collective ends when all ranks have entered it: a rank that
waits in one shows that another rank is missing, and is itself never to blame.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from howdah.core import processes

CONTACT_SECONDS = processes.limit("contact_seconds", 60.0)
"""How long a job's driver and a worker's agent tolerate lost contact: a switch fails over, a
machine migrates or swaps. After that the driver drops the worker, and the agent ends its
training. It is less than the ten minutes after which YARN itself expires a master or a node."""

_OTHERS = ("join", "cache")
"""Phases in which a rank waits for others: to form a world (join; Horovod ends that wait itself,
after JobSection.gloo_timeout), or for a shard that another process of its node fetches (cache)."""
_BUSY_FACTOR = 10
"""How many times `hang_seconds` a rank may compute without reporting progress: its first step
traces and compiles the model, and a large micro-batch takes minutes on a slow processor. The
phases in `_OTHERS` have the same limit."""
_STEP_FACTOR = 10
"""A step may take this many times as long as the rank's usual steps."""
_QUIET_SECONDS = 5.0
"""A rank may be stopped if its last report is older than this; reports come every second."""
_SLOWER = 1.5
"""A straggler's own work takes this many times the other ranks' median."""
_SLOWER_SECONDS = 0.02


@dataclass(frozen=True)
class View:
    """What the driver knows about a rank at this moment."""

    member: str
    rank: int
    phase: str
    phase_seconds: float
    """Seconds in this phase, including the age of its last report."""
    idle_seconds: float
    """Seconds since its last progress, including the age of its last report."""
    silent_seconds: float
    """Age of its last report in seconds."""
    awake: bool = False
    """It has used a processor since its last report, and is not stopped: it computes, and holds
    Python's lock."""
    busy: bool = False
    """It has used a processor since its last progress."""
    stopped: bool = False
    """The kernel reports it as stopped (SIGSTOP, a debugger)."""
    step_seconds: float = 0.0
    """Usual seconds of its own work in a step; 0: its process has not taken a step."""


@dataclass(frozen=True)
class HangVerdict:
    """A rank that hangs."""

    member: str
    rank: int
    why: str


def hanging(views: Sequence[View], hang_seconds: float) -> list[HangVerdict]:
    """The ranks of one world that hang.

    Args:
        views: all ranks of the world.
        hang_seconds: seconds without progress that count as a hang.
    Returns:
        The ranks to end, all at once; [] while none is sure to hang.
    """
    verdicts = []
    for view in views:
        limit = hang_seconds
        if view.busy or view.phase in _OTHERS:
            limit *= _BUSY_FACTOR
        if view.phase == "compute":
            limit = max(limit, view.step_seconds * _STEP_FACTOR)
        why = stands_still(view, hang_seconds, limit)
        if why is not None:
            verdicts.append(HangVerdict(view.member, view.rank, why))
    return verdicts


def blocked(views: Sequence[View], hang_seconds: float) -> float | None:
    """Seconds that all ranks have waited in a collective that none is missing from; None: not so.

    The network between some of them then drops what they send.
    """
    quiet = min(_QUIET_SECONDS, hang_seconds / 2)
    waiting = [view for view in views if view.phase == "wait" and view.silent_seconds < quiet]
    if len(views) < 2 or len(waiting) < len(views):
        return None
    shortest = min(view.phase_seconds for view in views)
    return shortest if shortest >= hang_seconds else None


def stands_still(view: View, silent_seconds: float, idle_seconds: float) -> str | None:
    """How a rank has been silent, or without progress, for these times; None: it has not been, or
    it waits in a collective itself."""
    if view.silent_seconds >= silent_seconds and not view.awake:
        how = "stopped by a signal" if view.stopped else "silent"
        return f"{how} for {view.silent_seconds:.0f} s, last in phase {view.phase}"
    if view.phase == "wait" or view.idle_seconds < idle_seconds:
        return None
    stopped = "stopped by a signal, " if view.stopped else ""
    return f"{stopped}no progress for {view.idle_seconds:.0f} s in phase {view.phase}"


@dataclass(frozen=True)
class Pace:
    """How many seconds of a rank's step are its own work, and how many it is in collectives."""

    step_seconds: float
    wait_seconds: float


def stragglers(paces: Mapping[int, Pace]) -> set[int]:
    """The ranks whose own work takes markedly longer than the others', which wait for them.

    Time in collectives does not count, since all ranks but the slowest wait there.
    """
    ordered = sorted(pace.step_seconds for pace in paces.values())
    slow = set()
    for rank, pace in paces.items():
        usual = _median_without(ordered, pace.step_seconds)
        if usual is None:
            continue
        slower = pace.step_seconds - usual
        if pace.step_seconds > usual * _SLOWER and slower > _SLOWER_SECONDS:
            slow.add(rank)
    return slow


def _median_without(ordered: Sequence[float], value: float) -> float | None:
    """The median of sorted values without one of them; None: no other value is left.

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
