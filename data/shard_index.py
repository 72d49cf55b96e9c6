"""The index beside each shard: offsets, lengths and labels of its rows, mapped into memory.

Planning and class weights read only the index: it gives every rank a batch's lengths and labels.

Layout, little-endian: 8 bytes magic, u32 version, u32 CRC-32C of all that follows it, u64 rows N,
then by version, which says what a row's label is:

1  one number: i64 offsets[N+1], i32 lengths[N], i32 labels[N]
2  any number of them: i64 offsets[N+1], i64 starts[N+1], i32 lengths[N], i32 labels[starts[N]];
   row n has labels[starts[n]:starts[n + 1]]
3  a real number: i64 offsets[N+1], i32 lengths[N], f32 labels[N]
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass

import google_crc32c
import numpy as np

from howdah import storage
from howdah.data.manifest import RESTORE, ShardEntry, TargetEntry
from howdah.errors import DataError

MAGIC = b"HOWDAHIX"
_ONE, _MANY, _REAL = 1, 2, 3
_LABELS = {_ONE: "<i4", _MANY: "<i4", _REAL: "<f4"}
"""{version of the index: type of its labels}"""
_HISTOGRAM_BIN = 8
_HEAD = struct.Struct("<8sIIQ")


@dataclass(frozen=True, kw_only=True)
class ShardIndex:
    """offsets int64[N+1] (uncompressed stream), lengths int32[N] in tokens, and what rows are to be
    predicted as: labels int32[N], or float32[N], or int32[M] and starts int64[N+1]."""

    offsets: np.ndarray
    lengths: np.ndarray
    labels: np.ndarray
    starts: np.ndarray | None = None
    """Position of each row's first label; None: every row has one label."""

    def __len__(self) -> int:
        return len(self.lengths)

    def to_bytes(self) -> bytes:
        """The file's contents."""
        version = _REAL if self.labels.dtype.kind == "f" else _ONE
        version = version if self.starts is None else _MANY
        parts = [struct.pack("<Q", len(self.lengths)), self.offsets.astype("<i8").tobytes()]
        if self.starts is not None:
            parts.append(self.starts.astype("<i8").tobytes())
        parts.append(self.lengths.astype("<i4").tobytes())
        parts.append(self.labels.astype(_LABELS[version]).tobytes())
        body = b"".join(parts)
        return MAGIC + struct.pack("<II", version, google_crc32c.value(body)) + body

    @classmethod
    def from_bytes(cls, data: bytes | mmap.mmap, name: str, *, check: bool = True) -> ShardIndex:
        """Arrays over `data`, not copied.

        Raises:
            DataError: no index, another version, truncated, or (with check) altered.
        """
        if len(data) < _HEAD.size or data[:8] != MAGIC:
            raise _bad(name, "an index of Howdah", f"{len(data)} bytes without its magic number")
        _, version, crc, rows = _HEAD.unpack(data[: _HEAD.size])
        if version not in _LABELS:
            raise _bad(name, "version " + ", ".join(map(str, _LABELS)), f"version {version}")
        at = _HEAD.size
        several = version == _MANY
        before = at + 8 * (rows + 1) * (2 if several else 1) + 4 * rows
        if len(data) < before:
            raise _bad(name, f"at least {before} bytes for {rows} rows", f"{len(data)} bytes")
        offsets = np.frombuffer(data, "<i8", rows + 1, at)
        at += offsets.nbytes
        starts = np.frombuffer(data, "<i8", rows + 1, at) if several else None
        size = before + 4 * (int(starts[-1]) if several else rows)
        if len(data) != size:
            raise _bad(name, f"{size} bytes for {rows} rows", f"{len(data)} bytes")
        if check:
            # A copy, since google_crc32c takes only bytes.
            actual = google_crc32c.value(bytes(data[_HEAD.size - 8 :]))
            if actual != crc:
                raise _bad(name, f"CRC-32C {crc:08x}", f"{actual:08x}")
        lengths = np.frombuffer(data, "<i4", rows, before - 4 * rows)
        labels = np.frombuffer(data, _LABELS[version], (size - before) // 4, before)
        return cls(offsets=offsets, lengths=lengths, labels=labels, starts=starts)

    @classmethod
    def open(cls, local_path: str, *, check: bool = True) -> ShardIndex:
        """The index in a local file, memory-mapped: the ranks of a node share its pages."""
        with storage.open_read(local_path) as file:
            if file.seek(0, 2) == 0:
                raise _bad(local_path, "an index of Howdah", "an empty file")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return cls.from_bytes(mapped, local_path, check=check)


@dataclass(frozen=True, kw_only=True)
class ShardStats:
    """A shard's entry in the manifest, and its index."""

    rows: int
    bytes: int
    crc32c: int
    tokens: int
    class_counts: dict[str, int]
    target: TargetEntry | None
    length_histogram: dict[str, int]
    index: bytes
    index_crc32c: int
    ids: bytes
    """Content of `<name>.ids` (data/id_index.py)."""

    def entry(self, name: str) -> ShardEntry:
        """A manifest's entry of the shard `name`, whose index lies beside it as `<name>.index`."""
        fields = {key: value for key, value in vars(self).items() if key not in ("index", "ids")}
        return ShardEntry(name=name, index_name=f"{name}.index", **fields)


def _bad(name: str, expected: str, got: str) -> DataError:
    return DataError(
        "the shard's index is not valid",
        where=name,
        expected=expected,
        got=got,
        remedy=RESTORE,
    )


def length_histogram(lengths: np.ndarray) -> dict[str, int]:
    """{upper bound of a bin of 8 tokens: rows}: lengths 1..8 are in "8", 9..16 in "16"."""
    bins, counts = np.unique(-(-lengths // _HISTOGRAM_BIN) * _HISTOGRAM_BIN, return_counts=True)
    return {str(int(b)): int(c) for b, c in zip(bins, counts, strict=True)}
