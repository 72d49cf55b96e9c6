"""The shards of one split, opened and verified: rows are gathered from mapped files.

Planning needs the indexes alone. Rows of our own layout are found without parsing: a row's ids are
the last bytes of its payload (howdah/record.py). Remote shards, and compressed ones, are read from
a local copy that is checked on arrival.
"""

from __future__ import annotations

import mmap
import os
import zlib
from collections.abc import Sequence

import google_crc32c
import numpy as np

from howdah import storage
from howdah.errors import DataError, NotFound
from howdah.manifest import Dataset, ShardEntry
from howdah.record import (
    FOOTER_BYTES,
    HEADER_BYTES,
    Columns,
    Example,
    RecordLayout,
    decode_example,
    read_frames,
)
from howdah.shard_index import ShardIndex

_CHUNK = 8 * 2**20
_REMEDY = "restore the file from a copy, or remove the dataset version and run `howdah etl`"


def layout_of(dataset: Dataset) -> RecordLayout:
    """The record layout that a dataset's manifest states."""
    record = dataset.manifest.record
    return RecordLayout(ids_dtype=record.ids_dtype, columns=Columns(**record.columns))


def default_cache_dir(dataset: Dataset) -> str:
    """Where local copies of remote or compressed shards lie, shared by the ranks of a node."""
    root = os.environ.get("HOWDAH_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "howdah"
    )
    return os.path.join(root, "shards", dataset.manifest.dataset_hash)


