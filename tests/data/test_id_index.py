"""Indexes of ids: every row is found, no other one, with little of the file read."""

import io
import struct

import numpy as np
import pytest

from howdah.data import id_index
from howdah.errors import DataError


class Counting(io.BytesIO):
    """Counts the bytes that are read."""

    count = 0

    def read(self, size: int = -1) -> bytes:
        data = super().read(size)
        self.count += len(data)
        return data


def has(data: bytes, row_id: str) -> bool:
    return id_index.has(io.BytesIO(data), len(data), id_index.hash_of(row_id.encode()), "x.ids")


@pytest.mark.parametrize("rows", [0, 1, 2, 100, 20_000])
def test_a_row_is_found_and_no_other(rows):
    data = id_index.to_bytes(id_index.digests(f"row-{n}".encode() for n in range(rows)))
    assert len(id_index.of_file(data, "x")) == rows
    assert all(has(data, f"row-{n}") for n in range(0, rows, 1 + rows // 500))
    assert not any(has(data, f"row-{n}") for n in range(rows, rows + 500))


def test_of_a_large_file_little_is_read():
    hashes = np.random.default_rng(3).integers(0, 2**64 - 1, 1_000_000, dtype=np.uint64)
    data = id_index.to_bytes(hashes.astype("<u8").tobytes())
    for number in (*hashes[:50].tolist(), 0, 2**64 - 1):
        file = Counting(data)
        assert id_index.has(file, len(data), number, "x") == (number in hashes)
        assert file.count < 100_000


def test_hashes_that_are_not_even_are_found_too():
    hashes = np.arange(10_000, dtype=np.uint64) + 2**40
    data = id_index.to_bytes(hashes.tobytes())
    for n, present in ((2**40, True), (2**40 + 9_999, True), (2**40 + 10_000, False), (7, False)):
        assert id_index.has(io.BytesIO(data), len(data), n, "x") is present


def test_a_copy_is_its_original_too():
    data = id_index.to_bytes(id_index.digests([b"a#2", b"b"]))
    assert has(data, "a") and has(data, "a#2") and has(data, "b") and not has(data, "b#2")


def test_a_file_that_is_not_whole_is_refused():
    data = id_index.to_bytes(id_index.digests(str(n).encode() for n in range(100)))
    for bad in (b"", data[:20], data[:-8], b"X" + data[1:], data[:8] + b"\x09" + data[9:]):
        with pytest.raises(DataError) as caught:
            has(bad, "1")
        assert "restore" in caught.value.remedy  # nothing reads the shard in its place
    altered = bytearray(data)
    struct.pack_into("<Q", altered, 24, 1)
    with pytest.raises(DataError):
        id_index.of_file(bytes(altered), "x")
