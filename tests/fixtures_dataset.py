"""Small datasets written without Spark, for the tests of readers and loops."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from howdah import storage
from howdah.encode import Encoder
from howdah.manifest import (
    Dataset,
    DatasetManifest,
    RecordEntry,
    ShardEntry,
    TokenizerEntry,
    commit,
    load_dataset,
)
from howdah.record import Columns, RecordLayout, ShardWriter

LABELS = ("animals", "plants", "stones", "stars")
_COLUMNS = {"input_ids": "input_ids", "label": "label", "length": "length", "id": "id"}


def learnable_rows(
    rows: int, classes: int, vocab_size: int, seed: int, max_length: int = 64
) -> tuple[list[np.ndarray], np.ndarray]:
    """Rows whose class shows in their words: each class prefers a quarter of the vocabulary.

    Returns:
        ids (uint32, [CLS] ... [SEP], log-normal lengths) and labels int[rows].
    """
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, rows)
    first = 5  # after the special tokens
    part = (vocab_size - first) // classes
    out = []
    for label in labels:
        length = int(np.clip(rng.lognormal(2.5, 0.7), 1, max_length - 2))
        own = rng.integers(first + label * part, first + (label + 1) * part, length)
        noise = rng.integers(first, vocab_size, length)
        words = np.where(rng.random(length) < 0.6, own, noise)
        out.append(np.concatenate([[2], words, [3]]).astype(np.uint32))
    return out, labels


def build_dataset(
    path: str,
    *,
    model_dir: str,
    rows: dict[str, int] | None = None,
    classes: int = 4,
    shards: int = 3,
    seed: int = 0,
    ids_dtype: str = "uint16",
    compression: str = "none",
    max_length: int = 64,
) -> Dataset:
    """A committed dataset version at `path` (any storage) for the tokenizer in `model_dir`.

    Args:
        rows: {split: rows}; by default train 96, validation 24, test 25.
    """
    encoder = Encoder.load(model_dir)
    layout = RecordLayout(ids_dtype=ids_dtype, columns=Columns(**_COLUMNS))
    rows = rows or {"train": 96, "validation": 24, "test": 25}
    splits = {
        split: _write_split(
            path, split, layout, compression, shards,
            *learnable_rows(count, classes, encoder.vocab_size, seed + n, max_length),
        )
        for n, (split, count) in enumerate(rows.items())
    }  # fmt: skip
    commit(
        path,
        DatasetManifest(
            dataset_hash=f"{seed:016x}",
            created="2026-01-01T00:00:00Z",
            etl_version="test",
            labels=list(LABELS[:classes]),
            max_length=max_length,
            tokenizer=TokenizerEntry(
                hash=encoder.hash,
                vocab_size=encoder.vocab_size,
                pad_id=encoder.pad_id,
                source=model_dir,
            ),
            record=RecordEntry(ids_dtype=ids_dtype, columns=_COLUMNS, compression=compression),
            splits=splits,
            source={"kind": "test"},
            seed=seed,
            split_rule={},
            cleaning={},
        ),
    )
    return load_dataset(path)


def _write_split(
    path: str,
    split: str,
    layout: RecordLayout,
    compression: str,
    shards: int,
    ids: Sequence[np.ndarray],
    labels: np.ndarray,
) -> list[ShardEntry]:
    shards = max(1, min(shards, len(ids)))
    entries = []
    for n, part in enumerate(np.array_split(np.arange(len(ids)), shards)):
        name = f"{split}-{n:05d}-of-{shards:05d}.tfrecord" + (
            ".gz" if compression == "gzip" else ""
        )
        with storage.open_write(storage.join(path, name)) as file:
            writer = ShardWriter(file, layout, compression=compression)
            writer.write(
                [ids[i] for i in part], labels[part], [f"{split}-{i}".encode() for i in part]
            )
            stats = writer.close()
        storage.write_whole(storage.join(path, name + ".index"), stats.index)
        entries.append(stats.entry(name))
    return entries


@pytest.fixture(scope="session")
def tiny_dataset(tmp_path_factory, tiny_model_dir) -> Dataset:
    """A small learnable dataset for the whole session: read it, never write to it."""
    path = str(tmp_path_factory.mktemp("tiny-data") / "v=0")
    return build_dataset(path, model_dir=tiny_model_dir)
