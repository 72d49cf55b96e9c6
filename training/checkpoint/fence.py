"""The fencing number of an attempt at a run: once a later attempt exists, an earlier one must not
write.

A training process that was presumed dead (YARN lost contact with its container, or the machine was
suspended) may resume and write. Each attempt creates `<run>/attempts/<N>.json` exclusively and
looks for a greater number before it commits anything. (This is the fencing token of M. Kleppmann,
"How to do distributed locking", 2016.)

On a cluster the file names the attempt of the application (howdah/attempts.py): a process of an
earlier application attempt cannot take a fence, however late it tries.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from howdah import storage
from howdah.attempts import Attempt, fences, of_fence
from howdah.errors import AlreadyExists, CheckpointError

_LOOKED_AT = 8
"""Number of the newest fences that are searched for one of a later application attempt. Numbers
rise with attempts, except among a few that were taken at the same moment."""


class FencedOff(CheckpointError):
    """A later attempt has taken over the run: this process must not write there any more."""


@dataclass(frozen=True)
class Fence:
    """The right of attempt number `attempt` to write in a run directory."""

    run_directory: str
    attempt: int
    of: Attempt | None = None
    """The application's attempt on a cluster; None without an application."""

    @classmethod
    def take(cls, run_directory: str, of: Attempt | None = None) -> Fence:
        """Take the next number. Any earlier holder loses its right to commit.

        Args:
            of: the application's attempt; None: the one that the environment names, if any.
        Raises:
            FencedOff: a later attempt, or a later application, has a fence.
            StorageError: the run directory cannot be written.
        """
        of = of or Attempt.of_environment()
        directory = storage.join(run_directory, "attempts")
        storage.make_dirs(directory)
        body = {"host": socket.gethostname(), "pid": os.getpid(), "unix_time": time.time()}
        body |= {} if of is None else of.to_dict()
        while True:
            numbers = fences(run_directory)
            fence = cls(run_directory, max(numbers, default=0) + 1, of)
            fence._refuse_where_later(sorted(numbers, reverse=True)[:_LOOKED_AT])
            path = storage.join(directory, f"{fence.attempt}.json")
            try:
                storage.create_exclusive(path, json.dumps(body).encode())
            except AlreadyExists:  # another attempt took this number just now
                continue
            return fence

    def check(self) -> None:
        """Raise FencedOff if a later attempt exists: the process that holds this fence is a zombie.

        Call it before every write to the run directory. Check and write are milliseconds apart and
        not atomic; checkpoints are safer, since their rename fails if the name is in use.
        """
        later = (number for number in fences(self.run_directory) if number > self.attempt)
        for number in sorted(later, reverse=True):
            body = of_fence(self.run_directory, number)
            if body is None:
                continue  # removed by hand
            theirs = Attempt.of(body)
            if not (self.of and theirs and self.of.follows(theirs)):
                raise self._fenced_off(number, body)

    def _refuse_where_later(self, numbers: Iterable[int]) -> None:
        """Raise FencedOff if one of these fences belongs to a later attempt of an application."""
        if self.of is None:
            return
        for number in numbers:
            body = of_fence(self.run_directory, number)
            theirs = Attempt.of(body)
            if theirs is not None and theirs.follows(self.of):
                raise self._fenced_off(number, body or {})

    def _fenced_off(self, number: int, body: dict[str, Any]) -> FencedOff:
        theirs = Attempt.of(body)
        who = f"host {body.get('host')}, pid {body.get('pid')}"
        attempt = f"attempt {self.attempt}" + (f" ({self.of})" if self.of else "")
        return FencedOff(
            f"a later attempt has taken over this run; {attempt} does not write any more",
            where=self.run_directory,
            got=f"attempt {number} ({who}{f', {theirs}' if theirs else ''})",
            remedy="let the later attempt continue, or stop it and start the run again",
        )
