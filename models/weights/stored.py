"""Arrays that are read from a file when they are used, so that a whole state is never in memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable

import numpy as np

from howdah.errors import StorageFull


class StoredArray:
    """An array in a file: numpy reads it wherever it takes an array.

    Args:
        read: (offset, bytes) -> those bytes.
        offset: in the file.
    """

    def __init__(
        self,
        read: Callable[[int, int], bytes | bytearray],
        offset: int,
        dtype: np.dtype,
        shape: tuple[int, ...],
    ) -> None:
        self._read, self._offset = read, offset
        self.dtype, self.shape = dtype, shape
        self.size = int(np.prod(shape, dtype=np.int64))
        self.nbytes = self.size * dtype.itemsize

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        data = bytearray(self._read(self._offset, self.nbytes))
        array = np.frombuffer(data, self.dtype).reshape(self.shape)
        return array if dtype is None else array.astype(dtype, copy=False)


class Spool:
    """A file of this machine without a name: it is gone with the last array that is read from it,
    however the process ends.

    A write that fails is remembered (`check`): in between, collectives have to be entered.

    Args:
        directory: on a local disk; made where it is missing.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.size = 0
        """Bytes added."""
        self._failure: OSError | None = None
        try:
            os.makedirs(directory, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 - lives with its arrays
        except OSError as error:
            self._failure = error

    def add(self, array: np.ndarray) -> StoredArray:
        """Write an array behind the others."""
        array = np.ascontiguousarray(array)
        stored = self.at(self.size, array.dtype, array.shape)
        if self._failure is None:
            try:
                self._file.write(memoryview(array.reshape(-1)).cast("B"))
            except OSError as error:
                self._failure = error
        self.size += array.nbytes
        return stored

    def at(self, offset: int, dtype: np.dtype, shape: tuple[int, ...]) -> StoredArray:
        """The array that begins at this byte."""
        return StoredArray(self._read, offset, dtype, shape)

    def check(self) -> None:
        """Raise StorageFull where a write has failed."""
        if self._failure is None:
            try:
                self._file.flush()
                return
            except OSError as error:
                self._failure = error
        raise StorageFull(
            "no room on the local disk for the state of all ranks, which a checkpoint is written"
            " from (training.parallel.shard)",
            where=self._directory,
            expected=f"{self.size / 2**20:,.0f} MiB free",
            got=str(self._failure),
            remedy="make room there, or set training.shard_cache_directory or HOWDAH_CACHE to a"
            " directory of a larger disk",
        ) from self._failure

    def _read(self, offset: int, count: int) -> bytearray:
        data = bytearray(count)
        view, done = memoryview(data), 0
        while done < count:
            got = os.preadv(self._file.fileno(), [view[done:]], offset + done)
            if not got:
                raise OSError(f"the file of the state ends at byte {offset + done}")
            done += got
        return data
