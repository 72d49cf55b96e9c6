"""safetensors files written as a stream and hashed on the way, on any storage; read without a copy.

The format (https://github.com/huggingface/safetensors#format): 8 bytes of little-endian header
length, a JSON header {name: {dtype, shape, data_offsets}}, then the arrays' bytes. The package
`safetensors` builds the whole file in memory before it writes and copies all of it when it reads; a
checkpoint of weights and moments is three times the model's size, and is in host memory already.
Its `deserialize` reads foreign weights (training/model/pretrained.py); all headers are read here.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Iterator
from typing import BinaryIO

import numpy as np

from training.checkpoint.stored import StoredArray

__all__ = ["FormatError", "read_header", "read_tensors", "stored_tensors", "write_tensors"]

_CODES = {
    np.dtype("<f4"): "F32",
    np.dtype("<i4"): "I32",
    np.dtype("<i8"): "I64",
    np.dtype("u1"): "U8",
}
_DTYPES = {code: dtype for dtype, code in _CODES.items()}
_CHUNK_BYTES = 8 * 2**20
_MAX_HEADER_BYTES = 100 * 2**20  # the limit of the safetensors library


class FormatError(ValueError):
    """The bytes are not a safetensors file; the message says why."""


def write_tensors(file: BinaryIO, tensors: dict[str, np.ndarray]) -> tuple[int, str]:
    """Write arrays as one safetensors file; returns its bytes and its SHA-256.

    Args:
        file: a binary file open for writing.
        tensors: name -> array of float32, int32, int64 or uint8; a StoredArray is read here.
    Raises:
        ValueError: an array of another type.
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
    """{tensor: its dtype, shape and data_offsets} and the metadata of any safetensors file.

    Only the header is read, on any storage.

    Raises:
        FormatError: a malformed header.
    """
    length = _header_length(file.read(8), _MAX_HEADER_BYTES)
    return _parsed(file.read(length))


def stored_tensors(read: Callable[[int, int], bytes], size: int) -> dict[str, StoredArray]:
    """The arrays of a safetensors file, read when they are used.

    Args:
        read: (offset, bytes) -> those bytes of the file.
        size: the file's bytes.
    Raises:
        FormatError: a malformed header, or offsets outside the file.
    """
    length = _header_length(read(0, 8), size - 8)
    tensors, _ = _parsed(read(8, length))
    begin, found = 8 + length, {}
    for name, entry in tensors.items():
        dtype, shape, start, _ = _place(name, entry, size - begin)
        found[name] = StoredArray(read, begin + start, dtype, shape)
    return found


def _header_length(start: bytes | memoryview, most: int) -> int:
    if len(start) < 8:
        raise FormatError(f"{len(start)} bytes are too few for a header")
    (length,) = struct.unpack("<Q", start)
    most = min(most, _MAX_HEADER_BYTES)
    if length > most:
        raise FormatError(f"the header claims {length} bytes where there are {most} at most")
    return length


def _parsed(text: bytes) -> tuple[dict[str, dict], dict[str, str]]:
    try:
        header = json.loads(text)
    except ValueError as error:
        raise FormatError(f"the header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise FormatError("the header is not a JSON object")
    metadata = header.pop("__metadata__", None)
    return header, metadata or {}


def _array(name: str, entry: dict, body: memoryview) -> np.ndarray:
    dtype, shape, start, end = _place(name, entry, len(body))
    return np.frombuffer(body[start:end], dtype=dtype).reshape(shape)


def _place(name: str, entry: dict, size: int) -> tuple[np.dtype, tuple[int, ...], int, int]:
    """dtype, shape, and first and last byte behind the header, of which `size` bytes follow."""
    try:
        dtype = _DTYPES[entry["dtype"]]
        shape = tuple(int(size) for size in entry["shape"])
        start, end = (int(offset) for offset in entry["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"tensor {name}: entry is not understood ({error!r})") from None
    expected = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if min(shape, default=0) < 0 or not 0 <= start <= end <= size or end - start != expected:
        raise FormatError(f"tensor {name}: bytes {start}..{end} do not hold {shape} of {dtype}")
    return dtype, shape, start, end
