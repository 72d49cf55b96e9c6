"""The rows of one split, gathered from mapped shards.

Planning needs the indexes alone. Records in Howdah's own layout are read without parsing: a row's
ids are the last bytes of its payload (data/record.py). data/splits/shard_files.py opens
and checks the files.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from howdah import storage
from howdah.config.tasks import Task
from howdah.config.training import TrainingSection
from howdah.core import activity
from howdah.data.lineage.rows import layout_of
from howdah.data.manifest import Dataset
from howdah.data.record import FOOTER_BYTES, HEADER_BYTES, Example, decode_example
from howdah.data.splits.planner import Planner
from howdah.data.splits.shard_cache import NoRoom, ShardCache
from howdah.data.splits.shard_files import MappedShard, ShardFiles
from howdah.errors import ConfigError, DataError

_KEEP_READS = 4
"""A shard that this many consecutive reads did not need is released to the cache."""
_ROOM_SECONDS = 300.0
"""How long a read waits for other readers on this machine to release shards."""
_FEW_SHARDS = 16
"""Shards that a sample of rows comes from, if they have enough of them."""
_LABEL_DTYPES: dict[Task, type[np.generic]] = {
    "single_label": np.int32, "multi_label": np.float32, "regression": np.float32,
}  # fmt: skip
"""{task: type of the labels in a batch}"""


def node_cache(training: TrainingSection) -> ShardCache:
    """The shard cache of this machine, as configured."""
    return ShardCache(training.shard_cache_directory, training.shard_cache_bytes)


class ShardSet:
    """A split's shards.

    Args:
        dataset: a committed version.
        split: train, validation or test.
        cache: for local copies of remote or compressed shards; None: the user's.
    Raises:
        DataError: no such split, or a listed shard or index is missing or truncated.
    """

    def __init__(self, dataset: Dataset, split: str, *, cache: ShardCache | None = None) -> None:
        if split not in dataset.manifest.splits:
            raise DataError(
                f"the dataset has no split {split!r}",
                where=dataset.path,
                expected=", ".join(dataset.manifest.splits),
            )
        self.dataset = dataset
        self.split = split
        self.layout = layout_of(dataset.manifest)
        self.entries = dataset.manifest.splits[split]
        self.files = ShardFiles(dataset, self.entries, cache)
        self._indexes = self.files.indexes
        self._maps: list[MappedShard | None] = [None] * len(self.entries)
        self._fast: list[bool | None] = [None] * len(self.entries)
        self._last_read = [0] * len(self.entries)
        self._reads = 0
        self._lock = threading.RLock()  # batches are made in one thread, rows parsed in another
        self.lengths: list[np.ndarray] = [index.lengths for index in self._indexes]
        self.labels: list[np.ndarray] = [index.labels for index in self._indexes]

    @property
    def rows(self) -> int:
        """Rows of the split."""
        return sum(entry.rows for entry in self.entries)

    def unlisted(self) -> list[str]:
        """Files of this split's shards that belong to no shard of the manifest: never read."""
        listed = {name for entry in self.entries for name in entry.files}
        return [
            item.name
            for item in storage.list_dir(self.dataset.path)
            if item.name.startswith(f"{self.split}-")
            and ".tfrecord" in item.name
            and item.name not in listed
        ]

    # -- opening ---------------------------------------------------------------------------
    def _open(
        self, numbers: Sequence[int], urgent: Callable[[], bool] = lambda: True
    ) -> dict[int, MappedShard]:
        """Map these shards: all of them, or none while the cache has no room.

        Release all shards before waiting for room, so that two ranks cannot deadlock. An urgent
        read also requests room from the other readers.
        """
        waited = 0.0
        with contextlib.ExitStack() as request:
            requested = False
            while True:
                try:
                    with self._lock:
                        return {number: self._map(number) for number in numbers}
                except NoRoom:
                    if waited > _ROOM_SECONDS:
                        raise
                self.release()
                # At the first attempt this reader's own shards may have taken the room.
                if not requested and urgent() and waited:
                    request.enter_context(self.files.cache.request_room())
                    requested = True
                pause = random.uniform(0.05, 0.2)
                with activity.current().doing("cache", "waiting for room in the shard cache"):
                    time.sleep(pause)  # progress: this wait ends by itself
                waited = waited + pause if requested else pause

    def _map(self, number: int) -> MappedShard:
        mapped = self._maps[number]
        if mapped is None:
            mapped = self._maps[number] = self.files.open(number)
        if self._fast[number] is None:
            self._fast[number] = self._is_fast(number, mapped)
        self._last_read[number] = self._reads
        return mapped

    def release(self, *, unread_for: int = 0) -> None:
        """Unpin shards that the last `unread_for` reads did not need: the cache may remove them.

        A read under way keeps its shards.
        """
        if not self.files.cached:
            return
        with self._lock:
            for number, last in enumerate(self._last_read):
                if last <= self._reads - unread_for:
                    self._maps[number] = None

    def _is_fast(self, number: int, mapped: MappedShard) -> bool:
        """Whether ids lie where Howdah's writer puts them, by the first and the last row."""
        size = self.layout.itemsize
        if size == 0 or self.layout.columns.attention_mask is not None:
            return False
        rows = len(self._indexes[number])
        for row in {0, rows - 1}:
            one = np.array([row])
            if self.layout.image is not None:
                ids = self._pixels_at(number, mapped, one).reshape(-1)
            else:
                ids = self._ids_at(number, mapped, one, self.lengths[number][one])
            if not np.array_equal(ids, self._decode(number, mapped, row).input_ids):
                return False
        return True

    # -- room ------------------------------------------------------------------------------
    @property
    def cached_bytes(self) -> int:
        """Bytes of all the split's shards in the cache; 0 where they are read in place."""
        return sum(self.files.sizes) if self.files.cached else 0

    def check_room(self, planner: Planner) -> None:
        """Refuse a cache that cannot hold the shards that a plan needs at a time.

        Raises:
            ConfigError: with the bytes that it must hold at least.
        """
        if not self.files.cached:
            return
        at_once = sorted(self.files.sizes)[-planner.shards_at_once() :]
        needed, limit = sum(at_once) + self.files.index_bytes, self.files.cache.limit_bytes
        if needed > limit:
            raise ConfigError(
                "the shard cache is too small for the dataset",
                where="training.shard_cache_bytes",
                expected=f"at least {needed} bytes ({-(-needed // 2**20)} MiB): {len(at_once)}"
                f" shards of {self.split} are read at a time, two groups at least",
                got=f"{limit} bytes",
                remedy="raise it, or make smaller shards (data.shard_bytes)",
            )

    # -- reading ---------------------------------------------------------------------------
    def _decode(self, number: int, mapped: MappedShard, row: int) -> Example:
        offsets = self._indexes[number].offsets
        start, end = int(offsets[row]), int(offsets[row + 1])
        payload = mapped.data[start + HEADER_BYTES : end - FOOTER_BYTES]
        where = f"{self.dataset.shard_path(self.entries[number])}, offset {start}"
        return decode_example(payload, self.layout, where=where)

    def example(self, shard: int, row: int) -> Example:
        """One row, parsed."""
        return self._decode(shard, self._open([shard])[shard], row)

    def gather(
        self,
        shard: np.ndarray,
        row: np.ndarray,
        length: np.ndarray,
        urgent: Callable[[], bool] = lambda: True,
    ) -> np.ndarray:
        """Ids of many rows, concatenated, without padding.

        Args:
            shard: int[N], none below 0.
            row: int[N], in the shard.
            length: int[N], tokens.
            urgent: called while the cache has no room: whether training waits for this read.
        Returns:
            int32[sum(length)].
        """
        out = np.empty(int(length.sum()), dtype=np.int32)
        starts = np.cumsum(length) - length
        self._reads += 1
        opened = self._open(np.unique(shard).tolist(), urgent)
        for number, mapped in opened.items():
            here = np.flatnonzero(shard == number)  # int64[n]: which of the N rows
            lengths = length[here]  # int[n]
            to = _runs(starts[here], lengths)  # int64[sum(lengths)]: where their ids go in `out`
            if self._fast[number]:
                out[to] = self._ids_at(number, mapped, row[here], lengths)
            else:
                rows = [self._decode(number, mapped, at).input_ids for at in row[here].tolist()]
                out[to] = np.concatenate(rows)
        self.release(unread_for=_KEEP_READS)
        return out

    def gather_images(
        self, shard: np.ndarray, row: np.ndarray, urgent: Callable[[], bool] = lambda: True
    ) -> np.ndarray:
        """`gather` of an image dataset: pixels uint8[N, height * width * channels]."""
        out = np.empty((len(row), self.layout.image.values), np.uint8)
        self._reads += 1
        for number, mapped in self._open(np.unique(shard).tolist(), urgent).items():
            here = np.flatnonzero(shard == number)
            if self._fast[number]:
                out[here] = self._pixels_at(number, mapped, row[here])
                continue
            for at in here.tolist():
                out[at] = self._decode(number, mapped, int(row[at])).input_ids
        self.release(unread_for=_KEEP_READS)
        return out

    def _pixels_at(self, number: int, mapped: MappedShard, row: np.ndarray) -> np.ndarray:
        """uint8[n, values]: the pixels of rows of one shard, from where our writer puts them."""
        values = self.layout.image.values
        ends = self._indexes[number].offsets[row + 1] - FOOTER_BYTES  # int64[n]: byte offsets
        stream = np.frombuffer(mapped.data, np.uint8)
        return np.stack([stream[end - values : end] for end in ends.tolist()])

    def _ids_at(
        self, number: int, mapped: MappedShard, row: np.ndarray, length: np.ndarray
    ) -> np.ndarray:
        """int32[sum(length)]: ids of rows of one shard, from where Howdah's writer puts them.

        Records are not aligned: each id is assembled from its bytes.
        """
        size = self.layout.itemsize
        ends = self._indexes[number].offsets[row + 1] - FOOTER_BYTES  # int64[n]: byte offsets
        at = _runs(ends - length * size, length, step=size)  # int64[sum(length)]: of each id
        stream = np.frombuffer(mapped.data, np.uint8)
        ids = stream[at].astype(np.int32)
        for byte in range(1, size):
            ids |= stream[at + byte].astype(np.int32) << (8 * byte)
        return ids

    def labels_of(self, shard: np.ndarray, row: np.ndarray) -> np.ndarray:
        """What the rows are to be predicted as, 0 for filler rows: int32[B] label numbers; of task
        multi_label float32[B, C], 1 where the row has the label; of regression float32[B]."""
        task = self.layout.task
        several = task == "multi_label"
        shape = (len(shard), len(self.dataset.manifest.labels)) if several else (len(shard),)
        out = np.zeros(shape, _LABEL_DTYPES[task])
        for number in np.unique(shard).tolist():
            if number < 0:
                continue
            here = np.flatnonzero(shard == number)
            if not several:
                out[here] = self.labels[number][row[here]]
                continue
            starts = self._indexes[number].starts
            first, after = starts[row[here]], starts[row[here] + 1]
            owned = self.labels[number][_runs(first, after - first)]
            out[np.repeat(here, after - first), owned] = 1.0
        return out

    # -- verification ----------------------------------------------------------------------
    def verify(self, rank: int = 0, world: int = 1) -> int:
        """Read this rank's share of the shards and check every byte, before the first step.

        Returns:
            How many shards the cache had no room for; each of them is checked when it is fetched,
            before any of its rows is used.
        Raises:
            DataError: truncated or altered, with the shard's name and the offset.
        """
        share = range(len(self.entries))[rank::world]
        left_out = 0
        what = f"verifying {self.split}"
        with activity.current().doing("", what, total=len(share), unit="shards"):
            for number in share:
                left_out += not self.files.verify(number)
                activity.current().advanced(1)
        return left_out


