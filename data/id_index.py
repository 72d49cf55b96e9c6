"""Which rows a shard has, by hashes of their ids: `<shard>.ids` beside the shard.

Whether a row is in a dataset is answered without reading a record: the hashes are sorted and spread
evenly, so that the place of one is known to within some hundred entries, and one read of some KiB
of each shard's file decides (interpolation search: Perl, Itai, Avni, CACM 21(7), 1978).

The manifest does not name it: the file's name follows from the shard's.

Layout, little-endian: 8 bytes magic, u32 version, u32 CRC-32C of the hashes, u64 count N, then
u64 hashes[N], sorted, each once. A row that class balance has repeated (id#2) also counts as the
row that it is a copy of.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable
from hashlib import blake2b
from typing import BinaryIO

import google_crc32c
import numpy as np

from howdah.data.manifest import ID_INDEX
from howdah.errors import DataError

_MAGIC, _VERSION = b"HOWDAHID", 1
_HEAD = struct.Struct("<8sIIQ")
_COPY = re.compile(rb"#\d+$")
_REMEDY = "restore the file, or make the dataset again"
_MARGIN = 8.0
"""Standard deviations of a hash's place around its expected one that the first read covers."""


def missing(path: str) -> DataError:
    """The error for a shard whose index does not exist."""
    return DataError(
        "a shard has no index of ids",
        where=path,
        expected="the file that the ETL writes beside each shard",
        remedy=_REMEDY,
    )


def name_of(shard: str) -> str:
    """The index's file name, of the shard's."""
    return shard + ID_INDEX


def hash_of(row_id: bytes) -> int:
    """64 bits of a row's id (BLAKE2b). Two of 100 million rows have one hash with a probability of
    3e-4; that a given id is taken for another row of theirs has 5e-12."""
    return int.from_bytes(blake2b(row_id, digest_size=8).digest(), "little")


def digests(row_ids: Iterable[bytes]) -> bytes:
    """The hashes of ids, 8 bytes each, in their order; of a copy also its original's."""
    hashes = []
    for row_id in row_ids:
        hashes.append(blake2b(row_id, digest_size=8).digest())
        if (original := _COPY.sub(b"", row_id)) != row_id:
            hashes.append(blake2b(original, digest_size=8).digest())
    return b"".join(hashes)


def to_bytes(digests: bytes | bytearray) -> bytes:
    """The file's contents, of `digests` in any order."""
    body = np.unique(np.frombuffer(bytes(digests), "<u8")).tobytes()
    head = _HEAD.pack(_MAGIC, _VERSION, google_crc32c.value(body), len(body) // 8)
    return head + body


def of_file(data: bytes, where: str) -> np.ndarray:
    """uint64[N] of a whole file, checked.

    Raises:
        DataError: it is not an index of ids, or is altered.
    """
    count = _count(data[: _HEAD.size], len(data), where)
    crc = _HEAD.unpack(data[: _HEAD.size])[2]
    if google_crc32c.value(data[_HEAD.size :]) != crc:
        raise _bad(where, f"CRC-32C {crc:08x}", "altered bytes")
    return np.frombuffer(data, "<u8", count, _HEAD.size)


def has(file: BinaryIO, size: int, row_hash: int, where: str) -> bool:
    """Whether the file has a hash; reads its head and some KiB around the hash's place.

    Args:
        file: open to read, seekable.
        size: its bytes.
        row_hash: by `hash_of`.
    Raises:
        DataError: it is not an index of ids, or is truncated.
    """
    file.seek(0)
    count = _count(file.read(_HEAD.size), size, where)
    # The place of a value among N even ones is binomial: mean N p, variance N p (1 - p).
    share = row_hash / 2.0**64
    reach = int(_MARGIN * math.sqrt(count * share * (1.0 - share))) + 64
    low, high = max(0, int(count * share) - reach), min(count, int(count * share) + reach)
    while True:
        file.seek(_HEAD.size + 8 * low)
        hashes = np.frombuffer(file.read(8 * (high - low)), "<u8")
        if len(hashes) != high - low:
            raise _bad(where, f"{high - low} hashes from {low}", f"{len(hashes)}")
        before = low > 0 and (not len(hashes) or row_hash < hashes[0])
        behind = high < count and (not len(hashes) or row_hash > hashes[-1])
        if not (before or behind):
            at = int(np.searchsorted(hashes, np.uint64(row_hash)))
            return at < len(hashes) and int(hashes[at]) == row_hash
        # Never seen with even hashes; a file of other ones is still answered rightly.
        low, high = (0 if before else low), (count if behind else high)


def _count(head: bytes, size: int, where: str) -> int:
    if len(head) < _HEAD.size or head[:8] != _MAGIC:
        raise _bad(where, "an index of ids", f"{size} bytes without its magic number")
    _, version, _, count = _HEAD.unpack(head)
    if version != _VERSION:
        raise _bad(where, f"version {_VERSION}", f"version {version}")
    if size != _HEAD.size + 8 * count:
        raise _bad(where, f"{_HEAD.size + 8 * count} bytes for {count} hashes", f"{size} bytes")
    return count


def _bad(where: str, expected: str, got: str) -> DataError:
    return DataError(
        "the index of a shard's ids is not valid",
        where=where,
        expected=expected,
        got=got,
        remedy=_REMEDY,
    )
