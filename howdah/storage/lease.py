"""Who may write: a lease is a file that one process creates exclusively and renews.

Each renewal counts the file's beat up. A reader takes the holder for dead when the beat has not
changed for the lease's length: by the reader's monotonic clock (`Watch`), or, where it cannot wait
that long, by the storage's own clock and a second look (`living`). The clocks of two machines are
never compared. On the holder's own machine its process is looked up, so that a killed one is not
waited for.

Leases that are taken over are a series, `<stem>.<number>.json`: the greatest number holds. The next
holder creates the next number and leaves the earlier file alone. So of several processes that find
a holder dead exactly one succeeds it, and a holder that was only suspended finds the next file and
stops (`Lease.lost`).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from howdah import storage
from howdah.core import threads
from howdah.core.processes import boot_id, pid_space, process_start
from howdah.errors import (
    AlreadyExists,
    DataError,
    HowdahError,
    NotFound,
    StorageError,
    StorageUnavailable,
)
from howdah.storage.shapes import COUNT, NUMBER, TEXT, Fields, one_of

State = Literal["held", "released", "lost"]
SECONDS = 600.0
"""Length of a lease whose holder does not choose another one."""
SECOND_LOOK_SECONDS = 10.0
"""After an outage of the storage all leases look expired: a holder renews its own within this."""
_BEATS = 10
"""Renewals within the length of a lease: some may fail."""
_AGAIN_SECONDS = 3.0
"""Between two attempts to renew while the storage is away."""
_END_SECONDS = 60.0
"""How long a release waits for the storage; a file that stays expires."""


def machine() -> str:
    """This boot of this machine and this process's namespace of process ids; "" where /proc does
    not say."""
    try:
        return f"{boot_id()} {pid_space()}"
    except OSError:
        return ""


# ------------------------------------------------------------------------------------ the file
@dataclass(frozen=True, kw_only=True)
class Contents:
    """The contents of a lease's file."""

    host: str = "?"
    """For messages."""
    pid: int = 0
    machine: str = ""
    """Where `pid` can be looked up (`machine()`)."""
    start: int = 0
    """When the process began, in clock ticks since boot: its identity, with the pid."""
    seconds: float = SECONDS
    """Length of the lease."""
    beat: int = 0
    state: State = "held"
    """"lost": the holder gave it back because its work failed."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the caller."""

    @property
    def holder(self) -> str:
        """The process, for messages."""
        return f"pid {self.pid} on {self.host}"

    def running(self) -> bool | None:
        """Whether the holder's process runs; None where it cannot be looked up from here."""
        if not self.machine or self.machine != machine():
            return None
        start = process_start(self.pid)
        if start is None:
            try:
                os.kill(self.pid, 0)
            except PermissionError:  # /proc may hide the processes of other users (hidepid)
                return None
            except ProcessLookupError:
                pass
        return start == self.start

    def expired(self, unchanged_seconds: float, running: bool | None) -> bool:
        """Whether another process may take the lease over.

        Args:
            unchanged_seconds: how long the reader has seen the same beat.
            running: as `running()` says.
        """
        return self.state != "held" or running is False or unchanged_seconds >= self.seconds

    def as_json(self) -> bytes:
        """The file."""
        body = {**self.more, **asdict(self)}
        del body["more"]
        return (json.dumps(body) + "\n").encode()


_NAMES = {one.name for one in fields(Contents)} - {"more"}
_SHAPE = Fields(
    {
        "host": TEXT, "pid": COUNT, "machine": TEXT, "start": COUNT, "seconds": NUMBER,
        "beat": COUNT, "state": one_of(("held", "released", "lost")),
    }
)  # fmt: skip


def read(path: str) -> Contents:
    """A lease's file; of a damaged one nothing is known, and its holder lives by its age.

    Raises:
        NotFound: it has been released.
    """
    try:
        body = storage.read_object(path, _SHAPE)
    except DataError:
        return Contents()
    named = {key: value for key, value in body.items() if key in _NAMES and value is not None}
    more = {key: value for key, value in body.items() if key not in _NAMES}
    return Contents(**named, more=more)


