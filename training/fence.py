"""The fencing number of an attempt at a run: a later attempt makes the earlier one powerless.

A training process that everybody takes for dead (a container that YARN has lost sight of, a machine
that was asleep) may wake up and write. Each attempt creates `<run>/attempts/<N>.json` exclusively
and looks for a greater number before it commits anything. (The fencing token of M. Kleppmann,
"How to do distributed locking", 2016.)
"""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import dataclass

from howdah import storage
from howdah.errors import AlreadyExists, CheckpointError, NotFound

__all__ = ["Fence", "FencedOff"]


class FencedOff(CheckpointError):
    """A later attempt has taken over the run: this process writes nothing more there."""


@dataclass(frozen=True)
class Fence:
    """The right of attempt number `attempt` to write in a run directory."""

    run_directory: str
    attempt: int

    @classmethod
    def take(cls, run_directory: str) -> Fence:
        """Take the next number. Any earlier holder loses its right to commit.

        Raises:
            StorageError: the run directory cannot be written.
        """
        directory = storage.join(run_directory, "attempts")
        storage.make_dirs(directory)
        attempt = max(_numbers(directory), default=0) + 1
        body = {"host": socket.gethostname(), "pid": os.getpid(), "unix_time": time.time()}
        while True:
            path = storage.join(directory, f"{attempt}.json")
            try:
                storage.create_exclusive(path, json.dumps(body).encode())
            except AlreadyExists:  # another attempt took this very number just now
                attempt += 1
                continue
            return cls(run_directory, attempt)

    def check(self) -> None:
        """Raise FencedOff if a later attempt exists: the process that holds this fence is a zombie.

        Asked before every write to the run directory. Between question and write lie milliseconds;
        only a checkpoint's name is given with more certainty: the rename refuses a name in use.
        """
        directory = storage.join(self.run_directory, "attempts")
        later = max(_numbers(directory), default=self.attempt)
        if later > self.attempt:
            raise FencedOff(
                "a later attempt has taken over this run; nothing more is written by this one",
                where=self.run_directory,
                expected=f"attempt {self.attempt} to be the newest",
                got=f"attempt {later} ({_holder(storage.join(directory, f'{later}.json'))})",
                remedy="let the later attempt go on, or stop it and start the run again",
            )


def _numbers(directory: str) -> list[int]:
    """The attempts that a run directory knows of; none when the folder is not there."""
    try:
        entries = storage.list_dir(directory)
    except NotFound:
        return []
    stems = [entry.name.removesuffix(".json") for entry in entries if entry.name.endswith(".json")]
    return [int(stem) for stem in stems if stem.isdigit()]


def _holder(path: str) -> str:
    body = storage.read_json(path)
    return f"host {body.get('host')}, pid {body.get('pid')}"
