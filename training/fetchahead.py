"""Remote shards fetched before they are needed, and kept until they have been read."""

from __future__ import annotations

import threading

import numpy as np

from howdah.errors import HowdahError
from training.planner import Planner
from training.shardcache import NoRoom
from training.shardfiles import ShardFiles

__all__ = ["FetchAhead"]

_AGAIN_SECONDS = 0.5


class FetchAhead:
    """A thread that keeps the node's cache one group of shards ahead of its reader.

    What its reader is going to need it wants: else whoever makes room in a small cache might take a
    shard that is still to be read, and it would be fetched twice. It wants nothing while somebody
    else cannot go on for lack of room and its reader waits: two ranks would wait for each other.

    The ranks of a node want the same groups; each begins at another shard of a group, so that they
    fetch different ones at a time, and a shard that one of them fetches is fetched for all.

    Args:
        files: of the split.
        planner: its plan.
        first, stop: steps counted from the very first, the latter exclusive.
        rank, world: of the reader.
    """

    def __init__(
        self, files: ShardFiles, planner: Planner, *, first: int, stop: int, rank: int, world: int
    ) -> None:
        self._files, self._planner = files, planner
        self._share = rank / world
        self._groups = len(planner.groups(0))
        epoch, place = planner.at(max(first, stop - 1))
        self._last = epoch * self._groups + planner.groups_at(epoch, place)[1]
        self._range = (-1, -1)
        self._wanted: list[int] = []
        """Shards of the groups that are read now or next, in the order to fetch them."""
        self._wants = files.cache.wants()
        self._settled: set[int] = set()
        """Of these: fetched, or found damaged."""
        self._rests = self._let_go = self._closed = False
        self._asked = 0
        """How often in a row we saw that somebody asks for room."""
        self._moved = threading.Condition()
        self.reached(first)
        self._thread = threading.Thread(target=self._work, name="fetch", daemon=True)
        self._thread.start()

    # --------------------------------------------------------------------------- the reader's side
    def reached(self, step: int) -> None:
        """The reader goes on, with this step (counted from the very first)."""
        with self._moved:
            groups = self._groups_of(step)
            if groups != self._range or self._let_go:
                self._range = groups
                shards = [number for group in range(*groups) for number in self._shards(group)]
                self._wanted = list(dict.fromkeys(shards))
                self._settled = set() if self._let_go else self._settled & set(shards)
                self._wants.set(map(self._files.key_of, shards))
            self._rests = self._let_go = False
            self._asked = 0
            self._moved.notify()

    def rests(self) -> None:
        """The reader waits, for room or because it is far enough ahead."""
        with self._moved:
            self._rests = True

    def close(self) -> None:
        """Fetch nothing more; a transfer that is under way ends by itself."""
        with self._moved:
            self._closed = True
            self._wants.close()
            self._moved.notify()

    # --------------------------------------------------------------------------------- the thread
    def _work(self) -> None:
        while True:
            with self._moved:
                while not self._closed and not self._missing():
                    # Nobody tells us that room is asked for: other processes do the asking.
                    self._moved.wait(None if self._let_go else _AGAIN_SECONDS)
                    self._give_way()
                if self._closed:
                    return
                number = self._missing()[0]
            done = self._fetched(number)
            with self._moved:
                if done:
                    self._settled.add(number)
                elif not self._closed:
                    self._moved.wait(_AGAIN_SECONDS)
                    self._give_way()

    def _fetched(self, number: int) -> bool:
        """Try; False if it cannot be now."""

        def needed() -> None:
            # The reader may have been quicker, and its copy may be gone again by now.
            with self._moved:
                if self._closed or number not in self._missing():
                    raise _Late

        try:
            self._files.fetch(number, before=needed)
        except (NoRoom, _Late):
            return False
        except HowdahError:
            pass  # the reader meets the same, and can say so where it counts
        return True

    def _missing(self) -> list[int]:
        """What is still to be fetched."""
        return [] if self._let_go else [n for n in self._wanted if n not in self._settled]

    def _give_way(self) -> None:
        # Twice: two that look at the same moment see each other.
        self._asked = self._asked + 1 if self._rests and self._files.cache.is_short() else 0
        if self._asked == 2:
            self._let_go = True  # until the reader goes on
            self._wants.set(())

    def _groups_of(self, step: int) -> tuple[int, int]:
        """The groups that a step's window still reads and the one after: first, end (exclusive).

        Counted through all epochs. Two groups, or as many as the step's window reads from: more
        at a time need not fit the cache.
        """
        epoch, place = self._planner.at(step)
        first, last = self._planner.groups_at(epoch, place)
        base = epoch * self._groups
        return base + first, min(base + max(last, first + 1), self._last) + 1

    def _shards(self, group: int) -> list[int]:
        epoch, place = divmod(group, self._groups)
        shards = self._planner.groups(epoch)[place]
        return np.roll(shards, -int(self._share * len(shards))).tolist()


class _Late(Exception):
    """Nobody needs it any more."""
