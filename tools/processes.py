"""Ends processes that are no children of this one: daemons, containers, what a command left."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable

KILL_LIMIT = 20.0  # seconds for the kernel to end what was killed


def end_all(running: Callable[[], list[int]], *, grace: float) -> list[int]:
    """End processes by SIGTERM, after `grace` seconds by SIGKILL; return those that are left.

    Args:
        running: ids of those that still run. It is called again and again, since a dying process
            may have started another one.
    """
    for number in (signal.SIGCONT, signal.SIGTERM):  # a stopped process would not handle SIGTERM
        send(running(), number)
    killing = time.monotonic() + grace
    while (left := running()) and time.monotonic() < killing + KILL_LIMIT:
        if time.monotonic() > killing:
            send(left, signal.SIGKILL)
        time.sleep(0.05)
    return left


def send(pids: list[int], number: int) -> None:
    """Send a signal to processes; some may have ended meanwhile."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
