"""The version that a part is appended to, and whether the part may be appended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from howdah import storage
from howdah.config.data import DataSection
from howdah.data.manifest import (
    APPENDED_SCHEMA_VERSION,
    Dataset,
    DatasetManifest,
    LedgerEntry,
    LedgerFile,
    PartEntry,
    ShardEntry,
    content_hash,
    newest,
    version_name,
)
from howdah.errors import ConfigError, DataError
from howdah.etl.history import ledger, place
from howdah.etl.sources.source import Source
from howdah.etl.workspace.credentials import TaskTokens

_BOUNDS = ("max_reject_fraction", "max_leakage")
"""Keys of data.quality that do not decide which rows are kept."""

BUCKETS = 16
"""Buckets of a new ledger, each compared with a part by one task: more tasks than the cores of most
clusters' executors would only start more often. A ledger keeps its number."""


@dataclass(frozen=True, kw_only=True)
class Past:
    """What the new part is appended to.

    Attributes:
        parent: the newest version; None: this is the first.
        part: the new part's name.
        identity: hash of its source's state and what it is read with.
        source: what it is read from (etl/history/place.py).
        config: what all parts agree on.
        buckets: number of buckets of the ledger.
        secrets: tokens for tasks that read and write the ledger.
    """

    parent: Dataset | None
    part: str
    identity: str
    source: dict[str, Any]
    config: dict[str, Any]
    buckets: int
    secrets: TaskTokens | None = None

    @property
    def replaced(self) -> PartEntry | None:
        """The part of this name in the parent, whose source may have changed since."""
        parts = [] if self.parent is None else self.parent.manifest.parts
        return next((part for part in parts if part.name == self.part), None)

    @property
    def unchanged(self) -> bool:
        """The parent has this very part."""
        return self.replaced is not None and self.replaced.identity == self.identity

    @property
    def hashed(self) -> dict:
        """What the dataset's hash covers of the past."""
        parent = None if self.parent is None else self.parent.manifest.dataset_hash
        return {"parent": parent, "part": self.part, "buckets": self.buckets}

    @property
    def labels(self) -> list[str]:
        """The parent's, which keep their numbers."""
        return [] if self.parent is None else self.parent.manifest.labels

    def paths(self, kind: str) -> ledger.Paths:
        """The parent's ledger files of one kind."""
        by_bucket: ledger.Paths = {}
        if self.parent is not None and self.parent.manifest.ledger is not None:
            for file in self.parent.manifest.ledger.files:
                if file.kind == kind:
                    path = self.parent.ledger_path(file)
                    by_bucket.setdefault(file.bucket, []).append((path, file.part))
        return by_bucket

    def paths_of_rows(self, *, same_part: bool) -> list[str]:
        """Files of kind rows of the part that is replaced, or of all others."""
        return [
            path
            for files in self.paths(ledger.ROWS).values()
            for path, part in files
            if (part == self.part) == same_part
        ]

    def appended(
        self, manifest: DatasetManifest, files: list[LedgerFile], rows: dict[str, int]
    ) -> DatasetManifest:
        """The manifest of the whole version, from that of the new part.

        Args:
            manifest: with the new part's shards alone.
            files: its ledger.
            rows: {split: rows} of the part.
        """
        quality = manifest.quality
        part = PartEntry(
            name=self.part, identity=self.identity, source=self.source, rows=rows,
            version=version_name(manifest.dataset_hash), read=quality["read"],
            drops=quality["drops"],
        )  # fmt: skip
        splits = {
            split: [shard.model_copy(update={"part": self.part}) for shard in shards]
            for split, shards in manifest.splits.items()
        }
        parts, parent = [part], None
        if self.parent is not None:
            old, parent = self.parent.manifest, self.parent.manifest.dataset_hash
            splits = {
                split: [*self._stay(old.splits.get(split, [])), *splits.get(split, [])]
                for split in dict.fromkeys((*old.splits, *splits))
            }
            files = [*self._stay(old.ledger.files), *files]
            parts = [part if p.name == part.name else p for p in old.parts]
            parts += [] if part in parts else [part]
        return manifest.model_copy(
            update={
                "schema_version": APPENDED_SCHEMA_VERSION,
                "splits": {split: shards for split, shards in splits.items() if shards},
                "parent": parent,
                "parts": parts,
                "ledger": LedgerEntry(buckets=self.buckets, config=self.config, files=files),
            }
        )

    def staying(self, split: str) -> list[ShardEntry]:
        """The parent's shards of a split that the new version has too."""
        if self.parent is None:
            return []
        return self._stay(self.parent.manifest.splits.get(split, []))

    def _stay(self, entries: list) -> list:
        """The parent's entries, but those of a part that is replaced, as seen from a child."""
        parent_name = storage.name(self.parent.path)
        return [
            entry.model_copy(update={"version": entry.version or parent_name})
            for entry in entries
            if entry.part != self.part
        ]


