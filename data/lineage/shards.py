"""Which dataset versions have a row: by the indexes of ids beside the shards, no record is read.

A version made before there were such indexes is read once; its index is kept in the cache of this
machine ($HOWDAH_CACHE/ids).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from howdah import storage
from howdah.core.cache import cache_root
from howdah.data import id_index
from howdah.data.lineage.rows import rows_of
from howdah.data.manifest import MANIFEST, Dataset, ShardEntry, content_hash, load_dataset
from howdah.errors import DataError, NotFound
from howdah.storage import commit

_AT_ONCE = 16
"""Shards that are asked at once: a remote storage answers each after some milliseconds."""
_CACHED = "index.ids"


def versions(root: str) -> list[Dataset]:
    """The versions below a dataset's root, the oldest first; of a version's own path that one.

    Raises:
        DataError: there is no dataset.
    """
    if storage.exists(storage.join(root, MANIFEST)):
        return [load_dataset(root)]
    try:
        entries = [e for e in storage.list_dir(root) if e.is_dir and e.name.startswith("v=")]
    except NotFound:
        raise DataError(
            "there is no dataset",
            where=storage.local_path(root) if storage.is_local(root) else root,
            remedy="give data.dataset, or one of its versions",
        ) from None
    whole = [e.path for e in entries if storage.exists(storage.join(e.path, MANIFEST))]
    return sorted(map(load_dataset, whole), key=lambda one: one.manifest.created)


def version_hash(path: Any) -> str | None:
    """The hash in the path of a dataset's version, as run.json names it; None: it is not one.

    >>> version_hash("hdfs:///data/news/v=0badcafe")
    '0badcafe'
    """
    name = storage.name(path.rstrip("/")) if isinstance(path, str) else ""
    return name.removeprefix("v=") if name.startswith("v=") else None


def find(row_id: str, datasets: Sequence[Dataset]) -> dict[str, list[dict[str, Any]]]:
    """{path of a version: [{split, shard, part}]} of those that have the row.

    A shard that several versions share is asked once.
    """
    wanted = id_index.hash_of(row_id.encode("utf-8"))
    shards = {
        dataset.shard_path(entry): (dataset, entry)
        for dataset in datasets
        for entries in dataset.manifest.splits.values()
        for entry in entries
    }
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = pool.map(lambda one: _has(*one, wanted), shards.values())
        have = {path for path, there in zip(shards, answers, strict=True) if there}
    found: dict[str, list[dict[str, Any]]] = {}
    for dataset in datasets:
        for split, entries in dataset.manifest.splits.items():
            for entry in entries:
                if (path := dataset.shard_path(entry)) in have:
                    place = {"split": split, "shard": path, "part": entry.part}
                    found.setdefault(dataset.path, []).append(place)
    return found


def _has(dataset: Dataset, entry: ShardEntry, wanted: int) -> bool:
    path = id_index.name_of(dataset.shard_path(entry))
    try:
        with storage.open_read(path) as file:
            return id_index.has(file, file.seek(0, os.SEEK_END), wanted, path)
    except NotFound:
        pass
    hashes = _indexed(dataset, entry)
    at = int(np.searchsorted(hashes, np.uint64(wanted)))
    return at < len(hashes) and int(hashes[at]) == wanted


def _indexed(dataset: Dataset, entry: ShardEntry) -> np.ndarray:
    """The hashes of a shard without an index, from the cache of this machine."""

    def make(fresh: str) -> None:
        data = id_index.to_bytes(id_index.digests(row for _, _, row in rows_of(dataset, entry)))
        storage.make_dirs(fresh, mode=0o700)  # the storage may hide the dataset from other users
        storage.write_whole(os.path.join(fresh, _CACHED), data)

    path = dataset.shard_path(entry)
    key = content_hash([path, entry.bytes, entry.crc32c])
    directory = commit.cached(os.path.join(cache_root(), "ids", key), make)
    where = os.path.join(directory, _CACHED)
    return id_index.of_file(storage.read_bytes(where), where)