def numbered(stem: str, number: int) -> str:
    """The file of a series' holder."""
    return f"{stem}.{number}.json"


# ---------------------------------------------------------------------------------- the holder
class Lease:
    """A lease that this process holds from `acquire`, or the begin of its block, until `release`.

    A block renews it in a thread. Any thread may call.

    Args:
        path: the file.
        seconds: length of the lease.
        successor: the file of a process that takes it over; None: only a sweep may end it.
        say: takes a line where it cannot be renewed.
        more: fields of the file.
    """

    def __init__(
        self,
        path: str,
        *,
        seconds: float = SECONDS,
        successor: str | None = None,
        say: Callable[[str], None] = lambda line: None,
        **more: Any,
    ) -> None:
        self.path = path
        self.contents = Contents(
            host=socket.gethostname(), pid=os.getpid(), machine=machine(),
            start=process_start(os.getpid()) or 0, seconds=seconds, more=more,
        )  # fmt: skip
        self._successor, self._say = successor, say
        self.taken_over = False
        """Whether the last look, each renewal's or `lost()`'s, has found a successor."""
        self._succeeds = self._created = False
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    @classmethod
    def of_series(cls, stem: str, number: int, **more: Any) -> Lease:
        """Number `number` of a series, which number + 1 succeeds; arguments as of Lease."""
        lease = cls(numbered(stem, number), successor=numbered(stem, number + 1), **more)
        lease._succeeds = number > 1
        return lease

    def acquire(self) -> Lease:
        """Create the file.

        Raises:
            AlreadyExists: another process has.
        """
        self._created = True  # an interrupt may come when the file is there already
        try:
            storage.create_exclusive(self.path, self.contents.as_json())
        except AlreadyExists:
            self._created = False
            raise
        return self

    def lost(self) -> bool:
        """Whether another process has taken it over: this one must not write any more."""
        if not self.taken_over and self._successor is not None:
            self.taken_over = storage.exists(self._successor)
        return self.taken_over

    def renew(self) -> None:
        """Count the beat up, unless another process has taken the lease over."""
        with self._lock:
            if self._done.is_set() or self.lost():
                return
            self.contents = replace(self.contents, beat=self.contents.beat + 1)
            storage.write_whole(self.path, self.contents.as_json())

    def release(self, state: Literal["released", "lost"] | None = None) -> None:
        """End it; no error where that is done already.

        Args:
            state: what the file says from now on; None: the file is removed. One that succeeds
                another stays, so that the earlier holder, if it was only suspended, finds it.
        """
        self.abandon()
        with self._lock:
            if not self._created or self.lost():
                return
            if state is None and not self._succeeds:
                storage.remove(self.path)
            else:
                self.contents = replace(self.contents, state=state or "released")
                storage.write_whole(self.path, self.contents.as_json())

    def __enter__(self) -> Lease:
        if not self._created:
            self.acquire()
        self.keep_renewing()
        return self

    def keep_renewing(self) -> None:
        """Renew it in a thread until it is released, abandoned or taken over."""
        self._thread = threads.start(self._renewals, name="lease", failed=threads.RESTART)

    def abandon(self) -> None:
        """Renew it no more: it expires."""
        self._done.set()

    def __exit__(self, *error: object) -> None:
        self.abandon()
        if self._thread is not None:  # an interrupt may have come before it was started
            self._thread.join(_END_SECONDS)
        with contextlib.suppress(StorageError), storage.waiting_at_most(_END_SECONDS):
            self.release()

    def _renewals(self) -> None:
        interval = self.contents.seconds / _BEATS
        pause, failing = interval, False
        while not self.taken_over and not self._done.wait(pause):
            # Each is one attempt, so that a release does not wait for the storage.
            try:
                with storage.waiting_at_most(0.0):
                    self.renew()
                pause, failing = interval, False
            except HowdahError as error:
                away = isinstance(error, StorageUnavailable)
                pause = min(_AGAIN_SECONDS, interval) if away else interval
                if not failing:
                    self._say(f"a lease could not be renewed: {error.what} ({self.path})")
                failing = True


