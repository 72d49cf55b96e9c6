"""Publishes growing local files of a remote run: logs, metrics, TensorBoard's events.

The bytes sent are proportional to the files' sizes, however long a run lasts. For a log and for
metrics.jsonl only new bytes are sent (howdah/storage/growing.py); other files, which readers need
whole, are sent again whenever they have doubled. The rate is bounded to spare the NameNode: rank 0
publishes every ten seconds, the other ranks of a large world less often.
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
"""Pause between two rounds, by which published lines and metrics of rank 0 are late."""
_OTHER_SECONDS = 60.0
_SECONDS_PER_RANK = 1.5
"""Pause of the other ranks per rank of the world. A part costs the NameNode five operations, so all
ranks of a world together cause fewer than five per second."""
_ROUND_SECONDS = 300.0
"""Longest round if storage does not answer; until then a waiting thread is not considered hung."""
_GROWTH = 2.0
"""A file that is published whole is published again once it has grown by this factor."""
_SMALL_PARTS = 64
"""Number of parts of single rounds that are replaced by a larger one. So each byte is sent at most
three times: in a part, in the larger part, and in the whole file at the end."""


@dataclass
class _Published:
    """The published state of a file."""

    whole: tuple[int, int] | None = None
    """Size and time of change (ns) of the file when it was last published whole."""
    end: int = 0
    """Number of bytes that have been published, parts included."""
    small: list[int] = field(default_factory=list)
    """Starts of the parts since the last large one."""
    removing: list[str] = field(default_factory=list)
    """Paths of parts that a larger one has replaced."""
    parts: bool = False
    """True if parts have been published since the file was last published whole."""
    due: float = 0.0
    """Time of the clock at which the file is checked again."""


class Mirror:
    """Publishes local files to remote storage as they grow, in a separate thread.

    Args:
        say: called with a line when publishing begins to fail (once, not every round): a storage
            that is away for a minute must not end a training run.
        seconds: pause between two rounds of rank 0.
        threaded: False: there is no thread, and only calls of `round` publish.

    `check`, if it is set, is called before a round writes anything. It raises FencedOff if another
    process has taken over the run directory: nothing is published from then on.
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
        """The error that `check` has raised: nothing is published unless `resume` is called."""

    def belongs_to(self, rank: int, size: int) -> None:
        """Set this process's rank and the world's size, which determine how often it publishes."""
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
            in_parts: its readers support parts (howdah/storage/growing.py), and its bytes never
                change later; otherwise it is published whole whenever it has doubled.
        """
        self._sources.append((local, remote, in_parts))
        if self._thread is None and self._threaded:
            # Without it no other machine sees the run's logs, so an exception must not end it.
            self._thread = threads.start(
                self._loop, name="mirror", failed=threads.RESTART, say=self._say
            )

    def drop(self, local: str) -> None:
        """Stop publishing a source, after a round under way."""
        with self._lock:
            self._sources = [source for source in self._sources if source[0] != local]

    def resume(self) -> None:
        """Publish the remaining sources without `check`: only this process writes them."""
        self.check = self.fenced_off = None

    def hurry(self) -> None:
        """Publish new bytes at once, in the mirror's thread."""
        for state in list(self._files.values()):
            state.due = 0.0
        self._wake.set()

    def abandon(self) -> None:
        """Stop publishing, because another process has the run directory."""
        self._stop.set()
        self._wake.set()
        with self._lock:
            self._sources.clear()

    def close(self) -> None:
        """Publish every file that has changed a last time, as a whole.

        Raises:
            StorageError: publishing fails.
            FencedOff: nothing may be published any more.
        """
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            with activity.current().at_most(_ROUND_SECONDS):
                self._thread.join()
        if self._sources and self.fenced_off is None:
            with self._lock:
                self._each(self._finish)

    def publish(self) -> None:
        """Publish the new bytes of files with parts now; a failure is logged once, not raised."""
        self._try(lambda path, remote, in_parts: in_parts and self._add_part(path, remote))

    def round(self) -> None:
        """Publish the files that are due."""
        self._try(self._if_due)

    def _loop(self) -> None:
        while not self._stop.is_set():
            self._wake.wait(self._seconds)
            self._wake.clear()
            if self._stop.is_set():
                return
            # The next round tries again; the run's end must not wait half an hour for this one.
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
        """Call with each file; the first error is raised after all of them. Files that have been
        removed meanwhile are skipped."""
        error: Exception | None = None
        self._checked = False
        for local, remote, in_parts in list(self._sources):
            below = ((at, name) for at, _, names in os.walk(local) for name in names)
            for path in [local] if os.path.isfile(local) else [os.path.join(*one) for one in below]:
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
        """Call `check` before the first write of a round."""
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
        """Publish new bytes, or the whole file if it was not published yet or has shrunk."""
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
        """Publish a file whole, and remove parts, which an earlier attempt may have left."""
        state = self._files.setdefault(path, _Published())
        first = state.whole is None
        info = os.stat(path)
        self._check()
        storage.upload(path, remote)
        if first or state.parts:
            growing.forget_parts(remote)
        state.whole = (info.st_size, info.st_mtime_ns)
        # It may have grown while it was read: then those bytes are sent twice.
        state.end, state.parts, state.small, state.removing = info.st_size, False, [], []

    def _finish(self, path: str, remote: str, in_parts: bool) -> None:
        state = self._files.setdefault(path, _Published())
        info = os.stat(path)
        if state.parts or state.whole != (info.st_size, info.st_mtime_ns):
            self._put_whole(path, remote)
