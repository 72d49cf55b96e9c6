"""Logs refused requests: the first at once, then at most one line a minute with their number.

A line for each refusal would let any host of the network fill the disk that holds the log.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_PAUSE_SECONDS = 60.0


class Refusals:
    """Counts refusals; any thread may use it.

    Args:
        say: logs a line.
        clock: () -> seconds.
    """

    def __init__(
        self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._say, self._clock = say, clock
        self._lock = threading.Lock()
        self._count = 0
        """Number of refusals that the log does not have yet."""
        self._newest = ""
        self._logged = -float("inf")

    def add(self, what: str) -> bool:
        """Count a refusal; True if a line was logged."""
        with self._lock:
            self._count += 1
            self._newest = what
        return self.write_due()

    def write_due(self) -> bool:
        """Log a line if one is due; called from time to time."""
        with self._lock:
            now = self._clock()
            if not self._count or now - self._logged < _PAUSE_SECONDS:
                return False
            count, line, first = self._count, self._newest, self._logged == -float("inf")
            self._count, self._logged = 0, now
        if count > 1:
            line = f"{count} refusals since the last such line; the newest: {line}"
        elif first:
            line += f" (refusals are counted, and logged at most every {_PAUSE_SECONDS:.0f} s)"
        self._say(line)
        return True
