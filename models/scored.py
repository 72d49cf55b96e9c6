"""Reads the markers that `howdah score` writes beside a model.

serving/scoring/marker.py writes `<model>/scored/<table>/<partition>/done.json` for each partition
that was scored. Lineage and `howdah model forget` read it here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from howdah import storage
from howdah.errors import DataError, NotFound
from howdah.storage.shapes import ANY_OBJECT, COUNT, Fields

DIRECTORY = "scored"
MARKER = "done.json"
FORMAT_VERSION = 1
_OBJECTS = ("model", "source", "options", "output", "labels")
_SHAPE = Fields(
    {"format_version": COUNT, **dict.fromkeys(_OBJECTS, ANY_OBJECT)},
    needed=("format_version", *_OBJECTS),
)


@dataclass(frozen=True, kw_only=True)
class PartitionState:
    """The state of a partition's files."""

    location: str | None
    """The partition's directory in the catalogue."""
    files: int
    bytes: int
    newest: float | None
    """Time of the latest modification, seconds since 1970; None if there is no file."""
    digest: str
    """Hash of all paths, sizes and times."""


@dataclass(frozen=True, kw_only=True)
class Marker:
    """A finished partition; done.json holds this as JSON."""

    model: dict[str, Any]
    source_table: str
    source: PartitionState
    options: dict[str, Any]
    output_table: str
    output: PartitionState
    partition: str
    """The source's partition, column=value/..."""
    rows: int
    errors: int
    labels: dict[str, int]
    """{predicted label: rows}; empty for a regression."""
    reasons: list[dict[str, Any]]
    """[{error, rows, example}], the most frequent error first; the example is a row's id."""
    profile: str | None
    """Name of the profile beside the marker; None if there is none."""
    framework: str
    scored_at: str
    """ISO 8601, UTC; the rows have the same value."""
    seconds: float
    application: str | None = None
    by: str | None = None
    """user@host"""
    format_version: int = field(default=FORMAT_VERSION)


def read(directory: str) -> Marker | None:
    """The marker in a directory; None if there is none of this format, or it is damaged: nothing
    then says what was scored."""
    try:
        marker = storage.read_object(storage.join(directory, MARKER), _SHAPE)
    except (NotFound, DataError):
        return None
    if marker["format_version"] != FORMAT_VERSION:
        return None
    try:
        sides = {name: PartitionState(**marker[name]) for name in ("source", "output")}
        return Marker(**{**marker, **sides})
    except TypeError:
        return None


def table_directory(root: str, table: str) -> str:
    """Directory of the markers of an output table; Hive does not tell apart Scored and scored."""
    return storage.join(root, DIRECTORY, table.lower())


def markers(root: str) -> Iterator[dict[str, Any]]:
    """{table, partition, path, version, run_id, source, rows} of each scored partition.

    If a marker cannot be read (another version of Howdah may have written it), the table and the
    partition are taken from its path, and everything else is None.

    Args:
        root: directory of a published model.
    """
    top = storage.join(root, DIRECTORY)
    for path in sorted(_files(top)):
        where = storage.parent(path)
        words = where[len(top) :].strip("/").split("/", 1)
        marker = read(where)
        if marker is None:
            table, partition = words[0], words[1] if len(words) > 1 else ""
            nothing = dict.fromkeys(("version", "run_id", "source", "rows"))
            yield {"table": table, "partition": partition, "path": where, **nothing}
            continue
        scored = {"table": marker.output_table, "partition": marker.partition, "path": where}
        model = {name: marker.model.get(name) for name in ("version", "run_id")}
        yield {**scored, **model, "source": marker.source_table, "rows": marker.rows}


def tables(root: str, version: int) -> list[str]:
    """Tables with a partition that this version of the model has scored, or may have scored because
    its marker cannot be read."""
    return sorted({str(one["table"]) for one in markers(root) if one["version"] in (version, None)})


def _files(directory: str) -> Iterator[str]:
    try:
        entries = storage.list_dir(directory)
    except NotFound:
        return
    for entry in entries:
        if entry.is_dir:
            yield from _files(entry.path)
        elif entry.name == MARKER:
            yield entry.path
