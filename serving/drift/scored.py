"""Finds the profiles of scored partitions, and the model version that each was counted with.

`howdah score` writes them beside its markers:
<model directory>/scored/<table>/<column=value>/.../{done.json, profile.json}.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

from howdah import storage
from howdah.config.options.partition import order_of, parse_spec
from howdah.errors import HowdahError, NotFound, UsageError
from howdah.models.profile import profile as profiles
from howdah.models.profile.profile import PROFILE, Profile
from howdah.models.registry import Published
from howdah.models.scored import MARKER, table_directory

_MOST_COLUMNS = 8


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A scored partition."""

    name: str
    """column=value/..., as in the source."""
    directory: str
    version: int | None
    """Version of the published model that scored it; None: an export."""
    scored_at: str | None
    profile: Profile


def find(root: str, table: str, partition: str) -> Partition:
    """Read a scored partition of a model.

    Args:
        root: the model's directory: of its published versions, else the run's or the export's.
        table: the output table, as `howdah score --output` names it.
        partition: column=value/...
    Raises:
        UsageError: it was not scored, or without a profile; the newest scored ones are named.
    """
    spec = parse_spec(partition, "--partition")
    below = [f"{column}={quote(value, safe=' ')}" for column, value in spec.items()]
    directory = storage.join(table_directory(root, table), *below)
    result = _read(directory, _shown(below))
    if result is not None:
        return result
    newest = [name for name, _ in _partitions(root, table)][-5:]
    scored = storage.exists(storage.join(directory, MARKER))
    raise UsageError(
        "the partition was scored without a profile" if scored else "the partition is not scored",
        where=directory,
        expected="one of " + ", ".join(newest) if newest else "a scored partition",
        got=partition,
        remedy="`howdah score --force` scores it again, once the model has a profile.json"
        " (`howdah drift --make-reference`)"
        if scored
        else "`howdah score` scores it",
    )


def history(root: str, table: str, *, until: str, most: int) -> list[Partition]:
    """List the newest scored partitions up to and including one, in their order.

    A partition that cannot be read is left out, since it must not hide the others.
    """
    last = _order(until)
    newest_first: list[Partition] = []
    for name, directory in reversed(_partitions(root, table)):
        if _order(name) > last:
            continue
        try:
            one = _read(directory, name)
        except HowdahError:
            continue
        if one is not None:
            newest_first.append(one)
        if len(newest_first) == most:
            break
    return newest_first[::-1]


def reference_for(root: str, partition: Partition, current: str) -> Profile | None:
    """Return the profile of the version that scored a partition, or None if there is none.

    Args:
        current: the directory of the user's model, which may have no versions.
    """
    if partition.version is None:
        return profiles.reference_of(current)
    return profiles.reference_of(Published(root).path_of(partition.version))


def _shown(names: Sequence[str]) -> str:
    """Join directory names to a partition's name, in which a value's slash stays escaped."""
    values = (unquote(name).replace("%", "%25").replace("/", "%2F") for name in names)
    return "/".join(values)


def _partitions(root: str, table: str) -> list[tuple[str, str]]:
    """List (name, directory) of each partition with a profile, in numeric order: hour=9 is before
    hour=10."""
    partitions = [
        (_shown(name.split("/")), directory)
        for name, directory in _walk(table_directory(root, table), "", 0)
    ]
    return sorted(partitions, key=lambda each: (_order(each[0]), *each))


def _order(name: str) -> list[tuple[int, int, str]]:
    return [order_of(part.partition("=")[2]) for part in name.split("/")]


def _walk(directory: str, name: str, depth: int) -> Iterator[tuple[str, str]]:
    """Yield (partition, directory) of every directory with a profile."""
    try:
        entries = storage.list_dir(directory)
    except NotFound:
        return
    if any(entry.name == PROFILE for entry in entries):
        yield name, directory
    if depth < _MOST_COLUMNS:
        for entry in entries:
            if entry.is_dir and "=" in entry.name:
                below = f"{name}/{entry.name}" if name else entry.name
                yield from _walk(entry.path, below, depth + 1)


def _read(directory: str, name: str) -> Partition | None:
    try:
        profile = profiles.read(storage.join(directory, PROFILE))
    except NotFound:
        return None
    try:
        marker = storage.read_object(storage.join(directory, MARKER))
    except NotFound:  # killed between the two files: the next `howdah score` replaces both
        return None
    model = marker.get("model")
    version = model.get("version") if isinstance(model, dict) else None
    return Partition(
        name=name,
        directory=directory,
        version=version if isinstance(version, int) else None,
        scored_at=marker.get("scored_at"),
        profile=profile,
    )
