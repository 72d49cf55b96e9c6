"""The record: a `tf.train.Example` in TFRecord framing, without protobuf and without TensorFlow.

Every record can be read with `tf.data.TFRecordDataset` and `tf.io.parse_single_example`.
`input_ids` comes last in the Example, so a reader finds a row's ids from the index alone: they are
the last `length * itemsize` bytes of the payload.

Worked example, one row: input_ids [101, 7592, 2088, 102] as uint16, label 1, id "row-7".

    offset  bytes                             meaning
         0  4f00000000000000                  u64: length of the payload, 79
         8  6c474f93                          u32: masked CRC-32C of the length's 8 bytes
        12  0a4d                              Example.features, 77 bytes
        14  0a0f 0a026964 1209 0a07           map entry "id": Feature.bytes_list
        24    0a05 726f772d37                   "row-7"
        31  0a0e 0a056c6162656c 1205 1a03     map entry "label": Feature.int64_list, packed
        44    0a01 01                           1
        47  0a0f 0a066c656e677468 1205 1a03   map entry "length": Feature.int64_list, packed
        61    0a01 04                           4
        64  0a19 0a09696e7075745f696473 120c  map entry "input_ids"
        79    0a0a 0a08                         Feature.bytes_list, one value of 8 bytes
        83    6500 a81d 2808 6600               the ids, little-endian: 101, 7592, 2088, 102
        91  502860cb                          u32: masked CRC-32C of the payload

>>> row = np.array([101, 7592, 2088, 102])
>>> [payload] = encode_examples([row], [1], [b"row-7"], layout=RecordLayout())
>>> payload[-8:].hex(" ", 2)
'6500 a81d 2808 6600'
>>> record = frame(payload)
>>> record[:12].hex(), record[-4:].hex(), len(record)
('4f000000000000006c474f93', '502860cb', 95)
>>> decode_example(payload, RecordLayout())
Example(input_ids=array([ 101, 7592, 2088,  102], dtype=int32), label=1, id=b'row-7')

Formats: TFRecord framing is tensorflow/core/lib/io/record_writer.h; Example is
tensorflow/core/example/example.proto and feature.proto.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import BinaryIO, Literal, assert_never

import google_crc32c
import numpy as np

from howdah.config.tasks import Task
from howdah.core.protobuf_wire import (
    VARINT,
    bytes_field,
    bytes_head,
    fields,
    read_varint,
    signed,
    varint,
)
from howdah.data import id_index
from howdah.data.manifest import RESTORE, Compression, IdsDtype, ImageEntry
from howdah.data.shard_index import ShardIndex, ShardStats, length_histogram
from howdah.data.targets import Label, labels_as, summary
from howdah.errors import DataError

HEADER_BYTES = 12
FOOTER_BYTES = 4
_MASK_DELTA = 0xA282EAD8


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Feature names of a record; `length`, `id` and `attention_mask` may be None (not there)."""

    input_ids: str = "input_ids"
    label: str = "label"
    length: str | None = "length"
    id: str | None = "id"
    attention_mask: str | None = None


@dataclass(frozen=True, kw_only=True)
class RecordLayout:
    """How a row is stored in a record: ids as little-endian bytes, or as an int64_list.

    An image's pixels take the place of the ids (uint8, row after row, a pixel's channels together).
    """

    ids_dtype: IdsDtype = "uint16"
    columns: Columns = field(default_factory=Columns)
    task: Task = "single_label"
    """What the feature `label` holds: one int64; of multi_label as many as the row has labels; of
    regression a float."""
    image: ImageEntry | None = None
    """The shape of every row, if they are images."""
    image_tokens: int = 0
    """Tokens of every image in the model, which the index has as the rows' length."""

    @property
    def itemsize(self) -> int:
        """Bytes of one id (0 for int64_list, whose ids have no fixed size)."""
        return {"uint8": 1, "uint16": 2, "uint32": 4, "int64_list": 0}[self.ids_dtype]


@dataclass(frozen=True, kw_only=True)
class Example:
    """One decoded record: ids int32[T] (of an image, its pixels), label number (all of a row of
    several labels, the number of a regression's), row id (empty where there is none)."""

    input_ids: np.ndarray
    label: Label
    id: bytes


