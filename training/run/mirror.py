"""Publishes files of this machine that grow: logs, metrics, TensorBoard's events of a remote run.

Bytes sent are proportional to the files' sizes, however long a run lasts: of a log and of
metrics.jsonl, what is new (howdah/storage/growing.py); of other files, which readers need whole,
all of it whenever they have doubled. The rate is bounded to spare the NameNode: rank 0 publishes
every ten seconds, the other ranks of a large world less often.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from howdah import storage
from howdah.core import activity, threads
from howdah.errors import StorageError
from howdah.storage import growing
from howdah.training.checkpoint.fence import FencedOff

_FIRST_SECONDS = 10.0
"""Between two rounds: published lines and metrics of rank 0 are late by this much."""
_OTHER_SECONDS = 60.0
_SECONDS_PER_RANK = 1.5
"""Other ranks' pauses are so many seconds for each rank of the world: a part is five operations of
the NameNode, and all of a world's ranks together make fewer than five a second."""
_ROUND_SECONDS = 300.0
"""Longest round where storage does not answer; a thread that waits for it is no hang until then."""
_GROWTH = 2.0
"""A file that is published whole is published again when it has grown by this factor."""
_SMALL_PARTS = 64
"""So many parts of single rounds are replaced by one. So each byte is sent at most three times: in
a part, in the larger one, and in the whole file at the end."""


@dataclass
class _Published:
    """What storage has of one file."""

    whole: tuple[int, int] | None = None
    """Size and time of change (ns) of the file when it was last published whole."""
    end: int = 0
    """Bytes that have been published, parts included."""
    small: list[int] = field(default_factory=list)
    """Starts of the parts since the last large one."""
    removing: list[str] = field(default_factory=list)
    """Parts that a larger one has replaced."""
    parts: bool = False
    """Parts have been published since the file was last published whole."""
    due: float = 0.0
    """When the file is looked at again, by the clock."""


