"""Protobuf's variable-length numbers: TFRecord's Examples and Hadoop's RPC are written in them."""

from __future__ import annotations


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that begins at `at`, and where it ends.

    Raises:
        IndexError: `data` ends inside it.
        ValueError: it is longer than a number of 64 bits can be.
    """
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a varint of more than 10 bytes")
