"""Remote shards fetched before they are needed, in the order in which an epoch reads them."""

from __future__ import annotations

import threading

import numpy as np

from howdah.errors import HowdahError
from training.planner import Planner
from training.shardcache import NoRoom
from training.shardfiles import ShardFiles

__all__ = ["FetchAhead"]

_AGAIN_SECONDS = 1.0


class FetchAhead:
    """A thread that keeps the node's cache one group of shards ahead of its reader.

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
        self._reading, self._until = self._range(first)
        epoch, place = planner.at(max(first, stop - 1))
        self._last = epoch * self._groups + planner.groups_at(epoch, place)[1]
        self._closed = False
        self._moved = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="fetch", daemon=True)
        self._thread.start()

    def reached(self, step: int) -> None:
        """The reader has come to this step (counted from the very first)."""
        with self._moved:
            self._reading, self._until = self._range(step)
            self._moved.notify()

    def close(self) -> None:
        """Fetch nothing more; a transfer that is under way ends by itself."""
        with self._moved:
            self._closed = True
            self._moved.notify()

    def _range(self, step: int) -> tuple[int, int]:
        """The group that a step still reads, and the last that may be fetched now.

        Counted through all epochs. Two groups, or as many as the step's window reads from: more
        at a time need not fit the cache.
        """
        epoch, place = self._planner.at(step)
        first, last = self._planner.groups_at(epoch, place)
        return epoch * self._groups + first, epoch * self._groups + max(last, first + 1)

    def _work(self) -> None:
        for group in range(self._reading, self._last + 1):
            with self._moved:
                while group > self._until and not self._closed:
                    self._moved.wait()
                reading = self._reading
            # What is being read counts as used before the next group takes its places.
            for wanted in range(min(reading, group), group + 1):
                for number in self._shards(wanted):
                    while self._wanted(wanted) and not self._fetched(number):
                        with self._moved:
                            self._moved.wait(_AGAIN_SECONDS)
                    if self._closed:
                        return

    def _shards(self, group: int) -> list[int]:
        epoch, place = divmod(group, self._groups)
        shards = self._planner.groups(epoch)[place]
        return np.roll(shards, -int(self._share * len(shards))).tolist()

    def _wanted(self, group: int) -> bool:
        """The reader is not beyond that group yet."""
        return not self._closed and group >= self._reading

    def _fetched(self, number: int) -> bool:
        """Try; False if there is no room for it now."""
        try:
            self._files.fetch(number)
        except NoRoom:
            return False
        except HowdahError:
            pass  # the reader meets the same, and can say so where it counts
        return True
