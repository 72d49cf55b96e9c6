"""Where rows come from: what a source is made of (its identity), found without starting Spark.

Reading is in `etl/sources/reading.py`; here is what the dataset's hash and the "unchanged" answer
need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from howdah import storage
from howdah.config.data import DataSection
from howdah.config.options.source import LAKES, TABLE_NAME
from howdah.config.splits import Split
from howdah.data.files import checks, everyday
from howdah.data.files.listing import HIDDEN, ending, files_of
from howdah.data.files.opening import refuse_compression
from howdah.errors import ConfigError, DataError
from howdah.storage import Entry
from howdah.storage.charsets import SURROGATES, spelled

Kind = Literal[
    "csv", "jsonl", "parquet", "orc", "avro", "hive", "jdbc", "iceberg", "delta", "tfrecord",
    "image",
]  # fmt: skip

_ENDINGS: dict[str, Kind] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".orc": "orc",
    ".avro": "avro",
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
}


@dataclass(frozen=True, kw_only=True)
class Source:
    """A source, resolved: its kind, its files, and what identifies its present state."""

    kind: Kind
    name: str
    """data.source as configured."""
    files: list[Entry] = field(default_factory=list)
    root: str | None = None
    """The directory that the files were found below, if the config named one."""
    query: str | None = None
    """SQL that takes the place of a table."""
    identity: dict[str, Any] | None = None
    """JSON; None for a table, whose state only Spark knows."""
    parts: dict[str, Source] = field(default_factory=dict)
    """{split: source of an official set}; etl/sources/given.py fills it."""

    @property
    def size(self) -> int | None:
        """Bytes of its files and of those of its parts; None where that is not known."""
        file_sizes = [entry.size for entry in self.files]
        if not file_sizes:  # a table: [path, bytes, modified] of each file, where Spark has said so
            file_sizes = [size for _, size, _ in (self.identity or {}).get("files", ())] or [None]
        sizes = [*file_sizes, *(part.size for part in self.parts.values())]
        return None if None in sizes else sum(sizes)


def resolve(data: DataSection) -> Source:
    """Find the source that the config names.

    Raises:
        ConfigError: no source, or files whose format is not known.
        DataError: nothing is there, or only empty files, or a file's name is not UTF-8.
    """
    if data.query_file is not None:
        query = storage.read_text(data.query_file).removeprefix("\ufeff")  # as Windows writes it
        return Source(kind=data.format, name=data.query_file, query=query)
    if not data.source:
        raise ConfigError(
            "the configuration names no source",
            where="data.source",
            expected="a file, a directory, a pattern, or a table name",
            remedy="set data.source",
        )
    if data.format in ("hive", "jdbc"):
        if not is_table(data.source):
            raise ConfigError(
                "the source is not a table name",
                where="data.source",
                expected="table, database.table or catalog.database.table",
                got=repr(data.source),
                remedy="give a table name, or another data.format",
            )
        return Source(kind=data.format, name=data.source)
    if data.format in LAKES:
        return Source(kind=data.format, name=data.source)
    root, entries = _files(data.source)
    if root is not None:
        _refuse_within(root, data.dataset)
    kind = _kind_of(data, entries) if entries else None
    for entry in entries:
        if kind not in ("csv", "jsonl") and SURROGATES.search(entry.path):
            raise DataError(
                "a file's name is not UTF-8",
                where=spelled(entry.path),
                remedy="rename it, e.g. convmv -f LATIN1 -t UTF-8: Spark cannot open such a name",
            )
    # An empty image file is a row that is rejected; an empty file of rows has none.
    files = [entry for entry in entries if entry.size > 0 or kind == "image"]
    if not files:
        raise DataError(
            "the source is empty",
            where=storage.absolute(data.source),
            got=f"{len(entries)} file(s) of 0 bytes" if entries else "no file",
            remedy="check data.source; subdirectories are searched too, but files and directories"
            " whose names begin with '_' or '.' are left out",
        )
    return Source(kind=kind, name=data.source, files=files, root=root, identity=identity_of(files))


def with_parts(
    source: Source, data: DataSection, resolve_one: Callable[[DataSection], Source]
) -> Source:
    """A source with those of the official sets as `parts`.

    Raises:
        ConfigError: they are of another kind of file.
    """
    parts = {split: resolve_one(data_of(data, split)) for split in data.split.sources.given}
    if not parts:
        return source
    for split, part in parts.items():
        if part.kind != source.kind:
            raise ConfigError(
                "an official set must have the format of the source",
                where=f"data.split.sources.{split}: {part.name}",
                expected=source.kind,
                got=part.kind,
                remedy="convert one of them; all share data.columns and data.csv",
            )
    identity = source.identity
    if identity is not None:
        identity = {**identity, "splits": {split: part.identity for split, part in parts.items()}}
    return replace(source, identity=identity, parts=parts)


def data_of(data: DataSection, split: Split | None) -> DataSection:
    """The section as it is for the source of an official set; None: for data.source."""
    if split is None:
        return data
    update = {"source": data.split.sources.given[split], "partitions": None, "query_file": None}
    if isinstance(data.as_of, int):  # of data.source's table alone
        update["as_of"] = None
    return data.model_copy(update=update)


def is_table(name: str) -> bool:
    """True for table, database.table and catalog.database.table."""
    return bool(TABLE_NAME.fullmatch(name))


def identity_of(files: list[Entry]) -> dict[str, Any]:
    """The files' state as JSON: path, size in bytes, modified in seconds since 1970."""
    return {"files": [[e.path, e.size, round(e.modified, 6)] for e in files]}


