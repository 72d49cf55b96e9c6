"""Identity of datasets: the manifest is the commit point, and readers open only what it lists."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    BaseModel,
    ConfigDict,
    PlainSerializer,
    ValidationError,
    WrapValidator,
    model_serializer,
)

from howdah import storage
from howdah.config.data import InputKind
from howdah.config.tasks import Task
from howdah.errors import DataError, NotFound
from howdah.packed_counts import MOST_PLAIN, PackedCounts

SCHEMA_VERSION = 1
APPENDED_SCHEMA_VERSION = 2
"""Schema of versions whose shards may lie in directories of earlier versions: readers of schema 1
would not find them."""
PACKED_SCHEMA_VERSION = 3
"""Schema of versions whose shards have more labels than MOST_PLAIN: the counts are packed."""
_VERSIONS = (SCHEMA_VERSION, APPENDED_SCHEMA_VERSION, PACKED_SCHEMA_VERSION)
MANIFEST = "manifest.json"
RESTORE = "restore the file from a copy, or remove the dataset version and run `howdah etl`"
"""Remedy for a file of a version that is damaged."""
ID_INDEX = ".ids"
"""Ends the name of the index of a shard's row ids (data/id_index.py)."""
IdsDtype = Literal["uint8", "uint16", "uint32", "int64_list"]
Compression = Literal["none", "gzip"]
_HEAD_BYTES = 4_096
_HEAD = re.compile(
    rb'\s*\{\s*"schema_version":\s*\d+,\s*"dataset_hash":\s*"([^"\\]*)",'
    rb'\s*"created":\s*"([^"\\]+)"(?:,\s*"parent":\s*"([^"\\]*)")?'
)
"""The beginning of a manifest, in the order in which `commit` writes the fields: hash, creation
time and parent."""
_THREADS = 16
"""Threads that ask storage when versions were made: each answer is a round trip."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TargetEntry(_Frozen):
    """Sums over the targets of a shard's rows (data.task regression)."""

    least: float
    most: float
    total: float
    squares: float
    """Sum of the squares."""


class _Sparse(_Frozen):
    """Leaves out keys of appended versions at their default: other manifests do not have them."""

    @model_serializer(mode="wrap")
    def _without_defaults(self, dump: Callable[[Any], dict]) -> dict:
        empty = (None, [])
        return {k: v for k, v in dump(self).items() if k not in _APPENDED or v not in empty}


_APPENDED = ("part", "version", "parent", "parts", "ledger")


def _counts(value: Any, plain: Callable[[Any], dict[str, int]]) -> Mapping[str, int]:
    if isinstance(value, PackedCounts):
        return value
    if isinstance(value, str):
        return PackedCounts.parse(value)
    counts = plain(value)
    return counts if len(counts) <= MOST_PLAIN else PackedCounts(counts)


ClassCounts = Annotated[
    dict[str, int],
    WrapValidator(_counts),
    PlainSerializer(lambda of: of.text() if isinstance(of, PackedCounts) else dict(of)),
]
"""{label number as text: rows}; of many labels a PackedCounts, and one text in the manifest."""


class ShardEntry(_Sparse):
    """One shard and its index, as committed."""

    name: str
    """File name in the version directory."""
    index_name: str
    """File name of its index."""
    rows: int
    bytes: int
    crc32c: int
    """CRC-32C of the whole file."""
    index_crc32c: int
    tokens: int
    """Tokens of all rows, without padding."""
    class_counts: ClassCounts
    """{label number as text: rows that have it}; empty for regression."""
    target: TargetEntry | None = None
    """Sums of the targets; null unless data.task is regression."""
    length_histogram: dict[str, int]
    """{upper bound of a bin of 8 tokens as text: rows}."""
    part: str | None = None
    """The part whose rows it holds, in an appended dataset; null: of all parts."""
    version: str | None = None
    """The directory beside this version that it lies in (v=<hash>); null: this version's own."""

    @property
    def files(self) -> tuple[str, ...]:
        """Names of all its files: the shard, its index, and the index of its rows' ids."""
        return self.name, self.index_name, self.name + ID_INDEX


