"""What is new in a job's status.json: events, and rank 0's lines, each shown once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar


@dataclass(frozen=True, kw_only=True)
class Position:
    """How much of a job's events and lines has been shown."""

    attempt: int = 0
    """The application's attempt that `line` and `event` count in."""
    line: int = 0
    """Serial number of rank 0's last line that was shown."""
    event: float = 0.0
    """Time of the last event that was shown."""


P = TypeVar("P", bound=Position)


def new_lines(
    status: Mapping[str, Any] | None, position: P, *, event: str = "", line: str = ""
) -> tuple[list[str], P]:
    """Lines to show of a status, and the position after them.

    Args:
        status: the driver's (status.json); None or empty: not known.
        event, line: prefixes of events and of rank 0's lines.
    """
    if not status:
        return [], position
    attempt = int(status.get("attempt") or 0)
    if attempt != position.attempt:  # each attempt's driver counts from 1
        position = replace(position, attempt=attempt, line=0, event=0.0)
    lines = []
    events = status.get("events") or []
    # Those that stand behind the last one that was shown: a node's clock may be set back. Without
    # that one the status is an older one (the file's, after the page's), or all have come since.
    shown = [n for n, happened in enumerate(events) if happened["time"] == position.event]
    new = events[shown[-1] + 1 :] if shown else [e for e in events if e["time"] > position.event]
    for happened in new:
        lines.append(f"{event}{happened['what']}")
        position = replace(position, event=happened["time"])
    for serial, text in status.get("lines") or []:
        if serial <= position.line:
            continue
        if serial > position.line + 1 and position.line:
            missed = serial - position.line - 1
            lines.append(f"({missed} lines are left out; the logs have them)")
        lines.append(f"{line}{text}")
        position = replace(position, line=serial)
    return lines, position