def _runs(starts: np.ndarray, lengths: np.ndarray, step: int = 1) -> np.ndarray:
    """The indexes of all runs, concatenated: start, start+step, ... for each run's length.

    >>> _runs(np.array([10, 3]), np.array([2, 3])).tolist()
    [10, 11, 3, 4, 5]
    """
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - step * before, lengths) + step * np.arange(int(lengths.sum()))


def first_rows(lengths: Sequence[np.ndarray], most: int | None) -> list[np.ndarray]:
    """The first rows of some shards, `most` in all: rows are shuffled over the shards, so that
    these are a sample. Few shards are taken, spread over the split, since each is fetched.

    Args:
        lengths: of each shard, tokens of each of its rows.
        most: None, or as many as there are: all rows.
    Returns:
        The lengths of the rows that are taken; none of a shard that is left out.

    >>> parts = first_rows([np.ones(10)] * 100, 24)
    >>> sum(map(len, parts)), sum(len(part) > 0 for part in parts)
    (24, 16)
    """
    rows = np.array([len(part) for part in lengths], np.int64)
    if most is None or most >= rows.sum():
        return list(lengths)
    filled = np.flatnonzero(rows)
    taken: list[int] = []
    count = min(len(filled), _FEW_SHARDS, most)
    while rows[taken].sum() < most:
        taken = filled[np.arange(count) * len(filled) // count].tolist()
        count = min(len(filled), 2 * count)
    taken_lengths = [part[:0] for part in lengths]
    left = most
    for done, number in enumerate(sorted(taken, key=lambda number: int(rows[number]))):
        share = min(int(rows[number]), left // (len(taken) - done))
        taken_lengths[number], left = lengths[number][:share], left - share
    return taken_lengths


def class_counts(shards: ShardSet, classes: int) -> np.ndarray:
    """int64[C]: rows of each class, by the manifest."""
    counts = np.zeros(classes, dtype=np.int64)
    for entry in shards.entries:
        for label, rows in entry.class_counts.items():
            counts[int(label)] += rows
    return counts
