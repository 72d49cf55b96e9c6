"""The files of one split as local, mapped files: in place, or through the node's shard cache.

Local shards are mapped in place. Remote and compressed ones are read from a local copy
(data/splits/shard_cache.py), decompressed as it is written and checked when it is fetched.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import BinaryIO

import google_crc32c

from howdah import storage
from howdah.core import activity
from howdah.data.manifest import RESTORE, Dataset, ShardEntry
from howdah.data.record import FOOTER_BYTES, HEADER_BYTES, read_frames
from howdah.data.shard_index import ShardIndex
from howdah.data.splits.shard_cache import Fill, NoRoom, Pin, ShardCache
from howdah.errors import DataError, NotFound

_CHUNK = 8 * 2**20


class Traffic:
    """Counts the bytes of shards that this process has read so far."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = {"local_bytes": 0, "remote_bytes": 0, "fetches": 0}

    def add(self, **counts: int) -> None:
        """Add to local_bytes, of shards that were here already, or remote_bytes and fetches."""
        with self._lock:
            for name, count in counts.items():
                self._counts[name] += count

    def counts(self) -> dict[str, int]:
        """local_bytes, remote_bytes, fetches."""
        with self._lock:
            return dict(self._counts)


TRAFFIC = Traffic()


@dataclass(frozen=True)
class MappedShard:
    """A shard's uncompressed stream in memory; the cache keeps its copy while this object lives."""

    data: mmap.mmap
    pin: Pin | None


