"""Headers of safetensors files that other programs made: judged as the package safetensors does."""

import io
import json
import struct

import pytest
import safetensors

from howdah.models.weights.tensors import FormatError, read_header


def tensor(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def file_of(header, size: int) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(size)


RIGHT = {
    "one": ({"a": tensor()}, 8),
    "none": ({}, 0),
    "metadata": ({"__metadata__": {"format": "pt"}, "a": tensor()}, 8),
    "two, in the other order": ({"a": tensor(offsets=(8, 16)), "b": tensor()}, 16),
    "a scalar": ({"a": tensor(shape=(), offsets=(0, 4))}, 4),
    "no values": ({"a": tensor(shape=(0, 3), offsets=(0, 0)), "b": tensor()}, 8),
    "half precision": ({"a": tensor("BF16", offsets=(0, 4))}, 4),
    "float8": ({"a": tensor("F8_E4M3", offsets=(0, 2))}, 2),
    "complex": ({"a": tensor("C64", offsets=(0, 16))}, 16),
}
WRONG = {
    "a negative offset": {"a": tensor(offsets=(-8, 0))},
    "an end before the start": {"a": tensor(offsets=(8, 0))},
    "overlapping": {"a": tensor(), "b": tensor(offsets=(4, 12))},
    "the same bytes twice": {"a": tensor(), "b": tensor()},
    "a hole": {"a": tensor(), "b": tensor(offsets=(12, 20))},
    "a hole at the beginning": {"a": tensor(offsets=(8, 16))},
    "fractional offsets": {"a": tensor(offsets=(0.0, 8.5))},
    "offsets as text": {"a": tensor(offsets=("0", "8"))},
    "offsets as booleans": {"a": tensor("U8", (1,), (False, True))},
    "three offsets": {"a": tensor(offsets=(0, 4, 8))},
    "no offsets": {"a": {"dtype": "F32", "shape": [2]}},
    "an unknown type": {"a": tensor("F128")},
    "a type that is a number": {"a": tensor(32)},
    "a shape as text": {"a": {"dtype": "F32", "shape": "2", "data_offsets": [0, 8]}},
    "a negative shape": {"a": tensor(shape=(-2,))},
    "a fractional shape": {"a": tensor(shape=(2.0,))},
    "too few bytes for the shape": {"a": tensor(shape=(3,))},
    "a shape beyond 64 bits": {"a": tensor(shape=(2**62, 2**62), offsets=(0, 0))},
    "a tensor that is a list": {"a": [1, 2]},
    "metadata that is a list": {"__metadata__": [1], "a": tensor()},
    "metadata of numbers": {"__metadata__": {"a": 1}, "a": tensor()},
    "a list": [],
    "no JSON": b"{",
    "100,000 lists in each other": b"[" * 100_000,
    "NaN": b'{"a": {"dtype": "F32", "shape": [NaN], "data_offsets": [0, 8]}}',
}


@pytest.mark.parametrize("case", RIGHT)
def test_headers_that_the_package_reads_are_read(case):
    header, size = RIGHT[case]
    data = file_of(header, size)
    names = {name for name, _ in safetensors.deserialize(data)}
    assert set(read_header(io.BytesIO(data))[0]) == names


@pytest.mark.parametrize("case", WRONG)
def test_headers_that_the_package_refuses_are_refused(case):
    data = file_of(WRONG[case], 8)
    with pytest.raises(safetensors.SafetensorError):
        safetensors.deserialize(data)
    with pytest.raises(FormatError):
        read_header(io.BytesIO(data))


def test_a_shape_of_a_million_sizes_costs_no_long_multiplication():
    shape = [2**62] * 1_000_000
    header = {"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 8]}}
    with pytest.raises(FormatError, match="more values"):
        read_header(io.BytesIO(file_of(header, 8)))