class Mirror:
    """Publishes local files to remote storage as they grow, in a thread of its own.

    Args:
        say: takes a line when publishing begins to fail (once, not every round): a storage that is
            away for a minute must not end a training run.
        seconds: pause between two rounds of rank 0.
        clock: seconds that only grow.
        threaded: False: rounds are made by calls of `round` alone.

    `check`, where there is one, is called before a round writes anything. It raises FencedOff where
    another process has the run directory by now: nothing is published from then on.
    """

    def __init__(
        self,
        *,
        say: Callable[[str], None],
        seconds: float = _FIRST_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        threaded: bool = True,
    ) -> None:
        self._say, self._seconds, self._clock = say, seconds, clock
        self._rank, self._size = 0, 1
        self._sources: list[tuple[str, str, bool]] = []
        self._files: dict[str, _Published] = {}
        self._stop, self._wake = threading.Event(), threading.Event()
        self._failing = False
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._threaded = threaded
        self.check: Callable[[], None] | None = None
        self._checked = False
        self.fenced_off: FencedOff | None = None
        """What `check` has raised: nothing is published, unless `resume` is called."""

    def belongs_to(self, rank: int, size: int) -> None:
        """This process's rank, and of how many: they decide how often it publishes."""
        self._rank, self._size = rank, size
        if rank == 0:
            self.hurry()

    @property
    def pause(self) -> float:
        """Seconds between two publications of one file."""
        if self._rank == 0:
            return self._seconds
        return max(self._seconds, _OTHER_SECONDS, _SECONDS_PER_RANK * self._size)

    def add(self, local: str, remote: str, *, in_parts: bool = True) -> None:
        """Publish a file, or every file below a directory, as `remote` from now on.

        Args:
            in_parts: its readers know of parts (howdah/storage/growing.py), and its bytes never
                change later; else it is published whole whenever it has doubled.
        """
        self._sources.append((local, remote, in_parts))
        if self._thread is None and self._threaded:
            # Without it no other machine sees logs of the run: an exception starts it again.
            self._thread = threads.start(
                self._loop, name="mirror", failed=threads.RESTART, say=self._say
            )

    def drop(self, local: str) -> None:
        """Stop publishing this; waits for a round under way."""
        with self._lock:
            self._sources = [source for source in self._sources if source[0] != local]

    def resume(self) -> None:
        """Publish what is left of the sources, without asking: they are this process's own."""
        self.check = self.fenced_off = None

    def hurry(self) -> None:
        """Publish what is new at once, in the mirror's own thread."""
        for state in list(self._files.values()):
            state.due = 0.0
        self._wake.set()

    def abandon(self) -> None:
        """Publish nothing more: the run directory is another process's."""
        self._stop.set()
        self._wake.set()
        with self._lock:
            self._sources.clear()

    def close(self) -> None:
        """Publish every file that has changed whole, a last time.

        Raises:
            StorageError: that fails.
            FencedOff: nothing may be published any more.
        """
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            with activity.at_most(_ROUND_SECONDS):
                self._thread.join()
        if self._sources and self.fenced_off is None:
            with self._lock:
                self._each(self._finish)

    def publish(self) -> None:
        """Publish what is new in files with parts now; a failure is said once, not raised."""
        self._try(lambda path, remote, in_parts: in_parts and self._add_part(path, remote))

    def round(self) -> None:
        """Publish what is due."""
        self._try(self._if_due)

    def _loop(self) -> None:
        while not self._stop.is_set():
            self._wake.wait(self._seconds)
            self._wake.clear()
            if self._stop.is_set():
                return
            # The next round tries again; who ends this run must not wait half an hour for this one.
            with storage.waiting_at_most(self._seconds):
                self.round()

    def _try(self, call: Callable[[str, str, bool], object]) -> None:
        if self.fenced_off is not None:
            return
        try:
            with self._lock:
                self._each(call)
            self._failing = False
        except FencedOff as error:
            self.fenced_off = error
            self._say(f"warning: logs are no longer published: {error.what}")
        except (StorageError, OSError) as error:
            if not self._failing:
                what = error.what if isinstance(error, StorageError) else str(error)
                self._say(f"warning: logs cannot be published now, trying again: {what}")
            self._failing = True

    def _each(self, call: Callable[[str, str, bool], object]) -> None:
        """Call with each file; the error of one is raised when the others have had their turn.

        A file that has been removed meanwhile is none.
        """
        error: Exception | None = None
        self._checked = False
        for local, remote, in_parts in list(self._sources):
            for path in _files_below(local):
                inner = os.path.relpath(path, local)
                target = remote if inner == "." else storage.join(remote, inner)
                try:
                    call(path, target, in_parts)
                except FileNotFoundError:
                    self._files.pop(path, None)
                except (StorageError, OSError) as caught:
                    error = error or caught
        if error is not None:
            raise error

    def _check(self) -> None:
        """Before the first thing that a round writes."""
        if not self._checked and self.check is not None:
            self.check()
        self._checked = True

    # ------------------------------------------------------------------------------ one file
    def _if_due(self, path: str, remote: str, in_parts: bool) -> None:
        now, pause = self._clock(), self.pause
        state = self._files.get(path)
        if state is None:
            state = self._files[path] = _Published()
            if self._rank != 0:  # ranks that begin together do not publish together
                state.due = now + random.uniform(0.0, pause)
        if now < state.due:
            return
        state.due = now + pause
        if in_parts:
            self._add_part(path, remote)
            return
        size = os.stat(path).st_size
        if state.whole is None or size >= _GROWTH * state.end or size < state.end:
            self._put_whole(path, remote)

    def _add_part(self, path: str, remote: str) -> None:
        """Publish what is new; a file that is not published yet, or begun anew, whole."""
        state = self._files.setdefault(path, _Published())
        size = os.stat(path).st_size
        if state.whole is None or size < state.end:
            self._put_whole(path, remote)
            return
        while state.removing:
            self._check()
            storage.remove(state.removing[-1])
            state.removing.pop()
        if size == state.end:
            return
        merge = len(state.small) + 1 >= _SMALL_PARTS
        start = state.small[0] if merge else state.end
        with open(path, "rb") as file:
            file.seek(start)
            data = file.read(size - start)
        self._check()
        state.parts = True
        storage.write_whole(growing.part_path(remote, start), data)
        if merge:
            state.removing = [growing.part_path(remote, other) for other in state.small[1:]]
            state.small = []
        else:
            state.small.append(start)
        state.end = start + len(data)

    def _put_whole(self, path: str, remote: str) -> None:
        """Publish a file whole; parts that an earlier attempt has left are of no use any more."""
        state = self._files.setdefault(path, _Published())
        first = state.whole is None
        info = os.stat(path)
        self._check()
        storage.upload(path, remote)
        if first or state.parts:
            growing.forget_parts(remote)
        state.whole = (info.st_size, info.st_mtime_ns)
        # It may have grown while it was read: those bytes go up once more.
        state.end, state.parts, state.small, state.removing = info.st_size, False, [], []

    def _finish(self, path: str, remote: str, in_parts: bool) -> None:
        state = self._files.setdefault(path, _Published())
        info = os.stat(path)
        if state.parts or state.whole != (info.st_size, info.st_mtime_ns):
            self._put_whole(path, remote)


def _files_below(path: str) -> list[str]:
    if os.path.isfile(path):
        return [path]
    return [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
