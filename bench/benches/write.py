"""TFRecord write: `tf.io.TFRecordWriter` + `tf.train.Example` against data/record.py.

Bar: >= 3x for the same contents. The usual way of writing ids, an int64_list, is shown too.
"""

from __future__ import annotations

import sys
import tempfile

from bench import harness
from bench.data import rows

COUNT = 20_000


def _child() -> None:
    import tensorflow as tf

    from howdah.data.record import RecordLayout, ShardWriter

    ids, labels, keys = rows(COUNT)
    lists = [row.tolist() for row in ids]
    folder = tempfile.mkdtemp()

    def example(features: dict) -> bytes:
        return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()

    def number(value: int):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))

    def raw(value: bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))

    def peer(as_bytes: bool) -> None:
        with tf.io.TFRecordWriter(f"{folder}/peer") as writer:
            for row, listed, label, key in zip(ids, lists, labels, keys, strict=True):
                tokens = (
                    raw(row.tobytes())
                    if as_bytes
                    else tf.train.Feature(int64_list=tf.train.Int64List(value=listed))
                )
                writer.write(
                    example(
                        {
                            "id": raw(key),
                            "label": number(int(label)),
                            "length": number(len(row)),
                            "input_ids": tokens,
                        }
                    )
                )

    def ours() -> None:
        with open(f"{folder}/ours", "wb") as file:
            writer = ShardWriter(file, RecordLayout())
            for at in range(0, COUNT, 1000):
                part = slice(at, at + 1000)
                writer.write(ids[part], labels[part], keys[part])
            writer.close()

    harness.print_rows(
        [
            harness.compare(
                "write, same contents", peer="TFRecordWriter + tf.train.Example",
                run_peer=lambda: peer(True), run_ours=ours, work=COUNT, unit="rows/s", bar=">= 3x",
            ),
            harness.compare(
                "write, int64_list against ours", peer="TFRecordWriter + tf.train.Example",
                run_peer=lambda: peer(False), run_ours=ours, work=COUNT, unit="rows/s",
            ),
        ]
    )  # fmt: skip


def main() -> None:
    """Run in a child: it imports TensorFlow."""
    harness.report("write", harness.rows_from_child("bench.benches.write", "child"))


if __name__ == "__main__":
    _child() if "child" in sys.argv else main()