class ShardSet:
    """A split's shards.

    Args:
        dataset: a committed version.
        split: train, validation or test.
        cache_dir: for local copies of remote or compressed shards.
    Raises:
        DataError: no such split, or a shard or index that is listed is missing or not whole.
    """

    def __init__(self, dataset: Dataset, split: str, *, cache_dir: str | None = None) -> None:
        if split not in dataset.manifest.splits:
            raise DataError(
                f"the dataset has no split {split!r}",
                where=dataset.path,
                expected=", ".join(dataset.manifest.splits),
                remedy="check data.split",
            )
        self.dataset = dataset
        self.split = split
        self.layout = layout_of(dataset)
        self.entries = dataset.manifest.splits[split]
        self._cache_dir = cache_dir or default_cache_dir(dataset)
        self._check_listed()
        self._indexes = [self._open_index(entry) for entry in self.entries]
        self._maps: list[mmap.mmap | None] = [None] * len(self.entries)
        self._fast: list[bool] = [False] * len(self.entries)
        self.lengths: list[np.ndarray] = [index.lengths for index in self._indexes]
        self.labels: list[np.ndarray] = [index.labels for index in self._indexes]

    @property
    def rows(self) -> int:
        """Rows of the split."""
        return sum(entry.rows for entry in self.entries)

    def unlisted(self) -> list[str]:
        """Shard files of this split that the manifest does not name: they are never read."""
        known = {entry.name for entry in self.entries}
        return [
            item.name
            for item in storage.list_dir(self.dataset.path)
            if item.name.startswith(f"{self.split}-")
            and ".tfrecord" in item.name
            and not item.name.endswith(".index")
            and item.name not in known
        ]

    # -- opening ---------------------------------------------------------------------------
    def _check_listed(self) -> None:
        """Every listed file is there with its size: one listing, no data read."""
        try:
            sizes = {e.name: e.size for e in storage.list_dir(self.dataset.path)}
        except NotFound:
            sizes = {}
        for entry in self.entries:
            for name in (entry.name, entry.index_name):
                if name not in sizes:
                    raise DataError(
                        "a shard that the manifest lists is missing",
                        where=storage.join(self.dataset.path, name),
                        remedy=_REMEDY,
                    )
            if sizes[entry.name] != entry.bytes:
                self._locate_damage(entry)

    def _open_index(self, entry: ShardEntry) -> ShardIndex:
        path = self.dataset.index_path(entry)
        if not storage.is_local(path):
            path = self._local_copy(path, entry.index_name, entry.index_crc32c)
        index = ShardIndex.open(storage.local_path(path))
        if len(index) != entry.rows:
            raise DataError(
                "the shard's index is of another shard",
                where=path,
                expected=f"{entry.rows} rows",
                got=f"{len(index)} rows",
                remedy=_REMEDY,
            )
        return index

    def _local_copy(self, path: str, name: str, crc32c: int) -> str:
        """A local copy of a remote file, fetched once a node and checked on arrival."""
        local = os.path.join(self._cache_dir, f"{crc32c:08x}-{name}")
        if not os.path.exists(local):
            # Whole or not at all, under a name of its own: ranks that race fetch twice, no harm.
            storage.download(path, local)
        found = file_crc32c(local)
        if found != crc32c:
            os.unlink(local)
            raise DataError(
                "a file is altered",
                where=path,
                expected=f"CRC-32C {crc32c:08x}",
                got=f"{found:08x}",
                remedy=_REMEDY,
            )
        return local

    def _open_shard(self, number: int) -> None:
        """Map a shard's uncompressed stream, on first use."""
        if self._maps[number] is None:
            entry = self.entries[number]
            path = self.dataset.shard_path(entry)
            if not storage.is_local(path):
                path = self._local_copy(path, entry.name, entry.crc32c)
            if self.dataset.manifest.record.compression == "gzip":
                path = self._unpacked(path, entry)
            with open(storage.local_path(path), "rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            expected = int(self._indexes[number].offsets[-1])
            if len(mapped) != expected:
                raise DataError(
                    "the shard is truncated" if len(mapped) < expected else "the shard is altered",
                    where=f"{self.dataset.shard_path(entry)}, offset {len(mapped)}",
                    expected=f"{expected} bytes of records",
                    got=f"{len(mapped)}",
                    remedy=_REMEDY,
                )
            self._maps[number] = mapped
            self._fast[number] = self._is_fast(number)

    def _unpacked(self, path: str, entry: ShardEntry) -> str:
        """The uncompressed copy of a gzip shard."""
        local = os.path.join(self._cache_dir, f"{entry.crc32c:08x}-{entry.name}.unpacked")
        if not os.path.exists(local):
            storage.write_whole(local, gunzip(storage.read_bytes(path), path))
        return local

    def _is_fast(self, number: int) -> bool:
        """Whether the ids lie where our own writer puts them: tried on the first and last row."""
        size = self.layout.itemsize
        if size == 0 or self.layout.columns.attention_mask is not None:
            return False
        rows = len(self._indexes[number])
        for row in {0, rows - 1}:
            one = np.array([row])
            ids = self._ids_at(number, one, self.lengths[number][one])
            if not np.array_equal(ids, self._decode(number, row).input_ids):
                return False
        return True

    # -- reading ---------------------------------------------------------------------------
    def _decode(self, number: int, row: int) -> Example:
        offsets = self._indexes[number].offsets
        start, end = int(offsets[row]), int(offsets[row + 1])
        payload = self._maps[number][start + HEADER_BYTES : end - FOOTER_BYTES]
        where = f"{self.dataset.shard_path(self.entries[number])}, offset {start}"
        return decode_example(payload, self.layout, where=where)

    def example(self, shard: int, row: int) -> Example:
        """One row, parsed."""
        self._open_shard(shard)
        return self._decode(shard, row)

    def gather(self, shard: np.ndarray, row: np.ndarray, length: np.ndarray) -> np.ndarray:
        """Ids of many rows, one after the other, without padding.

        Args:
            shard: int[N], none below 0.
            row: int[N], in the shard.
            length: int[N], tokens.
        Returns:
            int32[sum(length)].
        """
        out = np.empty(int(length.sum()), dtype=np.int32)
        starts = np.cumsum(length) - length
        for number in np.unique(shard).tolist():
            if self._maps[number] is None:
                self._open_shard(number)
            here = np.flatnonzero(shard == number)
            own = length[here]
            to = _runs(starts[here], own)
            if self._fast[number]:
                out[to] = self._ids_at(number, row[here], own)
            else:
                rows = [self._decode(number, at).input_ids for at in row[here].tolist()]
                out[to] = np.concatenate(rows)
        return out

    def _ids_at(self, number: int, row: np.ndarray, length: np.ndarray) -> np.ndarray:
        """Ids of rows of one shard, from where our writer puts them; records are not aligned, so
        that each id is put together from its bytes."""
        size = self.layout.itemsize
        ends = self._indexes[number].offsets[row + 1] - FOOTER_BYTES
        at = _runs(ends - length * size, length, step=size)
        stream = np.frombuffer(self._maps[number], np.uint8)
        ids = stream[at].astype(np.int32)
        for byte in range(1, size):
            ids |= stream[at + byte].astype(np.int32) << (8 * byte)
        return ids

    def labels_of(self, shard: np.ndarray, row: np.ndarray) -> np.ndarray:
        """int32[B] label numbers; 0 for filling rows."""
        out = np.zeros(len(shard), dtype=np.int32)
        for number in np.unique(shard).tolist():
            if number >= 0:
                here = shard == number
                out[here] = self.labels[number][row[here]]
        return out

    # -- verification ----------------------------------------------------------------------
    def verify(self, rank: int = 0, world: int = 1) -> None:
        """Read this rank's share of the shards and check every byte, before the first step.

        Raises:
            DataError: truncated or altered, with the shard's name and the offset.
        """
        for entry in self.entries[rank::world]:
            path = self.dataset.shard_path(entry)
            if storage.is_local(path):
                if file_crc32c(storage.local_path(path)) != entry.crc32c:
                    self._locate_damage(entry)
            else:
                self._local_copy(path, entry.name, entry.crc32c)

    def _locate_damage(self, entry: ShardEntry) -> None:
        """Raise for a damaged shard, naming the first bad record's offset."""
        path = self.dataset.shard_path(entry)
        data = storage.read_bytes(path)
        if self.dataset.manifest.record.compression == "gzip":
            data = gunzip(data, path)
        end = 0
        for offset, payload in read_frames(data, path):
            end = offset + HEADER_BYTES + len(payload) + FOOTER_BYTES
        raise DataError(
            "the shard is not the one that was committed: its records are whole, but not all or "
            "not the same",
            where=f"{path}, offset {end}",
            expected=f"{entry.bytes} bytes, CRC-32C {entry.crc32c:08x}",
            got=f"{len(data)} bytes",
            remedy=_REMEDY,
        )


def _runs(starts: np.ndarray, lengths: np.ndarray, step: int = 1) -> np.ndarray:
    """All indexes of runs: start, start+step, ... of each run's length.

    >>> _runs(np.array([10, 3]), np.array([2, 3])).tolist()
    [10, 11, 3, 4, 5]
    """
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - step * before, lengths) + step * np.arange(int(lengths.sum()))


