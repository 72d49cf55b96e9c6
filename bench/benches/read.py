"""Reading shards to padded batches of 32 rows, in both frameworks.

TensorFlow's peer: TFRecordDataset, parse_single_example, padded_batch (all with AUTOTUNE), on our
shards; and on shards of the usual int64_list records. torch's peers: protobuf Examples parsed row
by row and padded; HF datasets in numpy format, padded. Bars: >= 5x; >= 2.5x and >= 1.5x.
"""

from __future__ import annotations

import glob
import struct
import sys
import tempfile

import numpy as np

from bench import harness
from bench.data import rows, write_dataset
from howdah.data.manifest import load_dataset
from howdah.data.record import RecordLayout, ShardWriter
from howdah.data.splits.planner import Planner, PlanSpec
from howdah.data.splits.shards import ShardSet
from howdah.training.data.readers import BatchSource

COUNT, BATCH = 20_000, 32


def _source(folder: str) -> BatchSource:
    dataset = load_dataset(folder)
    shards = ShardSet(dataset, "train")
    spec = PlanSpec(
        dataset_hash=dataset.manifest_hash, split="train", seed=1, global_batch_size=BATCH
    )
    return BatchSource(shards, Planner(shards.lengths, spec), rank=0, world=1, max_tokens=65536)


def _tensorflow(folder: str) -> None:
    import tensorflow as tf

    from bench.readers_tf import tf_batches, tf_dataset

    with open(f"{folder}/foreign", "wb") as file:
        writer = ShardWriter(file, RecordLayout(ids_dtype="int64_list"))
        writer.write(*rows(COUNT))
        writer.close()
    number = tf.io.FixedLenFeature([], tf.int64)

    def parse_bytes(raw):
        row = tf.io.parse_single_example(
            raw, {"label": number, "input_ids": tf.io.FixedLenFeature([], tf.string)}
        )
        ids = tf.cast(tf.io.decode_raw(row["input_ids"], tf.uint16), tf.int32)
        return {"ids": ids, "mask": tf.ones_like(ids), "label": row["label"]}

    def parse_list(raw):
        row = tf.io.parse_single_example(
            raw, {"label": number, "input_ids": tf.io.VarLenFeature(tf.int64)}
        )
        ids = tf.cast(tf.sparse.to_dense(row["input_ids"]), tf.int32)
        return {"ids": ids, "mask": tf.ones_like(ids), "label": row["label"]}

    def peer(files: list[str], parse) -> None:
        dataset = tf.data.TFRecordDataset(files).shuffle(2000).map(parse, tf.data.AUTOTUNE)
        for _ in dataset.padded_batch(BATCH).prefetch(tf.data.AUTOTUNE):
            pass

    def ours() -> None:
        for _ in tf_batches(_source(folder)):
            pass

    def ours_as_dataset() -> None:
        for _ in tf_dataset(_source(folder)):
            pass

    shards = sorted(glob.glob(f"{folder}/train-*.tfrecord"))
    harness.print_rows(
        [
            harness.compare(
                "TF read to padded batch", peer="parse_single_example + padded_batch",
                run_peer=lambda: peer(shards, parse_bytes), run_ours=ours, work=COUNT,
                unit="rows/s", bar=">= 5x",
            ),
            harness.compare(
                "TF read, as a tf.data.Dataset", peer="parse_single_example + padded_batch",
                run_peer=lambda: peer(shards, parse_bytes), run_ours=ours_as_dataset, work=COUNT,
                unit="rows/s",
            ),
            harness.compare(
                "TF read, int64_list against ours", peer="parse_single_example + padded_batch",
                run_peer=lambda: peer([f"{folder}/foreign"], parse_list), run_ours=ours,
                work=COUNT, unit="rows/s",
            ),
        ]
    )  # fmt: skip


