"""The end of a rank: it waits for the others if all have agreed to end, and prints its error."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import TextIO

from howdah.errors import HowdahError
from howdah.training.process.failure import Failure
from howdah.training.process.stopping import StopSignals


class FinalBarrier:
    """The last collective of a world whose ranks have agreed to end.

    Args:
        seconds: maximum time to wait for the others (`checkpoint.grace_seconds`).
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._enter: Callable[[], None] | None = None

    def agree(self, enter: Callable[[], None]) -> None:
        """Record that all ranks have agreed to end; `enter` is the last collective."""
        self._enter = enter

    def wait(self, exit_code: int) -> None:
        """Enter it if `agree` was called; the process exits if that takes too long.

        Every rank enters, so that none exits before rank 0 has saved: a launcher that sees one of
        them exit kills the others.
        """
        enter, self._enter = self._enter, None
        if enter is None:
            return
        limit = threading.Timer(self._seconds, os._exit, (exit_code,))
        limit.daemon = True
        limit.start()
        # A lost rank, or an error in another rank's save, ends the wait as well.
        with contextlib.suppress(HowdahError):
            enter()
        limit.cancel()


def print_failure(failure: Failure, console: TextIO, signals: StopSignals) -> None:
    """Print the error on the console; other ranks than 0 do so only if rank 0 does not."""
    who = "training" if failure.rank == 0 else f"rank {failure.rank}"
    # Usually rank 0 has failed in the same way and prints it, and the launcher ends this process
    # (mpirun after a second).
    if failure.rank == 0 or not (failure.consequence or signals.torn_down_within(3.0)):
        with contextlib.suppress(OSError):  # the terminal or the launcher is gone
            print(f"{who}: {failure.text}", file=console, flush=True)