def file_crc32c(local: str) -> int:
    """CRC-32C of a local file."""
    crc = 0
    with open(local, "rb") as file:
        while chunk := file.read(_CHUNK):
            crc = google_crc32c.extend(crc, chunk)
    return crc


def gunzip(data: bytes, name: str) -> bytes:
    """The uncompressed stream; DataError with the offset where it breaks."""
    unzip = zlib.decompressobj(31)
    out = []
    at = 0
    try:
        for at in range(0, len(data), _CHUNK):
            out.append(unzip.decompress(data[at : at + _CHUNK]))
    except zlib.error as error:
        raise DataError(
            "the shard is altered",
            where=f"{name}, offset {at} of the compressed file",
            got=str(error),
            remedy=_REMEDY,
        ) from None
    if not unzip.eof:
        raise DataError(
            "the shard is truncated",
            where=f"{name}, offset {len(data)} of the compressed file",
            remedy=_REMEDY,
        )
    return b"".join(out)


def class_counts(shards: Sequence[ShardSet] | ShardSet, classes: int) -> np.ndarray:
    """int64[C]: rows of each class, from the manifest alone."""
    sets = [shards] if isinstance(shards, ShardSet) else shards
    counts = np.zeros(classes, dtype=np.int64)
    for one in sets:
        for entry in one.entries:
            for label, rows in entry.class_counts.items():
                counts[int(label)] += rows
    return counts