class PartEntry(_Frozen):
    """Rows that were appended in one run: a day."""

    name: str
    identity: str
    """Hash of the source's state and of what it was read with: of an equal one nothing is read."""
    source: dict[str, Any] | None = None
    """{path}, {kind, table, partitions} or {kind, query, server}; null: it was not written down."""
    version: str
    """The version that its rows were read for."""
    read: int
    rows: dict[str, int]
    """{split: rows kept}"""
    drops: dict[str, int]
    """{reason: rows}"""


class LedgerFile(_Sparse):
    """A Parquet file about kept rows (etl/history/ledger.py)."""

    kind: Literal["rows", "bands"]
    bucket: int
    name: str
    """Relative to its version's directory."""
    bytes: int
    rows: int
    part: str | None = None
    version: str | None = None
    """The directory beside this version that it lies in; null: this version's own."""


class LedgerEntry(_Frozen):
    """What rows that are appended later are compared with."""

    buckets: int
    config: dict[str, Any]
    """What all parts must agree on: keys of `data` that were set, tokenizer, format of the ETL."""
    files: list[LedgerFile]


class TokenizerEntry(_Frozen):
    """The encoder that made the ids: a tokenizer, or an image processor."""

    hash: str
    """Encoder.hash, ImageEncoder.hash"""
    vocab_size: int
    pad_id: int
    source: str
    """The base model it was taken from."""


class ImageEntry(_Frozen):
    """The shape of every image of a dataset: rows of pixels, each with its channels."""

    height: int
    width: int
    channels: int

    @property
    def values(self) -> int:
        """Bytes of an image."""
        return self.height * self.width * self.channels


class RecordEntry(_Frozen):
    """The layout of a record (record.RecordLayout)."""

    ids_dtype: IdsDtype
    columns: dict[str, str]
    """{input_ids|length|label|id: feature name}."""
    compression: Compression = "none"
    image: ImageEntry | None = None
    """Rows are images of this shape, their pixels in place of token ids; null: texts."""


class DatasetManifest(_Sparse):
    """`manifest.json` of a dataset version."""

    schema_version: int = SCHEMA_VERSION
    dataset_hash: str
    """The hash in v=<hash>: of sources, the data config, the tokenizer and the ETL's format."""
    created: str
    """ISO 8601, UTC; later than that of each version that was there (`created_now`)."""
    parent: str | None = None
    """The hash of the version that this one appends to, or is made from."""
    etl_version: str
    task: Task = "single_label"
    """What is predicted of a row (data.task)."""
    pairs: bool = False
    """Rows are pairs of texts: [CLS] a [SEP] b [SEP]. A text that spells a special token does not
    become it, so the first [SEP] is where b begins: segments follow from the ids."""
    labels: list[str]
    """Names of the model's outputs by number: the labels; of regression the target's column."""
    max_length: int
    """Tokens of the longest row that may occur; of an image dataset, of every row."""
    tokenizer: TokenizerEntry
    record: RecordEntry
    splits: dict[str, list[ShardEntry]]
    """{train|validation|test: shards in order}."""
    source: dict[str, Any]
    """Files (path, size, modified) or table, query, snapshot; the column mapping."""
    seed: int
    """Seed of the global shuffle."""
    split_rule: dict[str, Any]
    cleaning: dict[str, bool]
    """data.clean as it was applied; serving must apply the same."""
    quality: dict[str, Any] = {}
    """Counts: read, kept, drops by reason, clusters, capped buckets, ...; of the newest part."""
    parts: list[PartEntry] = []
    """Parts in the order in which they were first appended."""
    ledger: LedgerEntry | None = None
    """null: nothing can be appended."""

    @property
    def kind(self) -> InputKind:
        """What the rows are (data.kind)."""
        return "text" if self.record.image is None else "image"

    @property
    def fixed_length(self) -> int | None:
        """Tokens of every row, where all have as many: nothing is padded. None: they differ."""
        return None if self.record.image is None else self.max_length

    def rows(self, split: str) -> int:
        """Rows of a split (0 for one that is not there)."""
        return sum(shard.rows for shard in self.splits.get(split, []))


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A committed dataset version."""

    path: str
    """Its v=<hash> directory."""
    manifest: DatasetManifest
    manifest_hash: str
    """SHA-256 of manifest.json's bytes, 16 hex digits."""
    choice: str | None = None
    """Hash of which training shards are read, where not all are (models/replay.py)."""

    @property
    def identity(self) -> str:
        """What plans and checkpoints depend on: the manifest, and the choice of its shards."""
        return self.choice or self.manifest_hash

    def directory(self, entry: ShardEntry | LedgerFile) -> str:
        """The version's directory that a file lies in: this one, or that of a version before."""
        if entry.version is None:
            return self.path
        return storage.join(storage.parent(self.path), entry.version)

    def shard_path(self, shard: ShardEntry) -> str:
        """Path of a shard's file."""
        return storage.join(self.directory(shard), shard.name)

    def index_path(self, shard: ShardEntry) -> str:
        """Path of its index."""
        return storage.join(self.directory(shard), shard.index_name)

    def ledger_path(self, file: LedgerFile) -> str:
        """Path of a file of the ledger."""
        return storage.join(self.directory(file), file.name)