def acquire(stem: str, *, seconds: float = SECONDS, **more: Any) -> Lease:
    """The lease of a series, taken over where its holder has ended. Arguments as of Lease.

    Raises:
        AlreadyExists: a living process holds it.
    """
    while True:
        newest = _newest(stem)
        if newest:
            path = numbered(stem, newest)
            try:
                held = read(path)
            except NotFound:  # released meanwhile
                continue
            if held.state == "held" and living({path: held}):
                raise AlreadyExists("another process holds the lease", where=path, got=held.holder)
        lease = Lease.of_series(stem, newest + 1, seconds=seconds, **more)
        with contextlib.suppress(AlreadyExists):
            lease.acquire()
            if not lease.lost():  # the number was free, but a later one may not be
                return lease


def _newest(stem: str) -> int:
    """The greatest number of a series; 0: it has none."""
    name = re.compile(re.escape(storage.name(stem)) + r"\.(\d+)\.json")
    try:
        entries = storage.list_dir(storage.parent(stem))
    except NotFound:
        return 0
    return max((int(match[1]) for one in entries if (match := name.fullmatch(one.name))), default=0)


# ---------------------------------------------------------------------------------- the reader
@dataclass
class Watch:
    """For how long a reader has seen the same beats."""

    seen: dict[Any, tuple[Any, float, float]] = field(default_factory=dict)
    """{key: (beat, when it was first seen, its age then)}."""

    def unchanged(
        self, key: Any, beat: Any, now: float, age: Callable[[], float] = lambda: 0.0
    ) -> float:
        """Seconds for which the beat of `key` has not changed, as far as the reader can tell.

        Args:
            now: by a monotonic clock.
            age: seconds that the beat had when the reader saw this key for the first time.
        """
        before = self.seen.get(key)
        if before is None or before[0] != beat:
            self.seen[key] = before = (beat, now, age() if before is None else 0.0)
        return before[2] + now - before[1]


def living(leases: Mapping[str, Contents]) -> set[str]:
    """Return the paths of leases whose holders live, for a reader that cannot watch them for long.

    A process that runs on this machine lives, even one that is suspended. Of others the storage's
    own clock gives the beat's age: it stamps the file and a probe beside it. Where all that is
    known is that the beat is too old, the file must change within SECOND_LOOK_SECONDS.
    """
    alive: set[str] = set()
    suspects: dict[str, bytes] = {}
    for path, contents in leases.items():
        try:
            running = contents.running() if contents.state == "held" else False
            if running or (running is None and age(path) < contents.seconds):
                alive.add(path)
            elif running is None:
                suspects[path] = storage.read_bytes(path)
        except NotFound:  # released
            continue
    if suspects:
        time.sleep(SECOND_LOOK_SECONDS)
    for path, before in suspects.items():
        with contextlib.suppress(NotFound):
            if storage.read_bytes(path) != before:
                alive.add(path)
    return alive


def age(path: str) -> float:
    """Seconds since a file was written, by the storage's own clock; 0 where it is gone by now.

    Raises:
        StorageError: a probe cannot be written beside it.
    """
    name = f"{storage.TEMP_PREFIX}clock-{secrets.token_hex(8)}"
    probe = storage.join(storage.parent(path), name)
    try:
        with storage.open_write(probe) as file:
            file.write(b"0")
        return storage.modified(probe) - storage.modified(path)
    except NotFound:
        return 0.0
    finally:
        storage.remove(probe)


_heard = Watch()


def unheard_seconds(path: str, writer: str, beat: Any) -> float:
    """For how long the writer of a file has not renewed it, a file that need not be a lease's.

    Args:
        path: the file.
        writer: whose file it is, such as an application.
        beat: what the file holds that each renewal changes.
    """

    def first_age() -> float:
        try:
            return age(path)
        except HowdahError:
            # A user who may not write there cannot take it over either: the age is for display.
            written_at = beat if isinstance(beat, int | float) else 0.0
            return max(0.0, time.time() - written_at)

    return _heard.unchanged((path, writer), beat, time.monotonic(), first_age)
