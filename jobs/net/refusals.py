"""Refused requests in the log: a line at once, and then at most one a minute with their number.

The sender decides how often it is refused: a line each would let any host of the network fill the
disk that holds the log.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_PAUSE_SECONDS = 60.0


class Refusals:
    """Counts refusals; any thread may use it.

    Args:
        say: takes a line.
        clock: seconds.
    """

    def __init__(
        self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._say, self._clock = say, clock
        self._lock = threading.Lock()
        self._count = 0
        """Refusals of which the log has no line."""
        self._newest = ""
        self._said = -float("inf")

    def add(self, what: str) -> bool:
        """Count a refusal; whether a line was logged."""
        with self._lock:
            self._count += 1
            self._newest = what
        return self.write_due()

    def write_due(self) -> bool:
        """Write the line that is due, if one is; to be called from time to time."""
        with self._lock:
            now = self._clock()
            if not self._count or now - self._said < _PAUSE_SECONDS:
                return False
            count, line, first = self._count, self._newest, self._said == -float("inf")
            self._count, self._said = 0, now
        if count > 1:
            line = f"{count} refusals since the last such line; the newest: {line}"
        elif first:
            line += f" (refusals are counted: at most a line in {_PAUSE_SECONDS:.0f} s)"
        self._say(line)
        return True