def content_hash(value: Any) -> str:
    """SHA-256 (16 hex digits) of a JSON value in canonical form.

    >>> content_hash({"b": 1, "a": 2}) == content_hash({"a": 2, "b": 1})
    True
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return bytes_hash(text.encode("utf-8", "surrogatepass"))  # names of files may be any bytes


def bytes_hash(data: bytes) -> str:
    """SHA-256 of bytes, 16 hex digits."""
    return hashlib.sha256(data).hexdigest()[:16]


def version_name(hash_: str) -> str:
    """Name of a version's directory below the dataset's root."""
    return f"v={hash_}"


def version_hash(path: Any) -> str | None:
    """The hash in a version's path or name, as run.json names it; None: it is not one.

    >>> version_hash("hdfs:///data/news/v=0badcafe")
    '0badcafe'
    """
    name = storage.name(path.rstrip("/")) if isinstance(path, str) else ""
    return name.removeprefix("v=") if name.startswith("v=") else None


_MOST_NAMED = 100


def described(manifest: DatasetManifest) -> dict[str, Any]:
    """The origin of a version's rows, short enough for run.json: kind and name of the source,
    which partitions, snapshot or watermark of it; the parts of an appended version."""
    source = manifest.source
    keys = ("kind", "name", "table", "snapshot", "id", "watermark", "server", "query")
    description = {key: source[key] for key in keys if source.get(key) is not None}
    partitions = source.get("partitions")
    if isinstance(partitions, list):
        # a Hive table's: each with its files or, from the metastore, its own state
        names = [one[0] if isinstance(one, list | tuple) and one else one for one in partitions]
        description["partitions"] = [str(name) for name in names[:_MOST_NAMED]]
        description["partition_count"] = len(names)
    files = source.get("files")
    if isinstance(files, list):
        description["files"] = len(files)
    if manifest.parts:
        description["parts"] = [part.name for part in manifest.parts[-_MOST_NAMED:]]
        description["part_count"] = len(manifest.parts)
    return description


def commit(path: str, manifest: DatasetManifest) -> None:
    """Create `path`/manifest.json exclusively; the dataset exists from then on.

    Raises:
        AlreadyExists: another run has committed this version; its manifest stands.
    """
    shards = [shard for split in manifest.splits.values() for shard in split]
    if any(isinstance(shard.class_counts, PackedCounts) for shard in shards):
        manifest = manifest.model_copy(update={"schema_version": PACKED_SCHEMA_VERSION})
    data = json.dumps(manifest.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"
    # Half a character, as of a file's name in another encoding than UTF-8, becomes JSON's escape.
    storage.create_exclusive(storage.join(path, MANIFEST), data.encode("utf-8", "backslashreplace"))


def load_dataset(path: str) -> Dataset:
    """The dataset at `path`: a v=<hash> directory, or the dataset's root (newest version).

    Raises:
        DataError: no manifest (an unfinished ETL, or no dataset), a broken or unknown one.
    """
    if storage.exists(storage.join(path, MANIFEST)):
        return _load_version(path)
    try:
        children = storage.list_dir(path)
    except NotFound:
        raise DataError(
            "there is no dataset",
            where=storage.local_path(path) if storage.is_local(path) else path,
            remedy="run `howdah etl`, or correct data.dataset (a relative path begins in the"
            " working directory)",
        ) from None
    versions = _versions(children)
    if not versions:
        raise DataError(
            "the directory holds no dataset: it has no manifest",
            where=path,
            expected=f"{MANIFEST}, or v=<hash>/{MANIFEST}",
            got=", ".join(child.name for child in children[:5]) or "an empty directory",
            remedy="run `howdah etl`; it removes the files of an interrupted one",
        )
    return _load_version(_latest(versions).path)


def newest(root: str) -> Dataset | None:
    """The newest version below a dataset's root, if there is any: of a version and one that was
    made from it always the latter, whatever their clocks said."""
    versions = _versions_below(root)
    return _load_version(_latest(versions).path) if versions else None


def created_now(root: str) -> str:
    """When a version below a dataset's root is made that is made now: at least a microsecond after
    each one that is there, also where this machine's clock is behind that of another one."""
    versions = _versions_below(root)
    now = datetime.now(UTC)
    if versions:
        last = datetime.fromisoformat(max(version.created for version in versions))
        last = last if last.tzinfo else last.replace(tzinfo=UTC)
        now = max(now, last + timedelta(microseconds=1))
    return now.isoformat(timespec="microseconds")