class ShardFiles:
    """Files of a split.

    Args:
        dataset: a committed version.
        entries: the split's shards.
        cache: for remote or compressed shards; None: the user's.
    Raises:
        DataError: a listed shard or index is missing, or of another size.
    """

    def __init__(
        self, dataset: Dataset, entries: list[ShardEntry], cache: ShardCache | None
    ) -> None:
        self.entries = entries
        self._dataset = dataset
        self._packed = {"none": False, "gzip": True}[dataset.manifest.record.compression]
        self._remote = not storage.is_local(dataset.path)
        self.cached = self._remote or self._packed
        """Whether the shards are read through the cache."""
        self._set = dataset.manifest.dataset_hash
        self.cache = (cache or ShardCache()) if self.cached else None
        self._in_use = self.cache.use(self._set) if self.cache else None
        sizes = self._listed()
        self.indexes = [self._open_index(entry, sizes[entry.index_name]) for entry in entries]
        self._checked: set[int] = set()
        """Shards whose local copy this process has checked, or fetched, which checks it."""
        self.sizes = [int(index.offsets[-1]) for index in self.indexes]
        """Bytes of each shard's uncompressed stream."""
        self.index_bytes = sum(
            sizes.get(entry.index_name, 0)
            for shards in dataset.manifest.splits.values()
            for entry in shards
        )
        """Bytes of all splits' indexes: all stay in the cache while the dataset is in use."""

    # ------------------------------------------------------------------------------- opening
    def _listed(self) -> dict[str, int]:
        """Sizes of the directory's files; checks that every shard is there with its size.

        Takes one listing of each directory and reads no data. Names are of one run each, so that
        those of an appended dataset's versions differ.
        """
        sizes: dict[str, int] = {}
        manifest = self._dataset.manifest
        every = [entry for shards in manifest.splits.values() for entry in shards]
        for directory in {self._dataset.directory(entry): None for entry in every}:
            with contextlib.suppress(NotFound):
                sizes |= {e.name: e.size for e in storage.list_dir(directory)}
        for entry in self.entries:
            for name in (entry.name, entry.index_name):
                if name not in sizes:
                    raise DataError(
                        "a shard that the manifest lists is missing",
                        where=storage.join(self._dataset.directory(entry), name),
                        remedy=RESTORE,
                    )
            if sizes[entry.name] != entry.bytes:
                self.locate_damage(entry)
        return sizes

    def _open_index(self, entry: ShardEntry, size: int) -> ShardIndex:
        path = self._dataset.index_path(entry)
        if self._remote:
            key = self._key(entry.index_name, entry.index_crc32c)
            index = self._cached_index(path, key, size, entry.index_crc32c)
        else:
            index = ShardIndex.open(storage.local_path(path))
        if len(index) != entry.rows:
            raise DataError(
                "the shard's index is of another shard",
                where=path,
                expected=f"{entry.rows} rows",
                got=f"{len(index)} rows",
                remedy=RESTORE,
            )
        return index

    def _cached_index(self, path: str, key: str, size: int, crc32c: int) -> ShardIndex:
        fill = self._copy(path, crc32c)
        self.cache.fetch(key, size, fill)
        try:
            return ShardIndex.open(self.cache.path(key))  # which checks a CRC of its own
        except DataError:  # damaged since an earlier run fetched it
            self.cache.drop(key)
            self.cache.fetch(key, size, fill)
            return ShardIndex.open(self.cache.path(key))

    def open(self, number: int) -> MappedShard:
        """A shard, mapped.

        Raises:
            DataError: it is truncated or altered.
            NoRoom: the cache is full of files in use; try again later.
        """
        entry = self.entries[number]
        if not self.cached:
            TRAFFIC.add(local_bytes=entry.bytes)
            with storage.open_read(self._dataset.shard_path(entry)) as file:
                return self._map(number, file, None)
        if self.is_here(number):
            TRAFFIC.add(local_bytes=self.sizes[number])
            self._check_copy(number)
        pin = self.cache.take(*self._copy_of(number))
        return self._map(number, pin.file, pin)

    def _map(self, number: int, file: BinaryIO, pin: Pin | None) -> MappedShard:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        expected = self.sizes[number]
        if len(mapped) != expected:
            raise DataError(
                "the shard is truncated" if len(mapped) < expected else "the shard is altered",
                where=f"{self._dataset.shard_path(self.entries[number])}, offset {len(mapped)}",
                expected=f"{expected} bytes of records",
                got=f"{len(mapped)}",
                remedy=RESTORE,
            )
        return MappedShard(mapped, pin)

    # ------------------------------------------------------------------------------ fetching
    def fetch(self, number: int, *, before: Callable[[], None] = lambda: None) -> None:
        """Fetch a shard's local copy, without pinning it; nothing is done for a local shard.

        Args:
            before: called before the transfer; may raise to stop it.
        Raises:
            As `open`.
        """
        if not self.cached:
            return
        key, size, fill = self._copy_of(number)

        def checked(file: BinaryIO) -> None:
            before()
            fill(file)

        self.cache.fetch(key, size, checked)

    def key_of(self, number: int) -> str:
        """The key of a shard's local copy in the cache."""
        return self._copy_of(number)[0]

    def is_here(self, number: int) -> bool:
        """Whether the shard can be opened without a fetch."""
        return not self.cached or self.cache.holds(*self._copy_of(number)[:2])

    def _key(self, name: str, crc32c: int, more: str = "") -> str:
        return storage.join(self._set, f"{crc32c:08x}-{name}{more}")

    def _copy_of(self, number: int) -> tuple[str, int, Fill]:
        """Key, size and source of a shard's local copy."""
        entry = self.entries[number]
        key = self._key(entry.name, entry.crc32c, ".unpacked" if self._packed else "")
        return key, self.sizes[number], self._shard_fill(number)

    def _shard_fill(self, number: int) -> Fill:
        entry = self.entries[number]
        path = self._dataset.shard_path(entry)

        def fill(file: BinaryIO) -> None:
            try:
                with activity.current().doing(
                    "", f"fetching {entry.name}", total=entry.bytes, unit="bytes"
                ):
                    self._copy(path, entry.crc32c, unpack=self._packed)(file)
            except DataError:
                self.locate_damage(entry)
            if file.tell() != self.sizes[number]:
                self.locate_damage(entry)
            TRAFFIC.add(remote_bytes=entry.bytes, fetches=1)
            self._checked.add(number)

        return fill

    def _copy(self, path: str, crc32c: int, *, unpack: bool = False) -> Fill:
        """A fill that copies a file and checks its CRC; it tries once more if they differ."""

        def fill(file: BinaryIO) -> None:
            for again in (True, False):
                file.seek(0)
                crc = _Crc()
                chunks: Iterable[bytes] = crc.over(_chunks(path))
                try:
                    for chunk in _gunzipped(chunks, path) if unpack else chunks:
                        file.write(chunk)
                except DataError:  # broken gzip
                    if again:
                        continue
                    raise
                if crc.value == crc32c:
                    return
            raise DataError(
                "a file is altered",
                where=path,
                expected=f"CRC-32C {crc32c:08x}",
                got=f"{crc.value:08x}",
                remedy=RESTORE,
            )

        return fill

    # -------------------------------------------------------------------------- verification
    def verify(self, number: int) -> bool:
        """Check every byte of a shard; False if the cache has no room for it now.

        Raises:
            DataError: truncated or altered, with the shard's name and the offset.
        """
        entry = self.entries[number]
        path = self._dataset.shard_path(entry)
        if not self._remote:
            with _reading(entry, entry.bytes):
                crc = file_crc32c(storage.local_path(path))
            if crc != entry.crc32c:
                self.locate_damage(entry)
            return True
        self._check_copy(number)
        try:
            self.cache.fetch(*self._copy_of(number))
        except NoRoom:
            return False
        return True

    def _check_copy(self, number: int) -> None:
        """Drop a local copy that was damaged since it was fetched, perhaps by an earlier run.

        Each process checks each shard once: which copies a node's cache holds, and which ranks join
        later, is not known in advance, and the bytes are about to be read anyway.
        """
        key, size, _ = self._copy_of(number)
        if number in self._checked or not self.cache.holds(key, size):
            return
        entry, path = self.entries[number], self.cache.path(key)
        try:
            with _reading(entry, size):
                if self._packed:
                    whole = _crc32(path) == self._packed_crc32(number)
                else:
                    whole = file_crc32c(path) == entry.crc32c
        except NotFound:  # removed meanwhile to make room
            return
        if whole:
            self._checked.add(number)
        else:
            self.cache.drop(key)

    def _packed_crc32(self, number: int) -> int:
        """CRC-32 of a compressed shard's contents, from gzip's last eight bytes."""
        entry = self.entries[number]
        with storage.open_read(self._dataset.shard_path(entry)) as file:
            file.seek(max(0, entry.bytes - 8))
            return int.from_bytes(file.read(4), "little")

    def locate_damage(self, entry: ShardEntry) -> None:
        """Raise for a damaged shard, naming the first bad record's offset."""
        path = self._dataset.shard_path(entry)
        data = storage.read_bytes(path)
        if self._packed:
            data = b"".join(_gunzipped([data], path))
        end = 0
        for offset, payload in read_frames(data, path):
            end = offset + HEADER_BYTES + len(payload) + FOOTER_BYTES
        raise DataError(
            "the shard is not the one that was committed: its records are intact, but some are"
            " missing or differ",
            where=f"{path}, offset {end}",
            expected=f"{entry.bytes} bytes, CRC-32C {entry.crc32c:08x}",
            got=f"{len(data)} bytes",
            remedy=RESTORE,
        )


