"""The index beside each shard: offsets, lengths and labels of its rows, mapped into memory.

Planning and class weights read only the index: it gives every rank a batch's lengths and labels.

Layout, little-endian, every array 8-byte aligned: 8 bytes magic, u32 version, u32 CRC-32C of all
that follows it, u64 rows N, i64 offsets[N+1], i32 lengths[N], i32 labels[N].
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass

import google_crc32c
import numpy as np

from howdah.errors import DataError

MAGIC = b"HOWDAHIX"
VERSION = 1
_HEAD = struct.Struct("<8sIIQ")


@dataclass(frozen=True, kw_only=True)
class ShardIndex:
    """offsets int64[N+1] (uncompressed stream), lengths int32[N] in tokens, labels int32[N]."""

    offsets: np.ndarray
    lengths: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.lengths)

    def to_bytes(self) -> bytes:
        """The file's contents."""
        body = b"".join(
            (
                struct.pack("<Q", len(self.lengths)),
                self.offsets.astype("<i8").tobytes(),
                self.lengths.astype("<i4").tobytes(),
                self.labels.astype("<i4").tobytes(),
            )
        )
        return MAGIC + struct.pack("<II", VERSION, google_crc32c.value(body)) + body

    @classmethod
    def from_bytes(cls, data: bytes | mmap.mmap, name: str, *, check: bool = True) -> ShardIndex:
        """Arrays over `data`, not copied.

        Raises:
            DataError: no index, another version, truncated, or (with check) altered.
        """
        if len(data) < _HEAD.size or data[:8] != MAGIC:
            raise _bad(name, "an index of Howdah", f"{len(data)} bytes without its magic number")
        _, version, crc, rows = _HEAD.unpack(data[: _HEAD.size])
        if version != VERSION:
            raise _bad(name, f"version {VERSION}", f"version {version}")
        size = _HEAD.size + 8 * (rows + 1) + 8 * rows
        if len(data) != size:
            raise _bad(name, f"{size} bytes for {rows} rows", f"{len(data)} bytes")
        if check:
            # A copy, since google_crc32c takes only bytes.
            found = google_crc32c.value(bytes(data[_HEAD.size - 8 :]))
            if found != crc:
                raise _bad(name, f"CRC-32C {crc:08x}", f"{found:08x}")
        at = _HEAD.size
        offsets = np.frombuffer(data, "<i8", rows + 1, at)
        at += offsets.nbytes
        lengths = np.frombuffer(data, "<i4", rows, at)
        labels = np.frombuffer(data, "<i4", rows, at + lengths.nbytes)
        return cls(offsets=offsets, lengths=lengths, labels=labels)

    @classmethod
    def open(cls, local_path: str, *, check: bool = True) -> ShardIndex:
        """The index in a local file, memory-mapped: the ranks of a node share its pages."""
        with open(local_path, "rb") as file:
            if file.seek(0, 2) == 0:
                raise _bad(local_path, "an index of Howdah", "an empty file")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return cls.from_bytes(mapped, local_path, check=check)


def _bad(name: str, expected: str, got: str) -> DataError:
    return DataError(
        "the shard's index is not whole",
        where=name,
        expected=expected,
        got=got,
        remedy="restore the file from a copy, or remove the dataset version and run `howdah etl`",
    )