def version_before(root: str, manifest: DatasetManifest) -> Dataset | None:
    """The newest version below a dataset's root that was made before this one, if there is any."""
    older = [version for version in _versions_below(root) if version.created < manifest.created]
    return _load_version(max(older).path) if older else None


class _Version(NamedTuple):
    """What is read of each version."""

    created: str
    path: str
    hash: str
    parent: str | None


def _latest(versions: list[_Version]) -> _Version:
    """The one that was made last, or the last one that was made from it."""
    latest = max(versions)
    left = {version.path: version for version in versions}
    while children := [version for version in left.values() if version.parent == latest.hash]:
        latest = max(children)
        del left[latest.path]
    return latest


def _versions_below(root: str) -> list[_Version]:
    """Each committed version below a dataset's root, which need not exist."""
    try:
        return _versions(storage.list_dir(root))
    except NotFound:
        return []


def _versions(children: Iterable[storage.Entry]) -> list[_Version]:
    """Each committed version.

    A year of days is 365 manifests, each with all shards of those before it: of each only the
    first bytes are read.
    """
    names = [one.path for one in children if one.is_dir and version_hash(one.name) is not None]
    with ThreadPoolExecutor(min(_THREADS, len(names) or 1), "howdah-versions") as pool:
        return [version for version in pool.map(_head, names) if version is not None]


def _head(path: str) -> _Version | None:
    """The beginning of a version's manifest; None: there is no manifest.

    Raises:
        DataError: the manifest cannot be parsed.
    """
    try:
        with storage.open_read(storage.join(path, MANIFEST)) as file:
            head = _HEAD.match(file.read(_HEAD_BYTES))
    except NotFound:
        return None
    if head is not None:
        hash_, created, parent = (group and group.decode() for group in head.groups())
        return _Version(created, path, hash_, parent)
    manifest = _load_version(path).manifest  # written by another program, or broken
    return _Version(manifest.created, path, manifest.dataset_hash, manifest.parent)


def _load_version(path: str) -> Dataset:
    where = storage.join(path, MANIFEST)
    raw = storage.read_bytes(where)
    try:
        value = json.loads(raw)
    except ValueError as error:
        raise DataError(
            "the manifest is not JSON", where=where, got=str(error), remedy=RESTORE
        ) from None
    version = value.get("schema_version") if isinstance(value, dict) else None
    if version not in _VERSIONS:
        raise DataError(
            "the manifest has an unsupported version",
            where=where,
            expected=f"schema_version {', '.join(map(str, _VERSIONS))}",
            got=str(version),
            remedy="run `howdah etl` with this version of Howdah",
        )
    try:
        manifest = DatasetManifest.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        raise DataError(
            "the manifest is malformed",
            where=f"{where}: {'.'.join(str(part) for part in first['loc'])}",
            got=first["msg"],
            remedy=RESTORE,
        ) from None
    return Dataset(path=path, manifest=manifest, manifest_hash=bytes_hash(raw))
