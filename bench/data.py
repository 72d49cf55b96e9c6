"""Datasets for the benches: rows like real ones (log-normal lengths), and real texts."""

from __future__ import annotations

import csv
import importlib.util

import numpy as np

from howdah.data.encode import Encoder
from howdah.data.manifest import (
    Dataset,
    DatasetManifest,
    RecordEntry,
    ShardEntry,
    TokenizerEntry,
    commit,
    load_dataset,
)
from howdah.data.record import RecordLayout, ShardWriter
from tools.demo import corpus as docstrings

LABELS = 8
_COLUMNS = {"input_ids": "input_ids", "label": "label", "length": "length", "id": "id"}


def rows(
    count: int, seed: int = 0, max_length: int = 128, *, even: bool = False
) -> tuple[list, np.ndarray, list[bytes]]:
    """ids (uint16 arrays, median 40 tokens; `even`: 40 in each row), labels and row keys."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(np.log(40), 0.6, count), 4, max_length).astype(int)
    if even:
        lengths[:] = 40
    ids = [rng.integers(1000, 30522, n).astype(np.uint16) for n in lengths]
    return ids, rng.integers(0, LABELS, count), [b"%016x" % n for n in range(count)]


def commit_dataset(
    path: str,
    splits: dict[str, list[ShardEntry]],
    max_length: int = 128,
    tokenizer: Encoder | None = None,
) -> Dataset:
    """A committed dataset; of `tokenizer` where a model trains on it."""
    commit(
        path,
        DatasetManifest(
            dataset_hash="bench",
            created="2026-01-01T00:00:00Z",
            etl_version="bench",
            labels=[str(n) for n in range(LABELS)],
            max_length=max_length,
            tokenizer=TokenizerEntry(
                hash=tokenizer.hash if tokenizer else "bench",
                vocab_size=tokenizer.vocab_size if tokenizer else 30522,
                pad_id=0,
                source="bench",
            ),
            record=RecordEntry(ids_dtype="uint16", columns=_COLUMNS),
            splits=splits,
            source={},
            seed=0,
            split_rule={},
            cleaning={},
        ),
    )
    return load_dataset(path)


def write_dataset(
    path: str, count: int, shards: int = 4, tokenizer: Encoder | None = None, *, even: bool = False
) -> Dataset:
    """`count` rows in `shards` shards at a local path; `even`: all of one length."""
    return _write(path, *rows(count, even=even), shards, tokenizer)


def write_texts(path: str, texts: str, count: int, tokenizer: Encoder) -> Dataset:
    """`count` real texts, tokenized and cut at 128 tokens, in random order.

    Args:
        texts: `docstrings` (of the installed packages), or the path of AG News' CSV (class, title,
            description, no header).
    """
    pairs = _docstrings() if texts == "docstrings" else _ag_news(texts)
    rng = np.random.default_rng(0)
    chosen = [pairs[n] for n in rng.permutation(len(pairs))[:count]]
    names = sorted({label for _, label in chosen})
    if len(names) > LABELS:
        raise ValueError(f"{len(names)} labels: a dataset of the benches has {LABELS}")
    ids = [part.astype(np.uint16) for part in tokenizer.encode([t for t, _ in chosen], 128)]
    labels = np.array([names.index(label) for _, label in chosen])
    return _write(path, ids, labels, [b"%016x" % n for n in range(count)], 4, tokenizer)


def _docstrings() -> list[tuple[str, str]]:
    # A GPU environment has neither Airflow nor Spark: what it has of the list.
    here = [name for name in docstrings.PACKAGES if importlib.util.find_spec(name)]
    corpus = docstrings.corpus(here[:LABELS])
    return [(text, label) for _, text, label in corpus if len(text) >= 20]


def _ag_news(path: str) -> list[tuple[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return [(f"{title} {text}", label) for label, title, text in csv.reader(file)]


def _write(
    path: str, ids: list, labels: np.ndarray, keys: list[bytes], shards: int, tokenizer
) -> Dataset:
    entries = []
    for n, part in enumerate(np.array_split(np.arange(len(ids)), shards)):
        name = f"train-{n:05d}-of-{shards:05d}.tfrecord"
        with open(f"{path}/{name}", "wb") as file:
            writer = ShardWriter(file, RecordLayout())
            writer.write([ids[i] for i in part], labels[part], [keys[i] for i in part])
            stats = writer.close()
        with open(f"{path}/{name}.index", "wb") as file:
            file.write(stats.index)
        entries.append(stats.entry(name))
    return commit_dataset(path, {"train": entries}, tokenizer=tokenizer)
