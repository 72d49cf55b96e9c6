"""The right to write to a run directory: a driver has it while no later attempt has begun.

A driver that was stopped, or that the network cut off from the cluster, may go on after the cluster
has started the next attempt, and after that one has ended. Each driver's status.json names its
attempt: one that finds a later one's there writes nothing any more, and ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from howdah import storage
from howdah.attempts import Attempt
from howdah.errors import ClusterError, DataError, NotFound

_SURE_SECONDS = 1.0
"""So old may an answer be, by the monotonic clock, that a write relies on. It goes on while the
process is stopped: one that wakes up asks again."""


class Superseded(ClusterError):
    """A later attempt has taken the job over: this driver ends, and writes nothing any more."""


class Claim:
    """A driver's right to write the status of its run.

    Args:
        status_path: status.json, which may be another driver's.
        application: our application's id.
        number: which of its attempts we are, 1 for the first.
        started: when the application was submitted, seconds since 1970.
        superseded: what the cluster's own files say of a later attempt (DriverBackend.superseded).
    Raises:
        Superseded: a later attempt of our application is there.
        StorageError: status.json cannot be read.
    """

    def __init__(
        self,
        status_path: str,
        *,
        application: str,
        number: int,
        started: float,
        superseded: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._status_path, self._superseded = status_path, superseded
        there = self._there()
        if there is not None and there.application == application:
            started = there.started
        elif there is not None:
            # The cluster has started this driver just now, and that application before: whatever
            # the clocks of the two submitters say, this attempt is the later one.
            started = max(started, there.started + 0.001)
        self.attempt = Attempt(application, started, number)
        self._sure = float("-inf")
        self.check()

    def check(self, sure_seconds: float = 0.0) -> None:
        """Raise Superseded where a later attempt has begun.

        Args:
            sure_seconds: an answer that is not older than this is taken for one of now.
        Raises:
            StorageError: status.json cannot be read.
        """
        if time.monotonic() - self._sure <= sure_seconds:
            return
        asked = time.monotonic()
        there, later = self._there(), None
        if there is not None and there.follows(self.attempt):
            later = str(there)
        later = later or self._superseded()
        if later is not None:
            raise Superseded(
                "a later attempt has taken over this job; this driver ends and writes nothing more",
                where=self._status_path,
                expected=f"{self.attempt} to be the newest",
                got=later,
                remedy="nothing, if that one runs or has ended well (`howdah status`)",
            )
        self._sure = asked

    def write(self, path: str, data: bytes) -> None:
        """Replace a file of the run directory, unless a later attempt has begun.

        Raises:
            Superseded: it has; nothing was written.
            StorageError: it cannot be written, or status.json cannot be read.
        """

        def fill(file) -> None:
            file.write(data)
            self.check(_SURE_SECONDS)  # the last thing before the file gets its name

        self.check(_SURE_SECONDS)
        storage.write_stream(path, fill, size=len(data))

    def _there(self) -> Attempt | None:
        """The attempt whose status is there; None: there is none that can be read."""
        try:
            return Attempt.of(storage.read_json(self._status_path))
        except (NotFound, DataError):
            return None