def find(data: DataSection, source: Source, *, etl_format: int, tokenizer: str) -> Past | None:
    """What `data.append` appends to; None where it is not enabled.

    Raises:
        ConfigError: the newest version was made otherwise, or without a ledger.
        DataError: the part was merged with others.
    """
    options = data.append
    if not options.enabled:
        return None
    parent = newest(data.dataset)
    config = _agreed(data, etl_format, tokenizer)
    where = place.of_source(source, data)
    read = {"kind": source.kind, "source": source.identity, "read": place.settings(data)}
    past = Past(
        parent=parent,
        part=options.part or place.display_name(source, data),
        identity=content_hash(read),
        source=where,
        config=config,
        buckets=BUCKETS,
    )
    if parent is None:
        return past
    old = parent.manifest.ledger
    if old is None:
        raise ConfigError(
            "nothing can be appended to a dataset without a ledger",
            where=f"data.append: {parent.path}",
            expected="a first version that was made with data.append.enabled",
            remedy="give another data.dataset: the first run makes its first version",
        )
    agreed = old.config
    if agreed != config:
        keys = sorted(k for k in {*agreed, *config} if agreed.get(k) != config.get(k))
        raise ConfigError(
            "a part must have the settings of the earlier parts",
            where=", ".join(
                f"data.{key}" if key in type(data).model_fields else key for key in keys
            ),
            expected=", ".join(f"{key}: {agreed.get(key, 'the default')}" for key in keys),
            got=", ".join(f"{key}: {config.get(key, 'the default')}" for key in keys),
            remedy="begin another data.dataset: this version of Howdah makes other rows of the same"
            f" source; {parent.path} stays as it is, and can be trained on"
            if "etl_format" in keys
            else f"set them as {parent.path} was made, or begin another data.dataset",
        )
    _refuse_other_rows(data, parent)
    past = replace(past, part=_name(past, options.part is not None))
    if past.replaced is not None and not past.unchanged and _merged(parent, past.part):
        raise DataError(
            "a part that was merged with others cannot be replaced",
            where=f"data.append.part: {past.part}",
            got=f"{parent.path} was compacted after this part",
            remedy="append it under another data.append.part: rows that are there already are left"
            " out (known_id, or duplicates), and do not count for data.quality.max_reject_fraction",
        )
    return replace(past, buckets=old.buckets)


def say(progress: Callable[[str], None], past: Past) -> None:
    """Report which part is appended to which version."""
    if past.parent is None:
        progress(f"part {past.part} is the first; its rows begin the ledger")
        return
    how = "replaces its older state in" if past.replaced is not None else "is appended to"
    progress(f"part {past.part} {how} {past.parent.path} ({len(past.parent.manifest.parts)} parts)")


def _agreed(data: DataSection, etl_format: int, tokenizer: str) -> dict[str, Any]:
    """Keys that decide what a row becomes, where they are not at their default."""
    kept = {"labels", "max_length", "clean", "quality", "dedup", "split", "compression"}
    dumped = data.model_dump(mode="json", include=kept, exclude_defaults=True)
    frozen = {"append.frozen": sorted(data.append.frozen)} if data.append.frozen else {}
    # What bounds or measures a part decides no row's fate: each part has its own.
    quality = {k: v for k, v in dumped.pop("quality", {}).items() if k not in _BOUNDS}
    dumped |= {"quality": quality} if quality else {}
    return {"etl_format": etl_format, "tokenizer": tokenizer, **dumped, **frozen}


def _merged(parent: Dataset, name: str) -> bool:
    """Whether the part's rows share ledger files with other parts."""
    files = parent.manifest.ledger.files
    return not any(file.part == name for file in files) and any(file.part is None for file in files)


def _refuse_other_rows(data: DataSection, parent: Dataset) -> None:
    """Fail where the part's rows would be of another kind than those of the parts before.

    Raises:
        ConfigError: texts among pairs of texts, or the labels of another task.
    """
    old = parent.manifest
    row_kinds = {False: "rows of one text (no text_pair)", True: "pairs of texts (text_pair)"}
    pairs = data.columns.text_pair is not None
    for key, before, now in (
        ("task", old.task, data.task),
        ("columns.text_pair", row_kinds[old.pairs], row_kinds[pairs]),
    ):
        if before != now:
            raise ConfigError(
                "a part must have the same kind of rows as the parts before it",
                where=f"data.{key}",
                expected=f"{before}, as in {parent.path}",
                got=now,
                remedy=f"set data.{key} as the parts before have it, or begin another data.dataset",
            )


def _name(past: Past, by_user: bool) -> str:
    """The part's name: by default that of the part that was read from the same source, or one that
    no part has.

    Args:
        by_user: data.append.part gives it.
    Raises:
        ConfigError: a part of the given name was read from another source.
    """
    if not by_user:
        same = [p.name for p in past.parent.manifest.parts if p.source == past.source]
        if same and past.part not in same:
            return same[-1]
    other = past.replaced
    unique_name = f"{past.part}~{content_hash(past.source)[:8]}"
    if other is None or other.source == past.source:
        return past.part
    if other.source is not None and not by_user:
        return unique_name
    raise ConfigError(
        "another source has a part of this name",
        where=f"data.append.part: {past.part} in {past.parent.path}",
        expected=f"a name of its own for {place.shown(past.source)}",
        got=f"the part was read from {place.shown(other.source)}",
        remedy=f"give another name, such as data.append.part: {unique_name}; the rows of both parts"
        " are kept, and those that are there already are left out (known_id, or duplicates)",
    )
