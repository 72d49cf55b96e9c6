"""Who works on which trial: leases in the study's directory, the same for every Optuna storage.

`<study>/leases/<trial>.<attempt>.json` is created exclusively: of several workers one gets an
attempt at a trial. Its worker counts the file's beat up; one whose beat stands still for the
lease's length, as seen by the READER's own clock, has expired, and another worker may create the
next attempt's. So clocks of machines need not agree, and a worker that was only suspended finds
the next attempt's file when it wakes up, and ends its training. (Optuna's journal has no heartbeat,
and that of its databases beats inside `Study.optimize` alone.) What protects the run directory
itself is the fence of the training: the later attempt wins.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from howdah import storage
from howdah.core import threads
from howdah.core.processes import boot_id, pid_space, process_start
from howdah.errors import AlreadyExists, DataError, HowdahError, NotFound

State = Literal["held", "released", "lost"]
_NAME = re.compile(r"(\d+)\.(\d+)\.json")
_BEATS = 4
"""Beats in the length of a lease: one that storage delays costs nothing."""


@dataclass(frozen=True, kw_only=True)
class Lease:
    """One attempt at a trial."""

    worker: str
    """Host and process, for messages."""
    machine: str
    """Where `pid` can be looked up: this boot of this machine, and its space of process ids."""
    pid: int
    start: int
    """When the process began, in clock ticks since boot: with the pid its identity."""
    seconds: float
    """Its length."""
    beat: int = 0
    state: State = "held"


def expired(lease: Lease, unchanged_seconds: float, *, here: str, start: int | None) -> bool:
    """Whether the worker of a lease is dead, as far as a reader can tell.

    Args:
        unchanged_seconds: how long the reader has seen the same beat.
        here: the reader's machine.
        start: when the process with the lease's pid began; None: there is none. Meaningful only on
            the lease's own machine.
    """
    if lease.state != "held":
        return True
    if lease.machine == here and lease.start != start:
        return True  # its process is gone: no need to wait
    return unchanged_seconds >= lease.seconds


@dataclass
class Watch:
    """For how long a reader has seen the same beats."""

    seen: dict[Any, tuple[int, float]] = field(default_factory=dict)

    def unchanged(self, key: Any, beat: int, now: float) -> float:
        """Seconds since the reader first saw this beat of `key`, at `now` (a monotonic clock)."""
        before = self.seen.get(key)
        if before is None or before[0] != beat:
            self.seen[key] = before = (beat, now)
        return now - before[1]


def here() -> str:
    """This boot of this machine and this process's space of process ids."""
    return f"{boot_id()} {pid_space()}"


class Leases:
    """The leases of a study, and those that this worker holds. Any thread may call.

    Args:
        directory: the study's.
        seconds: length of this worker's leases.
        say: takes a line where renewing fails.
    """

    def __init__(self, directory: str, seconds: float, say: Callable[[str], None]) -> None:
        self._directory = storage.join(directory, "leases")
        self._say = say
        self._lock = threading.Lock()
        self._held: dict[int, tuple[int, Lease]] = {}
        self._superseded: set[int] = set()
        self._watch = Watch()
        self._machine = here()
        self._done = threading.Event()
        self._own = Lease(
            worker=f"pid {os.getpid()} on {socket.gethostname()}", machine=self._machine,
            pid=os.getpid(), start=process_start(os.getpid()) or 0, seconds=seconds,
        )  # fmt: skip

    def _path(self, number: int, attempt: int) -> str:
        return storage.join(self._directory, f"{number}.{attempt}.json")

    # ------------------------------------------------------------------------------ reading
    def attempts(self) -> dict[int, int]:
        """{trial: its newest attempt}."""
        newest: dict[int, int] = {}
        try:
            entries = storage.list_dir(self._directory)
        except NotFound:
            return newest
        for entry in entries:
            if match := _NAME.fullmatch(entry.name):
                number, attempt = int(match[1]), int(match[2])
                newest[number] = max(attempt, newest.get(number, 0))
        return newest

    def read(self, number: int, attempt: int) -> Lease:
        """The lease of an attempt."""
        path = self._path(number, attempt)
        found = storage.read_json(path)
        try:
            return Lease(**found)
        except TypeError as error:
            raise DataError("this is no lease of a trial", where=path, got=str(error)) from None

    def free(self, numbers: Iterable[int]) -> dict[int, int]:
        """{trial: its newest attempt, or 0} of those that no living worker works on, in order."""
        newest, now, found = self.attempts(), time.monotonic(), {}
        for number in numbers:
            if number in self._held:
                continue
            attempt = newest.get(number)
            if attempt is None:
                found[number] = 0
                continue
            lease = self.read(number, attempt)
            start = process_start(lease.pid) if lease.machine == self._machine else None
            unchanged = self._watch.unchanged((number, attempt), lease.beat, now)
            if expired(lease, unchanged, here=self._machine, start=start):
                found[number] = attempt
        return found

    def losses(self, number: int) -> int:
        """How often a trial was lost: attempts before the present one that were not released."""
        with self._lock:
            own = self._held[number][0]
        states = [self.read(number, attempt).state for attempt in range(1, own)]
        return sum(state != "released" for state in states)

    # ------------------------------------------------------------------------------ holding
    def take(self, number: int, newest: int) -> int | None:
        """Begin the attempt after `newest`, which `free` has found to be over; None: another worker
        was faster."""
        attempt = newest + 1
        try:
            storage.create_exclusive(self._path(number, attempt), _json(self._own))
        except AlreadyExists:
            return None
        with self._lock:
            self._held[number] = (attempt, self._own)
        return attempt

    def end(self, number: int, state: Literal["released", "lost"]) -> None:
        """Give a trial back: to go on with it (released), or because its training was lost."""
        with self._lock:
            attempt, lease = self._held.pop(number)
            if number not in self._superseded:
                storage.write_whole(self._path(number, attempt), _json(replace(lease, state=state)))
            self._superseded.discard(number)

    def superseded(self, number: int) -> bool:
        """Another worker has taken over a trial that this one holds."""
        with self._lock:
            return number in self._superseded

    def renew(self) -> None:
        """Count each held lease's beat up, and notice the next attempts of others."""
        with self._lock:
            for number, (attempt, lease) in self._held.items():
                if storage.exists(self._path(number, attempt + 1)):
                    self._superseded.add(number)
                    continue
                lease = replace(lease, beat=lease.beat + 1)
                storage.write_whole(self._path(number, attempt), _json(lease))
                self._held[number] = (attempt, lease)

    def __enter__(self) -> Leases:
        storage.make_dirs(self._directory)
        threads.start(self._keep, name="leases", failed=threads.RESTART, say=self._say)
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()

    def _keep(self) -> None:
        while not self._done.wait(self._own.seconds / _BEATS):
            try:
                self.renew()
            except HowdahError as error:  # the next beat tries again
                self._say(f"leases of trials could not be renewed: {error.what}")


def _json(lease: Lease) -> bytes:
    return (json.dumps(asdict(lease)) + "\n").encode()
