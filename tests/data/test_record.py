"""The record: round trips, other writers' records, damage named with its offset."""

import doctest
import io
import json
import os
import re
import struct
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from howdah.core.protobuf_wire import bytes_field
from howdah.data import record
from howdah.data.record import (
    Columns,
    RecordLayout,
    ShardWriter,
    decode_example,
    encode_examples,
    frame,
    ids_dtype_for,
    masked_crc,
    read_frames,
)
from howdah.data.shard_index import ShardIndex
from howdah.errors import DataError


def _entry(kind: int, *values: bytes) -> bytes:
    """A feature: 1 bytes, 2 float, 3 int64."""
    return bytes_field(kind, b"".join(bytes_field(1, value) for value in values))


LAYOUTS = [RecordLayout(ids_dtype=dtype) for dtype in ("uint16", "uint32", "int64_list")]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.ids_dtype)
@given(
    ids=st.lists(st.integers(0, 65535), max_size=300),
    label=st.integers(-(2**31), 2**31 - 1),
    row_id=st.binary(max_size=200),
)
@settings(max_examples=80, deadline=None)
def test_round_trip(layout, ids, label, row_id):
    row = np.array(ids, dtype=np.uint32)
    [payload] = encode_examples([row], [label], [row_id], layout=layout)
    example = decode_example(payload, layout)
    assert example.input_ids.tolist() == ids
    assert (example.label, example.id) == (label, row_id)


@pytest.mark.parametrize("layout", LAYOUTS[:2], ids=lambda layout: layout.ids_dtype)
def test_ids_are_the_last_bytes_of_the_payload(layout):
    """The readers' fast way relies on it, at every size of the length prefixes."""
    for length in (0, 1, 5, 60, 63, 64, 127, 128, 8191, 8192, 20000):
        row = np.arange(length, dtype=np.uint32) % 65536
        [payload] = encode_examples([row], [1], [b"x" * 20], layout=layout)
        tail = payload[len(payload) - length * layout.itemsize :]
        assert tail == row.astype(layout.ids_dtype).tobytes()
        assert decode_example(payload, layout).input_ids.tolist() == row.tolist()


@pytest.mark.parametrize("dtype", ["uint16", "int64_list"])
def test_a_layout_without_a_key_leaves_keys_out(dtype):
    layout = RecordLayout(ids_dtype=dtype, columns=Columns(id=None))
    [payload] = encode_examples([np.arange(9)], [3], [b"key"], layout=layout)
    example = decode_example(payload, layout)
    assert (example.input_ids.tolist(), example.label, example.id) == (list(range(9)), 3, b"")
    assert b"key" not in payload


def test_the_worked_example_in_the_docstring_is_what_is_written():
    """Bytes and offsets of its table, and its statements."""
    lines = re.findall(r"^ +(\d+) +((?:[0-9a-f]{2,} )+) ", record.__doc__, re.MULTILINE)
    table = [(int(offset), bytes.fromhex(data.replace(" ", ""))) for offset, data in lines]
    [payload] = encode_examples(
        [np.array([101, 7592, 2088, 102])], [1], [b"row-7"], layout=RecordLayout()
    )
    assert b"".join(data for _, data in table) == frame(payload)
    sizes = [len(data) for _, data in table]
    assert [offset for offset, _ in table] == [sum(sizes[:n]) for n in range(len(sizes))]
    results = doctest.testmod(record)
    assert results.attempted >= 6 and results.failed == 0


def test_vocabulary_chooses_the_id_type():
    assert ids_dtype_for(30522) == "uint16"
    assert ids_dtype_for(65536) == "uint16"
    assert ids_dtype_for(65537) == "uint32"


def shard(rows: int = 20, compression: str = "none") -> tuple[bytes, ShardIndex]:
    file = io.BytesIO()
    writer = ShardWriter(file, LAYOUTS[0], compression=compression)
    writer.write(
        [np.arange(n % 7 + 1, dtype=np.uint16) for n in range(rows)],
        [n % 3 for n in range(rows)],
        [f"row-{n}".encode() for n in range(rows)],
    )
    stats = writer.close()
    assert stats.bytes == len(file.getvalue()) and stats.rows == rows
    counts = {str(c): sum(n % 3 == c for n in range(rows)) for c in range(3)}
    assert stats.class_counts == counts
    assert stats.tokens == sum(n % 7 + 1 for n in range(rows))
    assert stats.length_histogram == {"8": rows}
    return file.getvalue(), ShardIndex.from_bytes(stats.index, "index")