def ids_dtype_for(vocab_size: int) -> Literal["uint16", "uint32"]:
    """The smallest unsigned type that holds every id of a vocabulary."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


# ---------------------------------------------------------------------------------- encoding
def _entry(name: str, feature: bytes) -> bytes:
    """A map entry of Features.feature."""
    return bytes_field(1, bytes_field(1, name.encode()) + bytes_field(2, feature))


def _bytes_feature(value: bytes) -> bytes:
    return bytes_field(1, bytes_field(1, value))


def _int64_feature(values: Sequence[int]) -> bytes:
    return bytes_field(3, bytes_field(1, b"".join(varint(int(v)) for v in values)))


def _label_feature(label: Label) -> bytes:
    if isinstance(label, float):
        return bytes_field(2, bytes_field(1, struct.pack("<f", label)))
    return _int64_feature(label if isinstance(label, tuple) else [label])


def encode_examples(
    input_ids: Sequence[np.ndarray],
    labels: Sequence[Label] | np.ndarray,
    ids: Sequence[bytes],
    *,
    layout: RecordLayout,
) -> list[bytes]:
    """Serialised Examples of many rows.

    Args:
        input_ids: a 1-D array of token ids for each row.
        labels: label number for each row; see `Label`.
        ids: row key for each row.
        layout: columns, task and type of the ids.
    """
    labels = labels_as(layout.task, labels)
    if layout.itemsize == 0:
        name = layout.columns.input_ids
        return [
            bytes_field(
                1, _head(layout, row_id, label, len(row)) + _entry(name, _int64_feature(row))
            )
            for row, label, row_id in zip(input_ids, labels, ids, strict=True)
        ]
    # All other bytes of a record depend only on (key's length, label, length): _template builds
    # them once for each such triple.
    dtype = np.dtype(layout.ids_dtype).newbyteorder("<")
    if layout.columns.id is None:
        ids = [b""] * len(ids)  # there is no column for a key
    out = []
    for row, label, row_id in zip(input_ids, labels, ids, strict=True):
        before, after = _template(layout, len(row_id), label, len(row))
        out.append(b"".join((before, row_id, after, row.astype(dtype, copy=False).tobytes())))
    return out


def _head(layout: RecordLayout, row_id: bytes, label: Label, length: int) -> bytes:
    """The map entries before the ids: key, label, length."""
    names = layout.columns
    return b"".join(
        (
            _entry(names.id, _bytes_feature(row_id)) if names.id else b"",
            _entry(names.label, _label_feature(label)),
            _entry(names.length, _int64_feature([length])) if names.length else b"",
        )
    )


@lru_cache(maxsize=1 << 16, typed=True)
def _template(layout: RecordLayout, id_size: int, label: Label, length: int) -> tuple[bytes, bytes]:
    """The bytes before the key, and those between the key and the ids."""
    size = length * layout.itemsize
    ids_head = _ids_head(layout.columns.input_ids, size)
    if layout.columns.id is None:
        head = _head(layout, b"", label, length)
        return bytes_head(1, len(head) + len(ids_head) + size) + head + ids_head, b""
    head = _head(layout, bytes(id_size), label, length)
    # The key is the last part of the first entry, so the entry's size gives its offset.
    first = len(_entry(layout.columns.id, _bytes_feature(bytes(id_size))))
    before, after = head[: first - id_size], head[first:]
    return bytes_head(1, len(head) + len(ids_head) + size) + before, after + ids_head


def _ids_head(name: str, size: int) -> bytes:
    """The ids' map entry up to its `size` bytes of ids."""
    value = bytes_head(1, size)
    feature = bytes_head(1, len(value) + size) + value
    inner = bytes_field(1, name.encode()) + bytes_head(2, len(feature) + size) + feature
    return bytes_head(1, len(inner) + size) + inner


# ---------------------------------------------------------------------------------- decoding
def _int64s(data: bytes) -> list[int]:
    """Values of an Int64List message, packed or not."""
    values = []
    for number, kind, value in fields(data):
        if number != 1:
            continue
        if kind == VARINT:
            values.append(signed(value))
        else:
            at = 0
            while at < len(value):
                item, at = read_varint(value, at)
                values.append(signed(item))
    return values


def _features(payload: bytes) -> dict[str, tuple[int, bytes]]:
    """{feature name: (1 bytes | 2 float | 3 int64, its list message)} of an Example."""
    out: dict[str, tuple[int, bytes]] = {}
    for number, _, features in fields(payload):
        if number != 1:
            continue
        for entry_number, _, entry in fields(features):
            if entry_number != 1:
                continue
            name, value = "", None
            for part, _, data in fields(entry):
                if part == 1:
                    name = data.decode()
                elif part == 2:
                    value = next(((kind, item) for kind, _, item in fields(data)), None)
            if value is not None:
                out[name] = value
    return out


