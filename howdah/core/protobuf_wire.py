"""Protobuf's wire format: TFRecord's Examples, TensorBoard's events, Hadoop's RPC and tokens.

A message is a sequence of fields, each a tag (field number << 3 | wire type) and a value: a varint
(type 0), 8 bytes (1), a length and as many bytes (2), or 4 bytes (5). A message within a message
is a field of type 2. Source: https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_ONE_BYTE = tuple(bytes((value,)) for value in range(0x80))


# ---------------------------------------------------------------------------------- encoding
def varint(value: int) -> bytes:
    """A number of 64 bits; a negative one as its two's complement, as int64 is written.

    >>> varint(300).hex()
    'ac02'
    """
    if 0 <= value <= 0x7F:
        return _ONE_BYTE[value]
    if value < 0:
        value += 1 << 64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint_field(number: int, value: int) -> bytes:
    """A field of type int64, uint64, bool or enum."""
    return varint(number << 3 | VARINT) + varint(value)


def bytes_field(number: int, data: bytes) -> bytes:
    """A field of type bytes, string, a message, or packed numbers.

    >>> bytes_field(2, b"testing").hex()
    '120774657374696e67'
    """
    return bytes_head(number, len(data)) + data


def bytes_head(number: int, size: int) -> bytes:
    """Tag and length, which precede the `size` bytes of a bytes_field."""
    return varint(number << 3 | _BYTES) + varint(size)


def double_field(number: int, value: float) -> bytes:
    """A field of type double."""
    return varint(number << 3 | _FIXED64) + struct.pack("<d", value)


def float_field(number: int, value: float) -> bytes:
    """A field of type float."""
    return varint(number << 3 | _FIXED32) + struct.pack("<f", value)


# ---------------------------------------------------------------------------------- decoding
def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The unsigned number at offset `at`, and the offset of its end.

    Raises:
        ValueError: `data` ends inside it, or it is longer than a number of 64 bits can be.
    """
    try:
        value = data[at]
        at += 1
        if value < 0x80:
            return value, at
        value, shift = value & 0x7F, 7
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
            shift += 7
            if shift > 63:
                raise ValueError("a varint of more than 10 bytes")
    except IndexError:
        raise ValueError("a varint runs past the end") from None


def read_sized(data: bytes, at: int) -> tuple[bytes, int]:
    """The length-prefixed bytes at offset `at`, and the offset of their end.

    Raises:
        ValueError: `data` ends inside them.
    """
    size, at = read_varint(data, at)
    return _cut(data, at, size), at + size


def fields(data: bytes) -> Iterator[tuple[int, int, bytes | int]]:
    """(field number, wire type, value) of a message: int for VARINT, bytes for all other types.

    Raises:
        ValueError: it is truncated, or has an unknown wire type.
    """
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        kind = tag & 7
        if kind == VARINT:
            value, at = read_varint(data, at)
            yield tag >> 3, kind, value
            continue
        if kind == _BYTES:
            size, at = read_varint(data, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind}")
        yield tag >> 3, kind, _cut(data, at, size)
        at += size


def bytes_fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(field number, value) of a message's fields of type bytes, string or message.

    Raises:
        ValueError: as `fields`.
    """
    return ((number, value) for number, kind, value in fields(data) if kind == _BYTES)


def _cut(data: bytes, at: int, size: int) -> bytes:
    if at + size > len(data):
        raise ValueError("a field runs past the end")
    return data[at : at + size]


def signed(value: int) -> int:
    """An unsigned varint as int64.

    >>> signed(2**64 - 1)
    -1
    """
    return value - (1 << 64) if value >> 63 else value
