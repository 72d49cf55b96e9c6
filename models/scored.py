"""What `howdah score` has written down beside a model.

That is `<model>/scored/<table>/<partition>/done.json`, one for each partition that was scored: the
marker of serving/scoring/marker.py, which writes it. Lineage and `howdah forget` read it here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from howdah import storage
from howdah.errors import NotFound

DIRECTORY = "scored"
MARKER = "done.json"


FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Files:
    """The state of a partition's files."""

    location: str | None
    """The partition's directory, as the catalogue has it."""
    files: int
    bytes: int
    newest: float | None
    """Latest modification, seconds since 1970; None: there is no file."""
    digest: str
    """Hash of all paths, sizes and times."""


@dataclass(frozen=True, kw_only=True)
class Marker:
    """A finished partition; done.json holds this as JSON."""

    model: dict[str, Any]
    source_table: str
    source: Files
    options: dict[str, Any]
    output_table: str
    output: Files
    partition: str
    """column=value/... of the source."""
    rows: int
    errors: int
    labels: dict[str, int]
    """Rows by predicted label; of a regression none."""
    reasons: list[dict[str, Any]]
    """{error, rows, example}: the errors, the most frequent first, with the id of a row."""
    profile: str | None
    """Name of the profile beside the marker; None: there is none."""
    framework: str
    scored_at: str
    """ISO 8601, UTC; the same in the rows."""
    seconds: float
    application: str | None = None
    by: str | None = None
    """user@host"""
    format_version: int = field(default=FORMAT_VERSION)


def read(directory: str) -> Marker | None:
    """The marker in a directory; None: there is none, or none of this format."""
    try:
        marker = storage.read_json(storage.join(directory, MARKER))
    except NotFound:
        return None
    if not isinstance(marker, dict) or marker.get("format_version") != FORMAT_VERSION:
        return None
    try:
        sides = {name: Files(**marker[name]) for name in ("source", "output")}
        return Marker(**{**marker, **sides})
    except (TypeError, KeyError):
        return None


def markers(root: str) -> Iterator[dict[str, Any]]:
    """{table, partition, path, version, run_id, source, rows} of each scored partition.

    Of a marker that cannot be read, which an older or newer version of Howdah may have written, the
    table and the partition are those of its directory, and everything else is None.

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
        yield {
            "table": marker.output_table, "partition": marker.partition, "path": where,
            "version": marker.model.get("version"), "run_id": marker.model.get("run_id"),
            "source": marker.source_table, "rows": marker.rows,
        }  # fmt: skip


def tables(root: str, version: int) -> list[str]:
    """Tables with a partition that this version of the model has scored, or may have scored: those
    whose marker cannot be read are among them."""
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