def decode_example(payload: bytes, layout: RecordLayout, *, where: str = "record") -> Example:
    """One record as arrays; features that the layout does not name are ignored.

    Args:
        payload: a serialised Example.
        layout: its columns; ids stored as bytes need the right `ids_dtype`.
        where: what an error names (shard and offset).
    Raises:
        DataError: not an Example, or a feature is missing or of another kind.
    """
    names = layout.columns
    try:
        features = _features(payload)
        ids = _ids_of(features, layout)
        label = _label_of(features, names.label, layout.task)
        row_id = _id_of(features, names.id)
        length = None
        if names.length is not None and names.length in features:
            length = _one_int(features, names.length)
        if names.attention_mask is not None:
            kept = np.array(_int64s(_feature(features, names.attention_mask, 3)), dtype=bool)
            ids = ids[kept]
    except _Missing as missing:
        raise DataError(
            f"a record has no feature {missing.args[0]!r} of the right kind",
            where=where,
            expected=missing.args[1],
            got="features " + ", ".join(sorted(missing.args[2])),
            remedy="map the columns: data.tfrecord.input_ids and .attention_mask,"
            " data.columns.label and .id",
        ) from None
    except (ValueError, IndexError, UnicodeDecodeError, AttributeError, TypeError) as error:
        raise DataError("a record is not a tf.train.Example", where=where, got=str(error)) from None
    if length not in (None, len(ids)):
        raise DataError(
            "a record's length does not fit its ids",
            where=where,
            expected=f"{length} ids",
            got=f"{len(ids)}",
        )
    return Example(input_ids=ids.astype(np.int32), label=label, id=row_id)


class _Missing(Exception):
    """A feature is missing: (name, expected kind, features that are there)."""


_KINDS = {1: "bytes_list", 2: "float_list", 3: "int64_list"}


def _feature(features: dict, name: str, kind: int) -> bytes:
    feature = features.get(name)
    if feature is None or feature[0] != kind:
        raise _Missing(name, _KINDS[kind], list(features))
    return feature[1]


def _one_int(features: dict, name: str) -> int:
    values = _int64s(_feature(features, name, 3))
    if len(values) != 1:
        raise ValueError(f"feature {name!r} holds {len(values)} values, not 1")
    return values[0]


def _label_of(features: dict, name: str, task: Task) -> Label:
    if task == "single_label":
        return _one_int(features, name)
    if task == "multi_label":
        return tuple(_int64s(_feature(features, name, 3)))
    if task != "regression":
        assert_never(task)
    packed = _one_bytes(_feature(features, name, 2))
    if not isinstance(packed, bytes | memoryview) or len(packed) != 4:
        raise ValueError(f"feature {name!r} does not hold one float")
    return struct.unpack("<f", packed)[0]


def _one_bytes(data: bytes) -> bytes:
    for number, _, value in fields(data):
        if number == 1:
            return value
    raise ValueError("a feature holds no value")


def _ids_of(features: dict, layout: RecordLayout) -> np.ndarray:
    name = layout.columns.input_ids
    feature = features.get(name)
    if feature is not None and feature[0] == 1 and layout.itemsize:
        data = _one_bytes(feature[1])
        return np.frombuffer(data, dtype=np.dtype(layout.ids_dtype).newbyteorder("<"))
    return np.array(_int64s(_feature(features, name, 3)), dtype=np.int64)


def _id_of(features: dict, name: str | None) -> bytes:
    if name is None or name not in features:
        return b""
    kind, data = features[name]
    if kind == 3:
        return str(_int64s(data)[0]).encode()
    return _one_bytes(_feature(features, name, 1))


# ----------------------------------------------------------------------------------- framing
def masked_crc(data: bytes) -> int:
    """TFRecord's masked CRC-32C of `data`."""
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def frame(payload: bytes) -> bytes:
    """A payload in TFRecord framing."""
    return _frame_head(len(payload)) + payload + struct.pack("<I", masked_crc(payload))


@lru_cache(maxsize=4096)
def _frame_head(size: int) -> bytes:
    """A frame's first 12 bytes, from the payload's size."""
    length = struct.pack("<Q", size)
    return length + struct.pack("<I", masked_crc(length))