def _reading(entry: ShardEntry, size: int) -> AbstractContextManager[None]:
    return activity.current().doing("", f"reading {entry.name}", total=size, unit="bytes")


class _Crc:
    """CRC-32C of a stream's bytes as they pass."""

    def __init__(self) -> None:
        self.value = 0

    def over(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            self.value = google_crc32c.extend(self.value, chunk)
            activity.current().advanced(len(chunk))
            yield chunk


def _chunks(path: str) -> Iterator[bytes]:
    with storage.open_read(path) as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def file_crc32c(local: str) -> int:
    """CRC-32C of a local file."""
    crc = _Crc()
    for _ in crc.over(_chunks(local)):
        pass
    return crc.value


def _crc32(local: str) -> int:
    """CRC-32 (gzip's) of a local file."""
    crc = 0
    for chunk in _chunks(local):
        crc = zlib.crc32(chunk, crc)
    return crc


def _gunzipped(chunks: Iterable[bytes], name: str) -> Iterator[bytes]:
    """The decompressed stream; DataError with the offset of the first broken byte."""
    unzip = zlib.decompressobj(31)
    at = 0
    try:
        for chunk in chunks:
            yield unzip.decompress(chunk)
            at += len(chunk)
    except zlib.error as error:
        raise DataError(
            "the shard is altered",
            where=f"{name}, offset {at} of the compressed file",
            got=str(error),
            remedy=RESTORE,
        ) from None
    if not unzip.eof:
        raise DataError(
            "the shard is truncated",
            where=f"{name}, offset {at} of the compressed file",
            remedy=RESTORE,
        )
