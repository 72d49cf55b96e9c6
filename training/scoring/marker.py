"""The marker of a scored partition: what it was made from, and whether that still holds.

`<model directory>/scored/<table>/<partition>/done.json` is written after the partition has been
replaced. It describes the partition by the digest of its files: a marker that a killed or slower
run has left beside another run's partition does not fit it, and is no reason to skip.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import quote

from howdah import storage
from howdah.data.manifest import content_hash
from howdah.errors import NotFound
from howdah.models.scored import DIRECTORY, MARKER

__all__ = [
    "Files", "Marker", "Wanted", "directory_of", "files_of", "read", "reason",
    "remove", "write",
]  # fmt: skip

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
    """Of all paths, sizes and times."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a scored partition depends on."""

    model: Mapping[str, Any]
    """{name, version, run_id, weights, decision}: see `Scorer.identity`."""
    source: Files
    options: Mapping[str, Any]
    """Columns of text and id."""


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


def files_of(location: str | None, listed: Sequence[Sequence]) -> Files:
    """The state of [path, bytes, modified] of every file."""
    return Files(
        location=location,
        files=len(listed),
        bytes=sum(size for _, size, _ in listed),
        newest=max((modified for *_, modified in listed), default=None),
        digest=content_hash([location, [list(one) for one in listed]]),
    )


def directory_of(root: str, table: str, partition: Mapping[str, str]) -> str:
    """The directory of a partition's marker below a model's directory.

    >>> directory_of("models/m", "shop.scored", {"ds": "2026-11-01", "path": "a/b"})
    'models/m/scored/shop.scored/ds=2026-11-01/path=a%2Fb'
    """
    below = [f"{column}={quote(value, safe=' ')}" for column, value in partition.items()]
    return storage.join(root, DIRECTORY, table, *below)


def read(directory: str) -> Marker | None:
    """The marker in a directory; None: there is none, or none of this format."""
    try:
        found = storage.read_json(storage.join(directory, MARKER))
    except NotFound:
        return None
    if not isinstance(found, dict) or found.get("format_version") != FORMAT_VERSION:
        return None
    try:
        sides = {name: Files(**found[name]) for name in ("source", "output")}
        return Marker(**{**found, **sides})
    except (TypeError, KeyError):
        return None


def write(directory: str, marker: Marker) -> None:
    """Write the marker, whole or not at all."""
    text = json.dumps(asdict(marker), indent=1, ensure_ascii=False) + "\n"
    storage.write_whole(storage.join(directory, MARKER), text.encode())


def remove(directory: str) -> None:
    """Remove the marker, if there is one."""
    storage.remove(storage.join(directory, MARKER))


def reason(
    marker: Marker | None, wanted: Wanted, output: Files | None, *, profile: bool, force: bool
) -> str | None:
    """Why a partition is to be scored; None: it is done, and nothing has changed since.

    Args:
        marker: of the partition.
        output: the state of the output's partition; None: the catalogue has none.
        profile: a profile is wanted, and the model has a reference for it.
        force: score it in any case.
    """
    if force:
        return "--force"
    if marker is None:
        return "not scored yet"
    was, now = marker.model, wanted.model
    if was.get("version") != now.get("version"):
        return f"scored by v={was.get('version')}"
    if (was.get("run_id"), was.get("weights")) != (now.get("run_id"), now.get("weights")):
        return "scored by other weights"
    # A published version never changes, its decision neither; markers of older ones do not name it.
    if now.get("version") is None and was.get("decision") != now.get("decision"):
        return "scored with another decision (`howdah threshold`)"
    if marker.source != wanted.source:
        return "the source has changed"
    if marker.options != dict(wanted.options):
        return "other columns were read"
    if output is None:
        return "the scored partition is gone"
    if marker.output != output:
        return "the scored partition was changed by others"
    if profile and marker.profile is None:
        return "it has no profile"
    return None