def read_frames(data: bytes | BinaryIO, name: str) -> Iterator[tuple[int, bytes]]:
    """(offset, payload) of every record of an uncompressed shard, CRCs checked. Of a file one
    record is in memory at a time.

    Raises:
        DataError: truncated or altered, with the offset of the first bad record.
    """
    file = io.BytesIO(data) if isinstance(data, bytes) else data
    at = 0
    while header := file.read(HEADER_BYTES):
        if len(header) < HEADER_BYTES:
            raise _bad(name, at, "truncated", f"{HEADER_BYTES} bytes of header", f"{len(header)}")
        if struct.unpack("<I", header[8:])[0] != masked_crc(header[:8]):
            raise _bad(name, at, "altered", "a header with a matching CRC", "a different CRC")
        length = struct.unpack("<Q", header[:8])[0]
        rest = file.read(length + FOOTER_BYTES)
        size, got = HEADER_BYTES + length + FOOTER_BYTES, HEADER_BYTES + len(rest)
        if got < size:
            raise _bad(name, at, "truncated", f"{size} bytes of record", f"{got}")
        payload = rest[:length]
        if struct.unpack("<I", rest[length:])[0] != masked_crc(payload):
            raise _bad(name, at, "altered", "a payload with a matching CRC", "a different CRC")
        yield at, payload
        at += size


def _bad(name: str, offset: int, what: str, expected: str, got: str) -> DataError:
    return DataError(
        f"the shard is {what}",
        where=f"{name}, offset {offset}",
        expected=expected,
        got=got,
        remedy=RESTORE,
    )


# ----------------------------------------------------------------------------------- writing
class ShardWriter:
    """Write rows to one shard; `close` returns what the manifest and the index need.

    Args:
        file: open to write bytes; the caller closes it.
        layout: record layout.
        compression: none or gzip (offsets in the index are those of the uncompressed stream).
    """

    def __init__(
        self,
        file: BinaryIO,
        layout: RecordLayout,
        *,
        compression: Compression = "none",
    ) -> None:
        self._file = file
        self._layout = layout
        # wbits 31: a gzip header without a time, so that equal rows give equal bytes.
        packed = {"none": False, "gzip": True}[compression]
        self._zip = zlib.compressobj(6, zlib.DEFLATED, 31) if packed else None
        self._crc = self._bytes = 0
        self._offsets = [0]
        self._lengths: list[int] = []
        self._labels: list[Label] = []
        self._id_hashes = bytearray()

    def write(
        self,
        input_ids: Sequence[np.ndarray],
        labels: Sequence[Label] | np.ndarray,
        ids: Sequence[bytes],
    ) -> None:
        """Append rows (see encode_examples)."""
        labels = labels_as(self._layout.task, labels)
        frames = [
            frame(payload)
            for payload in encode_examples(input_ids, labels, ids, layout=self._layout)
        ]
        sizes = accumulate(map(len, frames), initial=self._offsets[-1])
        next(sizes)  # the last write has stored this offset
        self._offsets.extend(sizes)
        if self._layout.image is None:
            self._lengths.extend(map(len, input_ids))
        else:
            self._lengths.extend([self._layout.image_tokens] * len(input_ids))
        self._labels.extend(labels)
        self._id_hashes += id_index.digests(ids)
        data = b"".join(frames)
        self._put(data if self._zip is None else self._zip.compress(data))

    def _put(self, data: bytes) -> None:
        self._crc = google_crc32c.extend(self._crc, data)
        self._bytes += len(data)
        self._file.write(data)

    def close(self) -> ShardStats:
        """Flush, leaving the file open; statistics and the index of what was written."""
        if self._zip is not None:
            self._put(self._zip.flush())
        lengths = np.array(self._lengths, dtype=np.int32)
        labels, starts, counts, target = summary(self._layout.task, self._labels)
        index = ShardIndex(
            offsets=np.array(self._offsets, dtype=np.int64),
            lengths=lengths,
            labels=labels,
            starts=starts,
        ).to_bytes()
        return ShardStats(
            rows=len(lengths),
            bytes=self._bytes,
            crc32c=self._crc,
            tokens=int(lengths.sum()),
            class_counts={str(k): v for k, v in sorted(counts.items())},
            target=target,
            length_histogram=length_histogram(lengths),
            index=index,
            index_crc32c=google_crc32c.value(index),
            ids=id_index.to_bytes(self._id_hashes),
        )
