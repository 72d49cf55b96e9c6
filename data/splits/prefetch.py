"""Remote shards fetched before they are needed, and locked until they have been read."""

from __future__ import annotations

import threading

import numpy as np

from howdah.core import threads
from howdah.data.splits.planner import Planner
from howdah.data.splits.shard_cache import NoRoom
from howdah.data.splits.shard_files import ShardFiles
from howdah.errors import HowdahError

_RETRY_SECONDS = 0.5


class Prefetcher:
    """A thread that keeps the node's cache one group of shards ahead of its reader.

    It locks the shards that its reader needs now and next: otherwise making room in a small cache
    could remove a shard before it is read, and it would be fetched twice. While its reader waits
    and a reader elsewhere requests room, it releases the locks: the two would wait for each other.

    The ranks of a node need the same groups. Each starts at another shard of a group, so that they
    fetch different ones at a time; a shard that one of them fetches is there for all.

    Args:
        files: of the split.
        planner: its plan.
        first, stop: steps counted from the run's first, `stop` exclusive.
        rank, world: of the reader.
    """

    def __init__(
        self, files: ShardFiles, planner: Planner, *, first: int, stop: int, rank: int, world: int
    ) -> None:
        self._files, self._planner = files, planner
        self._share = rank / world
        self._groups = len(planner.groups(0))
        epoch, step = planner.at(max(first, stop - 1))
        self._last_group = epoch * self._groups + planner.groups_at(epoch, step)[1]
        self._range = (-1, -1)
        """Groups that are read now or next: first, end (exclusive)."""
        self._needed: list[int] = []
        """Shards of these groups, in the order to fetch them."""
        self._settled: set[int] = set()
        """Those of `_needed` that were fetched or are damaged."""
        self._locks = files.cache.shard_locks()
        self._reader_waiting = self._released = self._closed = False
        self._requests_seen = 0
        """Number of consecutive looks of this thread at which a process requested room."""
        self._changed = threading.Condition()
        self.reached(first)
        # Without it the reader fetches each shard itself, when it needs it.
        self._thread = threads.start(self._work, name="fetch", failed=threads.RESTART)

    # --------------------------------------------------------------------------- the reader's side
    def reached(self, step: int) -> None:
        """The reader continues, with this step (counted from the run's first)."""
        with self._changed:
            groups = self._groups_of(step)
            if groups != self._range or self._released:
                self._range = groups
                shards = [number for group in range(*groups) for number in self._shards(group)]
                self._needed = list(dict.fromkeys(shards))
                self._settled = set() if self._released else self._settled & set(shards)
                self._locks.replace(map(self._files.key_of, shards))
            self._reader_waiting = self._released = False
            self._requests_seen = 0
            self._changed.notify()

    def reader_waits(self) -> None:
        """The reader waits: for room, or because its batches are not consumed yet."""
        with self._changed:
            self._reader_waiting = True

    def close(self) -> None:
        """Release the locks and fetch nothing more; a transfer under way ends by itself."""
        with self._changed:
            self._closed = True
            self._locks.close()
            self._changed.notify()

    # --------------------------------------------------------------------------------- the thread
    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._closed and not self._missing():
                    # Other processes request room, which does not notify this thread: it polls.
                    self._changed.wait(None if self._released else _RETRY_SECONDS)
                    self._release_if_requested()
                if self._closed:
                    return
                number = self._missing()[0]
            done = self._fetched(number)
            with self._changed:
                if done:
                    self._settled.add(number)
                elif not self._closed:
                    self._changed.wait(_RETRY_SECONDS)
                    self._release_if_requested()

    def _fetched(self, number: int) -> bool:
        """Try to fetch a shard; False if that is not possible now."""

        def require_needed() -> None:
            # The reader may have fetched and read it already, and the cache removed it again.
            with self._changed:
                if self._closed or number not in self._missing():
                    raise _NoLongerNeeded

        try:
            self._files.fetch(number, before=require_needed)
        except (NoRoom, _NoLongerNeeded):
            return False
        except HowdahError:
            pass  # the reader gets the same error, and raises it where it is handled
        return True

    def _missing(self) -> list[int]:
        """Shards that are still to be fetched."""
        return [] if self._released else [n for n in self._needed if n not in self._settled]

    def _release_if_requested(self) -> None:
        requested = self._reader_waiting and self._files.cache.room_requested()
        self._requests_seen = self._requests_seen + 1 if requested else 0
        # Twice in a row: two processes that look at the same moment take each other for a request.
        if self._requests_seen == 2:
            self._released = True  # until the reader continues
            self._locks.replace(())

    def _groups_of(self, step: int) -> tuple[int, int]:
        """The groups that a step's window reads and the one after: first, end (exclusive).

        Counted through all epochs. Two groups, or as many as the window reads from: the cache need
        not have room for more at a time.
        """
        epoch, step_of_epoch = self._planner.at(step)
        first, last = self._planner.groups_at(epoch, step_of_epoch)
        base = epoch * self._groups
        return base + first, min(base + max(last, first + 1), self._last_group) + 1

    def _shards(self, group: int) -> list[int]:
        epoch, number = divmod(group, self._groups)
        shards = self._planner.groups(epoch)[number]
        return np.roll(shards, -int(self._share * len(shards))).tolist()


class _NoLongerNeeded(Exception):
    """The reader has read past the shard."""
