"""Writes safetensors files as a stream that is hashed on the way, and reads them without a copy.

The format (https://github.com/huggingface/safetensors#format): 8 bytes of little-endian header
length, a JSON header {name: {dtype, shape, data_offsets}}, then the arrays' bytes. The package
`safetensors` builds the whole file in memory before it writes, and copies all of it when it reads.
A checkpoint of weights and moments is three times the model's size, and is in host memory already.
The package's `deserialize` reads third-party weights (models/weights/pretrained.py), but all
headers are read here. The rules are those of the package's check (`Metadata::validate`), which also
needs the bytes after the header: tests compare the two.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import numpy as np

from howdah.models.weights.stored import StoredArray

_CODES = {
    np.dtype("<f4"): "F32",
    np.dtype("<i4"): "I32",
    np.dtype("<i8"): "I64",
    np.dtype("u1"): "U8",
}
_DTYPES = {code: dtype for dtype, code in _CODES.items()}
_BITS = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8,
    "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip
"""{type of the format: bits per number}."""
_TOO_MANY = 2**63
_CHUNK_BYTES = 8 * 2**20
_MAX_HEADER_BYTES = 100 * 2**20  # the limit of the safetensors library


class FormatError(ValueError):
    """The bytes are not a safetensors file; the message says why."""


def write_tensors(file: BinaryIO, tensors: dict[str, np.ndarray]) -> tuple[int, str]:
    """Write arrays as one safetensors file. Returns (its size in bytes, its SHA-256).

    Args:
        tensors: name -> array of float32, int32, int64 or uint8; a StoredArray is read here.
    Raises:
        ValueError: an array has another type.
    """
    digest, total = hashlib.sha256(), 0
    for chunk in _serialise(tensors):
        file.write(chunk)
        digest.update(chunk)
        total += len(chunk)
    return total, digest.hexdigest()


def _serialise(tensors: dict[str, np.ndarray]) -> Iterator[bytes | memoryview]:
    header: dict[str, dict] = {"__metadata__": {"format": "np"}}
    offset = 0
    for name, array in tensors.items():
        code = _CODES.get(array.dtype.newbyteorder("<"))
        if code is None:
            raise ValueError(f"tensor {name} is {array.dtype}; a checkpoint holds float32 and ints")
        header[name] = {
            "dtype": code,
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the arrays start at a multiple of 8
    yield struct.pack("<Q", len(text)) + text
    for array in tensors.values():
        flat = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).reshape(-1)
        view = memoryview(flat.view(np.uint8))
        for start in range(0, len(view), _CHUNK_BYTES):
            yield view[start : start + _CHUNK_BYTES]


def read_tensors(data: bytes | bytearray | memoryview) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file in memory, as views of `data` (no copy).

    Raises:
        FormatError: a malformed header, or offsets outside the file.
    """
    view = memoryview(data)
    length = _header_length(view[:8], len(view) - 8)
    tensors, _ = _parsed(bytes(view[8 : 8 + length]))
    body = view[8 + length :]
    return {name: _array(name, entry, body) for name, entry in tensors.items()}


def read_header(file: BinaryIO) -> tuple[dict[str, dict], dict[str, str]]:
    """({tensor: its dtype, shape and data_offsets}, metadata) of any safetensors file.

    Only the header is read.

    Raises:
        FormatError: a malformed header.
    """
    length = _header_length(file.read(8), _MAX_HEADER_BYTES)
    return _parsed(file.read(length))


def stored_tensors(read: Callable[[int, int], bytes], size: int) -> dict[str, StoredArray]:
    """The arrays of a safetensors file, which are read on use.

    Args:
        read: (offset, number of bytes) -> those bytes of the file.
        size: the file's size in bytes.
    Raises:
        FormatError: a malformed header, or offsets outside the file.
    """
    length = _header_length(read(0, 8), size - 8)
    tensors, _ = _parsed(read(8, length))
    begin, arrays = 8 + length, {}
    for name, entry in tensors.items():
        dtype, shape, start, _ = _place(name, entry, size - begin)
        arrays[name] = StoredArray(read, begin + start, dtype, shape)
    return arrays


def _header_length(start: bytes | memoryview, most: int) -> int:
    if len(start) < 8:
        raise FormatError(f"{len(start)} bytes are too few for a header")
    (length,) = struct.unpack("<Q", start)
    most = min(most, _MAX_HEADER_BYTES)
    if length > most:
        raise FormatError(f"the header claims {length} bytes, but there are at most {most}")
    return length


def _parsed(text: bytes) -> tuple[dict[str, dict], dict[str, str]]:
    try:
        header = json.loads(text)
    except ValueError as error:
        raise FormatError(f"the header is not JSON: {error}") from None
    except RecursionError:
        raise FormatError("the header is nested too deeply") from None
    if not isinstance(header, dict):
        raise FormatError("the header is not a JSON object")
    metadata = header.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(one, str) for one in metadata.values()):
        raise FormatError("the metadata is not an object of strings")
    _check_layout(header)
    return header, metadata


def _check_layout(header: dict[str, Any]) -> None:
    """Refuse tensors whose bytes do not fit type and shape, overlap, or leave gaps."""
    at, before = 0, "the header"
    for name, entry in sorted(header.items(), key=lambda item: _offsets(*item)):
        start, end = _offsets(name, entry)
        bits, shape = _BITS.get(str(entry.get("dtype"))), entry.get("shape")
        if bits is None:
            raise FormatError(f"tensor {name}: unknown type {entry.get('dtype')!r:.40}")
        if not isinstance(shape, list) or not all(map(_is_count, shape)):
            raise FormatError(f"tensor {name}: the shape is not a list of counts")
        if start != at:
            raise FormatError(f"tensor {name}: begins at {start}, not at {at} after {before}")
        count = 1
        for size in shape:
            count *= size
            if count >= _TOO_MANY:  # checked here, so that a million sizes do not fill the memory
                raise FormatError(f"tensor {name}: the shape has more values than a file can hold")
        if count * bits != (end - start) * 8:
            raise FormatError(f"tensor {name}: {end - start} bytes do not hold {shape!s:.80}")
        at, before = end, f"tensor {name}"


def _offsets(name: str, entry: Any) -> tuple[int, int]:
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_count, offsets)):
        raise FormatError(f"tensor {name}: data_offsets are not two counts")
    if offsets[0] > offsets[1]:
        raise FormatError(f"tensor {name}: ends at {offsets[1]}, before it begins")
    return offsets[0], offsets[1]


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _TOO_MANY


def _array(name: str, entry: dict, body: memoryview) -> np.ndarray:
    dtype, shape, start, end = _place(name, entry, len(body))
    return np.frombuffer(body[start:end], dtype=dtype).reshape(shape)


def _place(name: str, entry: dict, size: int) -> tuple[np.dtype, tuple[int, ...], int, int]:
    """(dtype, shape, begin, end) of a tensor in the `size` bytes after the header."""
    dtype = _DTYPES.get(entry["dtype"])
    if dtype is None:
        raise FormatError(f"tensor {name}: checkpoints do not use {entry['dtype']}")
    shape, (start, end) = tuple(entry["shape"]), entry["data_offsets"]
    if end > size:
        raise FormatError(f"tensor {name}: {size} bytes do not hold {start}..{end}")
    return dtype, shape, start, end
