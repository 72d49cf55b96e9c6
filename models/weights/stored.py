"""Arrays that are read from a file on use, so that a whole state is never in memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable

import numpy as np

from howdah.errors import StorageFull


class StoredArray:
    """An array in a file, which numpy functions read like any other array.

    Args:
        read: (offset, number of bytes) -> those bytes.
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
    """A local file without a name: it vanishes with the last array that refers to it, however the
    process ends.

    A failed write is only raised by `check`, since collectives have to be entered in between.

    Args:
        directory: a directory on a local disk; it is created if it is missing.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.size = 0
        """Number of bytes added."""
        self._failure: OSError | None = None
        try:
            os.makedirs(directory, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 - lives with its arrays
        except OSError as error:
            self._failure = error

    def add(self, array: np.ndarray) -> StoredArray:
        """Append an array."""
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
        """The array that begins at an offset."""
        return StoredArray(self._read, offset, dtype, shape)

    def check(self) -> None:
        """Raise StorageFull if a write has failed."""
        if self._failure is None:
            try:
                self._file.flush()
                return
            except OSError as error:
                self._failure = error
        raise StorageFull(
            "not enough space on the local disk for the state of all ranks, which a checkpoint with"
            " training.parallel.shard is written from",
            where=self._directory,
            expected=f"{self.size / 2**20:,.0f} MiB free",
            got=str(self._failure),
            remedy="free space there, or set training.shard_cache_directory or HOWDAH_CACHE to a"
            " directory on a larger disk",
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
