"""Reads a rank's log from the run directory, on whichever cluster the job runs."""

from __future__ import annotations

import time
from collections.abc import Callable

from howdah import storage
from howdah.storage import growing

__all__ = ["follow", "path_of"]


def path_of(run_directory: str, rank: int) -> str:
    """Where the run directory holds a rank's log."""
    return storage.join(run_directory, "logs", f"rank.{rank}")


def follow(
    path: str, is_over: Callable[[], bool], out: Callable[[str], None], *, poll_seconds: float
) -> bool:
    """Pass a log to `out` line by line until `is_over`; False: there is none.

    Args:
        is_over: nothing more will be written; asked before each look, so that the last lines are
            read after it. Always True: what is there now.
        out: gets each line, and at the end what no line feed follows.
        poll_seconds: between two looks.
    """
    shown, rest = 0, b""
    while True:
        over = is_over()
        found = growing.read(path, shown)
        if found is None and over and shown == 0:
            return False
        data, shown = found or (b"", shown)
        if data:
            *whole, rest = (rest + data).split(b"\n")
            for line in whole:
                out(line.decode(errors="replace"))
        if over:
            if rest:
                out(rest.decode(errors="replace"))
            return True
        time.sleep(poll_seconds)
