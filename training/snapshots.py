"""Copies of a model's arrays in memory that is kept from one copy to the next.

The first touch of fresh memory costs more than the copy itself: the kernel finds and clears page
after page, for a model of 22 M parameters and its moments half a second and more. What a snapshot
took is therefore used again by the next one, as soon as nobody holds any of its arrays any more.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from howdah import processes

__all__ = ["Arrays", "Snapshots"]

Arrays = Iterable[tuple[str, np.ndarray]]
"""Names and arrays; an array may be the model's own memory, which the next step changes."""


class Snapshots:
    """The memory of snapshots, one after the other; two at a time take twice as much."""

    def __init__(self) -> None:
        self._free: dict[int, list[np.ndarray]] = {}
        self._warming: threading.Thread | None = None

    def take(self, arrays: Arrays) -> dict[str, np.ndarray]:
        """Copies by name, which nobody changes as long as they are held."""
        if self._warming is not None:
            self._warming.join()
            self._warming = None
        return self._take(arrays)

    def warm(self, arrays: Callable[[], Arrays]) -> None:
        """Have the memory ready for the first snapshot, behind the caller's back; once."""
        if self._free:
            return
        self._warming = threading.Thread(
            target=self._touch, args=(arrays,), name="snapshot memory", daemon=True
        )
        self._warming.start()

    def _touch(self, arrays: Callable[[], Arrays]) -> None:
        processes.yield_to_other_threads()
        self._take(arrays())  # given back at once

    def _take(self, arrays: Arrays) -> dict[str, np.ndarray]:
        return {name: self._copy(array) for name, array in arrays}

    def _copy(self, array: np.ndarray) -> np.ndarray:
        free = self._free.setdefault(array.nbytes, [])
        try:
            memory = free.pop()
        except IndexError:
            memory = np.empty(array.nbytes, np.uint8)
        lease = _Lease(memory)
        weakref.finalize(lease, free.append, memory).atexit = False
        copy = np.asarray(lease).view(array.dtype).reshape(array.shape)
        np.copyto(copy, array)
        return copy


class _Lease:
    """What the arrays over a piece of memory keep alive: it is gone when the last of them is."""

    def __init__(self, memory: np.ndarray) -> None:
        self.__array_interface__: dict[str, Any] = memory.__array_interface__
