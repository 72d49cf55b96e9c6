"""Who hangs, and who is slow: judged from what every rank says of itself. Pure functions.

A collective ends when all ranks have come to it: those that wait in one say nothing of themselves,
but that somebody else does not come. Who hangs is the rank that is silent (stopped, frozen), or at
its own work for far longer than that work ever took, while the others wait.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["LONG_PHASES", "Pace", "Verdict", "View", "blocked", "hanging", "stragglers"]

LONG_PHASES = ("import", "join", "prepare", "evaluate", "save", "end")
"""Phases in which a rank may rightly be for minutes while others wait: storage, many batches."""
_LONG_FACTOR = 10
"""How many times `hang_seconds` a rank may be in one of these, or at its process's first step: that
one traces and compiles the model, and fetches the first shards."""
_STEP_FACTOR = 10
"""How many of its usual steps a rank may spend on one."""
_SLOWER = 1.5
"""A straggler's own work takes this many times the other ranks' median."""
_SLOWER_SECONDS = 0.02
_QUIET_SECONDS = 5.0
"""Beats come every second; less silence than this is none."""


@dataclass(frozen=True)
class View:
    """What is known of a rank at this moment."""

    member: str
    rank: int
    phase: str
    phase_seconds: float
    """Seconds in this phase until now, the age of its last word included."""
    silent_seconds: float
    """Age of its last word."""
    busy: bool = False
    """It has used CPU since its last word: frozen it is not."""
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
        hang_seconds: standstill that is taken for a hang.
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
    """Seconds that everybody has waited in a collective, and nobody is missing; None: not so.

    The network between some of them eats what they send.
    """
    if len(views) < 2 or not all(_waits(view) for view in views):
        return None
    shortest = min(view.phase_seconds for view in views)
    return shortest if shortest >= hang_seconds else None


def _waits(view: View) -> bool:
    return view.phase == "wait" and view.silent_seconds < _QUIET_SECONDS


def _standstill(view: View, hang_seconds: float) -> str | None:
    """Why a rank is taken to hang; None if it is not."""
    if view.silent_seconds >= hang_seconds and not view.busy:
        how = "stopped by a signal" if view.stopped else "silent"
        return f"{how} for {view.silent_seconds:.0f} s, last in phase {view.phase}"
    first_step = view.phase == "compute" and not view.step_seconds
    if first_step or view.phase in LONG_PHASES or view.silent_seconds >= _QUIET_SECONDS:
        limit = hang_seconds * _LONG_FACTOR
    elif view.phase == "compute":
        limit = max(hang_seconds, view.step_seconds * _STEP_FACTOR)
    else:
        return None
    if view.phase_seconds < limit:
        return None
    how = "stopped by a signal, " if view.stopped else ""
    return f"{how}in phase {view.phase} for {view.phase_seconds:.0f} s without getting on"


@dataclass(frozen=True)
class Pace:
    """How long a rank's steps take: its own work, and its time in collectives (seconds)."""

    step_seconds: float
    wait_seconds: float


def stragglers(paces: Mapping[int, Pace]) -> set[int]:
    """The ranks whose own work takes markedly longer than the others': all wait for these.

    A rank's time in collectives says nothing by itself: everybody but the slowest waits.
    """
    found = set()
    for rank, pace in paces.items():
        others = [other.step_seconds for number, other in paces.items() if number != rank]
        if not others:
            continue
        usual = statistics.median(others)
        slower = pace.step_seconds - usual
        if pace.step_seconds > usual * _SLOWER and slower > _SLOWER_SECONDS:
            found.add(rank)
    return found