def _files(source: str) -> tuple[str | None, list[Entry]]:
    matches = files_of(source)
    if matches is not None:
        return matches
    if any(mark in source for mark in "*?["):
        raise DataError(
            "no file matches the source's pattern",
            where=storage.absolute(source),
            remedy="check data.source",
        )
    source = storage.absolute(source)
    parent = storage.parent(source)
    near = [e.name for e in storage.list_dir(parent)] if storage.is_dir(parent) else None
    raise DataError(
        "the source does not exist",
        where=source,
        got=f"{parent} holds {', '.join(near[:8]) or 'nothing'}" if near is not None else None,
        remedy="check data.source (for a table set data.format: hive)",
    )


def _refuse_within(root: str, dataset: str) -> None:
    """Refuse a dataset below the source's directory, whose files would be rows of the next run."""
    path, above = (storage.absolute(one).rstrip("/") + "/" for one in (dataset, root))
    if path.startswith(above) and not path.removeprefix(above).startswith(HIDDEN):
        raise ConfigError(
            "the dataset lies in the source's directory, and would be read as a part of it",
            where="data.dataset",
            got=f"{dataset}, in {root}",
            remedy="set data.dataset to another directory, or data.source to a pattern such as"
            f" {root}/*.csv",
        )


def _kind_of(data: DataSection, entries: list[Entry]) -> Kind:
    if data.format != "auto":
        return data.format
    if data.kind == "image":
        parquet = [ending(entry.name) == ".parquet" for entry in entries]
        if any(parquet) and not all(parquet):
            raise ConfigError(
                "the source holds Parquet files and others",
                where=data.source,
                expected="Parquet files with a column of images, or image files <label>/<file>",
                got=", ".join(entry.name for entry in entries[:5]),
                remedy="narrow data.source to one kind, e.g. DIR/*.parquet",
            )
        return "parquet" if any(parquet) else "image"
    return _kind(data.source, entries)


def _kind(source: str, entries: list[Entry]) -> Kind:
    kinds = {_ENDINGS[ending(e.name)] for e in entries if ending(e.name) in _ENDINGS}
    others = [e.name for e in entries if ending(e.name) not in _ENDINGS]
    if len(kinds) == 1 and not others:
        return kinds.pop()
    if (error := everyday.refusal(source, entries)) is not None:
        raise error
    for entry in entries:
        refuse_compression(entry.path)
    raise ConfigError(
        "the source's format does not follow from its file names",
        where=f"data.format of {storage.absolute(source)}",
        expected="files that all end in one of " + ", ".join(_ENDINGS),
        got=", ".join(sorted(kinds) + others[:5]),
        remedy="set data.format, or narrow data.source to a pattern such as DIR/*.csv",
    )


# ------------------------------------------------------------------------------------- columns
COLUMNS = "set data.columns.text, .label and .id to columns of the source"


def wanted(data: DataSection) -> list[tuple[str, str]]:
    """(the key that names it, its name) of each column that is read."""
    columns, split = data.columns, data.split
    texts = {"text": columns.text, "text_pair": columns.text_pair or []}
    if data.kind == "image":
        texts = {"image": [columns.image]}
    named = {f"columns.{key}": names for key, names in texts.items()}
    named["columns.label"] = [columns.label]
    named["columns.id"] = [columns.id] if columns.id is not None else []
    named["split.column"] = [split.column] if split.column is not None else []
    named["split.group"] = split.group
    named["split.time.column"] = [split.time.column] if split.time.column is not None else []
    return [(f"data.{key}: {name}", name) for key, names in named.items() for name in names]


def check_columns(source: Source, data: DataSection) -> Mapping[str, Any]:
    """{mapped column: its pyarrow type} of files that have these columns."""
    texts = (*data.columns.text, *(data.columns.text_pair or ()))
    columns = [
        checks.Wanted(
            name=name,
            where=where,
            text=name in texts,
            lists=data.task == "multi_label" and name == data.columns.label,
        )
        for where, name in wanted(data)
    ]
    files = {entry.path: entry for entry in source.files}
    return checks.check(
        files, source.kind, columns, data.csv, source=source.name, root=source.root, remedy=COLUMNS
    ).types
