"""Protobuf's wire format, against the library's own account of it."""

import pytest
from google.protobuf import any_pb2, type_pb2, wrappers_pb2

from howdah.core import protobuf_wire as wire


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**14, 2**63 - 1, -1, -(2**63)])
def test_numbers_are_written_and_read_as_protobuf_does(value):
    right = wrappers_pb2.Int64Value(value=value).SerializeToString()
    if value:  # a default is not written
        assert wire.varint_field(1, value) == right
    raw = wire.varint(value)
    assert wire.read_varint(b"\xff" + raw + b"\x80", 1) == (value % 2**64, 1 + len(raw))
    assert wire.signed(value % 2**64) == value


def test_fields_are_written_as_protobuf_does():
    assert wire.double_field(1, 0.1) == wrappers_pb2.DoubleValue(value=0.1).SerializeToString()
    assert wire.float_field(1, 0.1) == wrappers_pb2.FloatValue(value=0.1).SerializeToString()
    long = type_pb2.Field(type_url="t" * 300, kind=9, number=-7, default_value="d")
    made = (wire.varint_field(1, 9) + wire.varint_field(3, -7) + wire.bytes_field(6, b"t" * 300)
            + wire.bytes_field(11, b"d"))  # fmt: skip
    assert made == long.SerializeToString()
    assert wire.bytes_head(17, 200) + bytes(200) == wire.bytes_field(17, bytes(200))


def test_fields_of_each_type_are_read_and_of_the_rest_skipped():
    inner = any_pb2.Any(type_url="x", value=b"y" * 130).SerializeToString()
    message = (wire.varint_field(1, -2) + wire.double_field(2, 1.5) + wire.bytes_field(300, inner)
               + wire.float_field(4, 1.5))  # fmt: skip
    assert list(wire.fields(message)) == [
        (1, wire.VARINT, 2**64 - 2),
        (2, 1, bytes.fromhex("000000000000f83f")),
        (300, 2, inner),
        (4, 5, bytes.fromhex("0000c03f")),
    ]
    assert list(wire.bytes_fields(message)) == [(300, inner)]
    assert dict(wire.bytes_fields(inner)) == {1: b"x", 2: b"y" * 130}


def test_truncated_and_invalid_messages_are_refused():
    for message in (wire.varint_field(1, 300), wire.bytes_field(2, b"abc"),
                    wire.double_field(3, 1.0), wire.float_field(4, 1.0)):  # fmt: skip
        assert len(list(wire.fields(message))) == 1
        for end in range(1, len(message)):
            with pytest.raises(ValueError, match="past the end"):
                list(wire.fields(message[:end]))
    for data in (b"", b"\x80", b"\x03ab"):
        with pytest.raises(ValueError, match="past the end"):
            wire.read_sized(data, 0)
    with pytest.raises(ValueError, match="more than 10 bytes"):
        wire.read_varint(b"\xff" * 11, 0)
    with pytest.raises(ValueError, match="wire type 3"):
        list(wire.fields(b"\x0b"))
