"""The right to write to a run directory: a driver has it until a later attempt has begun.

A driver that was stopped, or that the network cut off from the cluster, may go on after the cluster
has started the next attempt, and even after that one has ended. Each driver's status.json names its
attempt: a driver that reads a later attempt there writes nothing more and ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from howdah import storage
from howdah.attempts import Attempt
from howdah.errors import ClusterError, DataError, NotFound

_SURE_SECONDS = 1.0
"""How old the last check may be for a write. The monotonic clock goes on while the process is
stopped, so that a driver that is continued checks again."""


class Superseded(ClusterError):
    """A later attempt has taken over the job: this driver ends and writes nothing more."""


class Claim:
    """A driver's right to write the status of its run.

    Args:
        status_path: status.json, which may be another driver's.
        application: our application's id.
        number: the number of this attempt, 1 for the first.
        started: when the application was submitted, in seconds since 1970.
        superseded: () -> a later attempt in the cluster's files (DriverBackend.superseded).
    Raises:
        Superseded: a later attempt of our application has begun.
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
        present = self._present()
        if present is not None and present.application == application:
            started = present.started
        elif present is not None:
            # The cluster has just started this driver, so that this attempt is the later one even
            # if the clocks of the two submitters disagree.
            started = max(started, present.started + 0.001)
        self.attempt = Attempt(application, started, number)
        self._sure = float("-inf")
        self.check()

    def check(self, sure_seconds: float = 0.0) -> None:
        """Raise Superseded where a later attempt has begun.

        Args:
            sure_seconds: skip the check if the last one is not older than this.
        Raises:
            StorageError: status.json cannot be read.
        """
        if time.monotonic() - self._sure <= sure_seconds:
            return
        now = time.monotonic()
        present, later = self._present(), None
        if present is not None and present.follows(self.attempt):
            later = str(present)
        later = later or self._superseded()
        if later is not None:
            raise Superseded(
                "a later attempt has taken over this job; this driver ends and writes nothing more",
                where=self._status_path,
                expected=f"{self.attempt} to be the newest",
                got=later,
            )
        self._sure = now

    def write(self, path: str, data: bytes) -> None:
        """Replace a file of the run directory, unless a later attempt has begun.

        Raises:
            Superseded: a later attempt has begun; nothing was written.
            StorageError: the file cannot be written, or status.json cannot be read.
        """

        def fill(file) -> None:
            file.write(data)
            self.check(_SURE_SECONDS)  # as late as possible: the file gets its name after this

        self.check(_SURE_SECONDS)
        storage.write_stream(path, fill, size=len(data))

    def _present(self) -> Attempt | None:
        """The attempt in status.json; None: the file is missing or not readable."""
        try:
            return Attempt.of(storage.read_json(self._status_path))
        except (NotFound, DataError):
            return None