def _example_class():
    """tf.train.Example without TensorFlow, from its descriptor (example.proto, feature.proto)."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(
        name="bench_example.proto", package="b", syntax="proto3"
    )
    kinds = descriptor_pb2.FieldDescriptorProto

    def message(name: str, *fields: tuple) -> descriptor_pb2.DescriptorProto:
        out = file.message_type.add(name=name)
        for number, (label, field_name, kind, type_name) in enumerate(fields, 1):
            out.field.add(
                name=field_name, number=number, label=label, type=kind, type_name=type_name
            )
        return out

    one, many = kinds.LABEL_OPTIONAL, kinds.LABEL_REPEATED
    message("BytesList", (many, "value", kinds.TYPE_BYTES, None))
    message("FloatList", (many, "value", kinds.TYPE_FLOAT, None))
    message("Int64List", (many, "value", kinds.TYPE_INT64, None))
    feature = message(
        "Feature",
        (one, "bytes_list", kinds.TYPE_MESSAGE, ".b.BytesList"),
        (one, "float_list", kinds.TYPE_MESSAGE, ".b.FloatList"),
        (one, "int64_list", kinds.TYPE_MESSAGE, ".b.Int64List"),
    )
    feature.oneof_decl.add(name="kind")
    for field in feature.field:
        field.oneof_index = 0
    features = message(
        "Features", (many, "feature", kinds.TYPE_MESSAGE, ".b.Features.FeatureEntry")
    )
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=one, type=kinds.TYPE_STRING)
    entry.field.add(
        name="value", number=2, label=one, type=kinds.TYPE_MESSAGE, type_name=".b.Feature"
    )
    message("Example", (one, "features", kinds.TYPE_MESSAGE, ".b.Features"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("b.Example"))


def _torch(folder: str) -> None:
    import datasets
    import torch

    from bench.readers_torch import TorchDataset

    example_class = _example_class()
    shards = sorted(glob.glob(f"{folder}/train-*.tfrecord"))
    ids, labels, _ = rows(COUNT)
    columns = {"input_ids": [row.astype(np.int32) for row in ids], "label": labels}
    hub = datasets.Dataset.from_dict(columns)
    hub.save_to_disk(f"{folder}/hf")
    hub = datasets.load_from_disk(f"{folder}/hf").shuffle(seed=1).with_format("numpy")

    def pad(batch: list[np.ndarray]) -> tuple:
        padded = torch.nn.utils.rnn.pad_sequence(
            [torch.from_numpy(row) for row in batch], batch_first=True
        )
        return padded, padded != 0

    def protobuf() -> None:
        pending = []
        for path in shards:
            with open(path, "rb") as file:
                while header := file.read(12):
                    (length,) = struct.unpack("<Q", header[:8])
                    example = example_class.FromString(file.read(length + 4)[:-4])
                    feature = example.features.feature
                    raw = feature["input_ids"].bytes_list.value[0]
                    _ = feature["label"].int64_list.value[0]
                    pending.append(np.frombuffer(raw, np.uint16).astype(np.int32))
                    if len(pending) == BATCH:
                        pad(pending)
                        pending = []

    def hf() -> None:
        for batch in hub.iter(batch_size=BATCH):
            pad([np.asarray(row, dtype=np.int32) for row in batch["input_ids"]])
            torch.from_numpy(np.asarray(batch["label"]))

    def ours() -> None:
        for _ in TorchDataset(_source(folder)):
            pass

    harness.print_rows(
        [
            harness.compare(
                "torch read to padded batch", peer="protobuf Example, pad_sequence",
                run_peer=protobuf, run_ours=ours, work=COUNT, unit="rows/s", bar=">= 2.5x",
            ),
            harness.compare(
                "torch read to padded batch", peer="HF datasets, numpy format",
                run_peer=hf, run_ours=ours, work=COUNT, unit="rows/s", bar=">= 1.5x",
            ),
        ]
    )  # fmt: skip


def main() -> None:
    """One child for each framework."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        write_dataset(folder, COUNT)
        for framework in ("tensorflow", "torch"):
            rows += harness.rows_from_child("bench.benches.read", framework, folder)
    harness.report("read", rows)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        {"tensorflow": _tensorflow, "torch": _torch}[sys.argv[1]](sys.argv[2])
    else:
        main()
