"""Which dataset versions have a row: by the indexes of ids beside the shards, no record is read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from howdah import storage
from howdah.data import id_index
from howdah.data.manifest import MANIFEST, Dataset, ShardEntry, load_dataset, version_hash
from howdah.errors import DataError, NotFound

_AT_ONCE = 16
"""Shards that are asked at once: a remote storage answers each after some milliseconds."""


def versions(root: str) -> list[Dataset]:
    """The versions below a dataset's root, the oldest first; of a version's own path that one.

    Raises:
        DataError: there is no dataset.
    """
    if storage.exists(storage.join(root, MANIFEST)):
        return [load_dataset(root)]
    try:
        entries = [
            e for e in storage.list_dir(root) if e.is_dir and version_hash(e.name) is not None
        ]
    except NotFound:
        raise DataError(
            "there is no dataset",
            where=storage.local_path(root) if storage.is_local(root) else root,
            remedy="give data.dataset, or one of its versions",
        ) from None
    whole = [e.path for e in entries if storage.exists(storage.join(e.path, MANIFEST))]
    return sorted(map(load_dataset, whole), key=lambda one: one.manifest.created)


def find(row_id: str, datasets: Sequence[Dataset]) -> dict[str, list[dict[str, Any]]]:
    """{path of a version: [{split, shard, part}]} of those that have the row.

    A shard that several versions share is asked once.
    """
    row_hash = id_index.hash_of(row_id.encode("utf-8"))
    shards = {
        dataset.shard_path(entry): (dataset, entry)
        for dataset in datasets
        for entries in dataset.manifest.splits.values()
        for entry in entries
    }
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = pool.map(lambda one: _has(*one, row_hash), shards.values())
        have = {path for path, has_row in zip(shards, answers, strict=True) if has_row}
    rows: dict[str, list[dict[str, Any]]] = {}
    for dataset in datasets:
        for split, entries in dataset.manifest.splits.items():
            for entry in entries:
                if (path := dataset.shard_path(entry)) in have:
                    place = {"split": split, "shard": path, "part": entry.part}
                    rows.setdefault(dataset.path, []).append(place)
    return rows


def _has(dataset: Dataset, entry: ShardEntry, row_hash: int) -> bool:
    path = id_index.name_of(dataset.shard_path(entry))
    try:
        with storage.open_read(path) as file:
            return id_index.has(file, file.seek(0, os.SEEK_END), row_hash, path)
    except NotFound:
        raise id_index.missing(path) from None