def test_index_finds_every_record():
    data, index = shard()
    frames = list(read_frames(data, "s"))
    assert [offset for offset, _ in frames] == index.offsets[:-1].tolist()
    assert index.offsets[-1] == len(data)
    assert index.lengths.tolist() == [n % 7 + 1 for n in range(20)]
    assert index.labels.tolist() == [n % 3 for n in range(20)]


def test_equal_rows_give_equal_bytes():
    assert shard(compression="gzip")[0] == shard(compression="gzip")[0]


@pytest.mark.parametrize("cut", [1, 3, 4, 8, 11, 12, 13, 30])
def test_truncation_names_the_offset_of_the_first_bad_record(cut):
    data, index = shard()
    with pytest.raises(DataError, match="truncated") as caught:
        list(read_frames(data[: index.offsets[5] + cut], "part.tfrecord"))
    assert caught.value.where == f"part.tfrecord, offset {index.offsets[5]}"
    assert caught.value.remedy


def test_every_flipped_byte_is_found_at_its_record():
    data, index = shard(4)
    for at in range(len(data)):
        broken = bytearray(data)
        broken[at] ^= 0x10
        with pytest.raises(DataError) as caught:
            list(read_frames(bytes(broken), "s"))
        record = int(np.searchsorted(index.offsets, at, side="right")) - 1
        assert caught.value.where == f"s, offset {index.offsets[record]}"


def test_masked_crc_is_tfrecords():
    # crc32c("123456789") is e3069283 (RFC 3720); masked as record_writer.h does.
    crc = 0xE3069283
    assert masked_crc(b"123456789") == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    assert len(frame(b"abc")) == 8 + 4 + 3 + 4


@pytest.mark.parametrize(
    ("payload", "what"),
    [
        (b"junk that is no protobuf", "not a tf.train.Example"),
        (b"\xff" * 30, "not a tf.train.Example"),
        (b"", "no feature 'input_ids'"),
    ],
)
def test_not_an_example(payload, what):
    with pytest.raises(DataError, match=what) as caught:
        decode_example(payload, LAYOUTS[2], where="a.tfrecord, offset 12")
    assert caught.value.where == "a.tfrecord, offset 12"


@given(data=st.binary(max_size=120))
@settings(max_examples=300, deadline=None)
def test_any_bytes_decode_or_are_refused(data):
    try:
        decode_example(data, LAYOUTS[0])
    except DataError:
        pass


def test_a_length_that_does_not_fit_is_refused():
    layout = RecordLayout(columns=Columns(length="length"))
    [payload] = encode_examples([np.arange(9)], [0], [b"x"], layout=layout)
    broken = payload.replace(b"\x1a\x03\x0a\x01\x09", b"\x1a\x03\x0a\x01\x08")
    assert broken != payload
    with pytest.raises(DataError, match="length does not fit"):
        decode_example(broken, layout)


def test_index_refuses_damage(tmp_path):
    _, index = shard()
    data = index.to_bytes()
    cases = {
        "empty": b"",
        "other": b"x" * 100,
        "cut": data[:-1],
        "long": data + b"\0",
        "version": data[:8] + b"\x09" + data[9:],
        "flipped": data[:60] + bytes([data[60] ^ 1]) + data[61:],
    }
    for name, broken in cases.items():
        path = tmp_path / name
        path.write_bytes(broken)
        with pytest.raises(DataError, match="index is not valid") as caught:
            ShardIndex.open(str(path))
        assert str(path) in caught.value.where
    (tmp_path / "good").write_bytes(data)
    assert (ShardIndex.open(str(tmp_path / "good")).offsets == index.offsets).all()


_BOTH_WAYS = """
import json, os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tensorflow as tf
folder = sys.argv[1]
out = {}
for dtype in ("uint16", "uint32", "int64_list"):
    for kind in ("", "GZIP"):
        rows = []
        spec = {
            "label": tf.io.FixedLenFeature([], tf.int64),
            "id": tf.io.FixedLenFeature([], tf.string),
            "length": tf.io.FixedLenFeature([], tf.int64),
            "input_ids": tf.io.VarLenFeature(tf.int64) if dtype == "int64_list"
            else tf.io.FixedLenFeature([], tf.string),
        }
        for raw in tf.data.TFRecordDataset(f"{folder}/{dtype}{kind}", compression_type=kind):
            row = tf.io.parse_single_example(raw, spec)
            ids = row["input_ids"].values.numpy() if dtype == "int64_list" else np.frombuffer(
                row["input_ids"].numpy(), dtype)
            rows.append([ids.tolist(), int(row["label"]), row["id"].numpy().decode(),
                         int(row["length"])])
        out[dtype + kind] = rows
with tf.io.TFRecordWriter(f"{folder}/foreign") as writer:
    for n in range(5):
        example = tf.train.Example()
        put = example.features.feature
        put["tokens"].int64_list.value.extend([101, n, 7, 102, 0, 0])
        put["mask"].int64_list.value.extend([1, 1, 1, 1, 0, 0])
        put["y"].int64_list.value.append(n)
        put["score"].float_list.value.append(0.5)
        put["key"].bytes_list.value.append(b"k%d" % n)
        writer.write(example.SerializeToString())
print(json.dumps(out))
"""


