"""The rows of a shard as they were committed, read without a framework and without Spark."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import numpy as np

from howdah import storage
from howdah.data.manifest import Dataset, DatasetManifest, ShardEntry
from howdah.data.record import Columns, RecordLayout, decode_example, read_frames
from howdah.data.targets import Label
from howdah.errors import DataError


def rows_of(dataset: Dataset, entry: ShardEntry) -> Iterator[tuple[np.ndarray, Label, bytes]]:
    """(token ids or pixels, label, id) of a shard, checked."""
    path, record = dataset.shard_path(entry), dataset.manifest.record
    data = storage.read_bytes(path)
    if len(data) != entry.bytes:
        raise DataError(
            "a shard is not the one that was committed",
            where=path,
            expected=f"{entry.bytes:,} bytes",
            got=f"{len(data):,} bytes",
            remedy="restore the file, or make the dataset again",
        )
    data = gzip.decompress(data) if record.compression == "gzip" else data
    layout = layout_of(dataset.manifest)
    for offset, payload in read_frames(data, path):
        row = decode_example(payload, layout, where=f"{path}, offset {offset}")
        yield row.input_ids, row.label, row.id


def layout_of(manifest: DatasetManifest) -> RecordLayout:
    """The layout of its records."""
    record = manifest.record
    return RecordLayout(
        ids_dtype=record.ids_dtype,
        columns=Columns(**{"length": None, **record.columns}),
        image=record.image,
        task=manifest.task,
        image_tokens=manifest.max_length if record.image is not None else 0,
    )
