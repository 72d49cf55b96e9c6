"""The marker of a scored partition: the inputs that it was made from, and whether they changed.

`<model directory>/scored/<table>/<partition>/done.json` is written after the partition has been
replaced. It has the digest of the partition's files, so that a marker that a killed or slower run
has left beside another run's partition does not match, and the partition is scored again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import quote

from howdah import storage
from howdah.data.manifest import content_hash
from howdah.models.registry import VersionIdentity
from howdah.models.scored import MARKER, Marker, PartitionState, table_directory


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The inputs that a scored partition depends on."""

    model: Mapping[str, Any]
    """{name, version, run_id, weights_sha256, decision}: see `ModelFiles.identity`."""
    source: PartitionState
    options: Mapping[str, Any]
    """Columns of text and id."""


def files_of(location: str | None, listed: Sequence[Sequence]) -> PartitionState:
    """Return the state of files, from [path, bytes, modified] of each."""
    return PartitionState(
        location=location,
        files=len(listed),
        bytes=sum(size for _, size, _ in listed),
        newest=max((modified for *_, modified in listed), default=None),
        digest=content_hash([location, [list(one) for one in listed]]),
    )


def directory_of(root: str, table: str, partition: Mapping[str, str]) -> str:
    """Return the directory of a partition's marker below a model's directory.

    >>> directory_of("models/m", "Shop.scored", {"ds": "2026-11-01", "path": "a/b"})
    'models/m/scored/shop.scored/ds=2026-11-01/path=a%2Fb'
    """
    below = [f"{column}={quote(value, safe=' ')}" for column, value in partition.items()]
    return storage.join(table_directory(root, table), *below)


def write(directory: str, marker: Marker) -> None:
    """Write the marker, whole or not at all."""
    text = json.dumps(asdict(marker), indent=1, ensure_ascii=False) + "\n"
    storage.write_whole(storage.join(directory, MARKER), text.encode())


def remove(directory: str) -> None:
    """Remove the marker, if there is one."""
    storage.remove(storage.join(directory, MARKER))


def reason(
    marker: Marker | None,
    inputs: Inputs,
    output: PartitionState | None,
    *,
    profile: bool,
    force: bool,
) -> str | None:
    """Return why a partition must be scored; None: it is done, and nothing has changed since.

    Args:
        marker: the partition's marker.
        inputs: its present inputs.
        output: the state of the output's partition; None: the catalogue has none.
        profile: a profile must be made, for which the model has a reference.
        force: score it in any case.
    """
    if force:
        return "--force"
    if marker is None:
        return "not scored yet"
    if marker.model.get("version") != inputs.model.get("version"):
        return f"scored by v={marker.model.get('version')}"
    was, now = VersionIdentity.of(marker.model), VersionIdentity.of(inputs.model)
    if was.without_decision != now.without_decision:
        return "scored by other weights"
    if was != now:
        return "scored with another decision (`howdah model threshold`)"
    if marker.source != inputs.source:
        return "the source has changed"
    if marker.options != dict(inputs.options):
        return "other columns were read"
    if output is None:
        return "the scored partition is gone"
    if marker.output != output:
        return "another process has changed the scored partition"
    if profile and marker.profile is None:
        return "it has no profile"
    return None