def test_tensorflow_reads_ours_and_we_read_tensorflows(tmp_path):
    rows = [np.arange(n, dtype=np.uint32) * 3 for n in (1, 2, 40, 200)]
    labels, ids = [0, 1, 2, 3], [b"a", b"b", b"c", b"d"]
    for layout in LAYOUTS:
        for kind, compression in (("", "none"), ("GZIP", "gzip")):
            with open(tmp_path / f"{layout.ids_dtype}{kind}", "wb") as file:
                writer = ShardWriter(file, layout, compression=compression)
                writer.write(rows, labels, ids)
                writer.close()
    done = subprocess.run(
        [sys.executable, "-c", _BOTH_WAYS, str(tmp_path)],
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    expected = [
        [row.tolist(), label, row_id.decode(), len(row)]
        for row, label, row_id in zip(rows, labels, ids, strict=True)
    ]
    read = json.loads(done.stdout)
    assert len(read) == 6
    for name, records in read.items():
        assert records == expected, name

    layout = RecordLayout(
        ids_dtype="int64_list",
        columns=Columns(
            input_ids="tokens", label="y", length=None, id="key", attention_mask="mask"
        ),
    )
    frames = list(read_frames((tmp_path / "foreign").read_bytes(), "foreign"))
    for n, (_, payload) in enumerate(frames):
        example = decode_example(payload, layout)
        assert example.input_ids.tolist() == [101, n, 7, 102]
        assert (example.label, example.id) == (n, f"k{n}".encode())
    with pytest.raises(DataError) as caught:
        decode_example(frames[0][1], RecordLayout(ids_dtype="int64_list"))
    assert "tokens" in caught.value.got and "data.tfrecord" in caught.value.remedy


def test_unpacked_int64_lists_are_read():
    """Old writers do not pack: tag 0x08 before each value."""
    value = b"\x08\x65\x08\x07"
    feature = b"\x1a" + bytes([len(value)]) + value
    entry = b"\x0a\x01x\x12" + bytes([len(feature)]) + feature
    label = b"\x0a\x01y\x12\x04\x1a\x02\x08\x03"
    features = b"".join(b"\x0a" + bytes([len(e)]) + e for e in (entry, label))
    payload = b"\x0a" + bytes([len(features)]) + features
    layout = RecordLayout(
        ids_dtype="int64_list", columns=Columns(input_ids="x", label="y", length=None, id=None)
    )
    example = decode_example(payload, layout)
    assert example.input_ids.tolist() == [101, 7] and example.label == 3


@pytest.mark.parametrize(
    ("features", "problem"),
    [
        ({"id": _entry(1)}, "holds no value"),
        ({"id": _entry(2, struct.pack("<f", 2.0))}, "no feature 'id' of the right kind"),
        ({"length": _entry(1, b"2")}, "no feature 'length' of the right kind"),
        ({"length": _entry(3)}, "not 1"),
        ({"length": _entry(3, b"\3")}, "does not fit"),
    ],
)
def test_features_of_other_kinds_and_without_values_are_data_errors(features, problem):
    """Other writers keep a feature without a value where a row lacks it."""
    one = {"id": _entry(1, b"x"), "label": _entry(3, b"\1"), "input_ids": _entry(3, b"\1\2")}
    entries = [
        bytes_field(1, bytes_field(1, name.encode()) + bytes_field(2, feature))
        for name, feature in {**one, **features}.items()
    ]
    payload = bytes_field(1, b"".join(entries))
    with pytest.raises(DataError, match=problem):
        decode_example(payload, RecordLayout(ids_dtype="int64_list"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_an_index_that_another_user_keeps_private_is_a_typed_error():
    code = """
import os, tempfile
from howdah.data.shard_index import ShardIndex
from howdah.errors import PermissionDenied

with tempfile.TemporaryDirectory() as folder:
    os.chmod(folder, 0o755)
    path = os.path.join(folder, "a.index")
    with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
        file.write(bytes(30))
    os.seteuid(65534)
    try:
        ShardIndex.open(path)
    except PermissionDenied as error:
        print(error.where == path)
    os.seteuid(0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
