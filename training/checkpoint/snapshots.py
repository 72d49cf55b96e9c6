"""Copies a model's arrays into memory that is reused from one copy to the next.

The first touch of fresh memory costs more than the copy itself, since the kernel allocates and
clears each page: half a second and more for a model of 22 M parameters and its moments. Therefore
the next snapshot reuses an array's memory once there are no references to it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from howdah.core import processes, threads

Arrays = Iterable[tuple[str, np.ndarray]]
"""(name, array) pairs; an array may be the model's own memory, which the next step changes."""


class Snapshots:
    """Takes snapshots one after the other; two that are alive at a time take twice the memory."""

    def __init__(self) -> None:
        self._free: dict[int, list[np.ndarray]] = {}
        self._warming: threading.Thread | None = None

    def take(self, arrays: Arrays) -> dict[str, np.ndarray]:
        """Copies of the arrays by name; their memory is not reused while they are referenced."""
        if self._warming is not None:
            self._warming.join()
            self._warming = None
        return {name: self._copy(array) for name, array in arrays}

    def warm(self, arrays: Arrays) -> None:
        """Touch the memory for the first snapshot of such arrays, once, in another thread.

        That thread only sees their sizes: TensorFlow crashed with SIGSEGV when a thread read a
        variable while the main thread began its first step.
        """
        if self._free:
            return
        sizes = [array.nbytes for _, array in arrays]
        # If this thread fails, the first snapshot touches its memory itself.
        self._warming = threads.start(
            self._touch, sizes, name="snapshot memory", failed=threads.REPORT
        )

    def _touch(self, sizes: Sequence[int]) -> None:
        processes.yield_to_other_threads()
        for size in sizes:
            memory = np.empty(size, np.uint8)
            memory.fill(0)
            self._free.setdefault(size, []).append(memory)

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
    """An object that all arrays over a piece of memory refer to, so that it is collected with the
    last of them."""

    def __init__(self, memory: np.ndarray) -> None:
        self.__array_interface__: dict[str, Any] = memory.__array_interface__
