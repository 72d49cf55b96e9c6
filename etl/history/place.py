"""What a part of an appended dataset was read from: what tells one source from another.

Two files of one name in two directories are two sources, and so are one day's partitions of two
tables and two texts of a query. The state of a source (size and time of its files) is not part of
this: a source that has changed is still the same one.
"""

from __future__ import annotations

import posixpath
from typing import Any

from howdah import redact, storage
from howdah.config.data import DataSection
from howdah.config.options.source import LAKES
from howdah.core import paths
from howdah.data.manifest import bytes_hash
from howdah.etl.sources.source import Source, is_table
from howdah.hadoop import conf as hadoop

_READ_WITH = ("columns", "csv", "kind", "task", "tfrecord")
"""Keys of `data` that decide which rows a source has. Others that do are agreed on by all parts."""


def of_source(source: Source, data: DataSection) -> dict[str, Any]:
    """{path}, {kind, table, partitions} or {kind, query}: the same for each spelling of a path."""
    place: dict[str, Any] = {} if source.files else {"kind": source.kind}
    if source.query is not None:
        place["query"] = bytes_hash(source.query.strip().encode())
    elif source.kind in ("hive", "jdbc") or (source.kind in LAKES and is_table(source.name)):
        place["table"] = source.name if source.kind == "jdbc" else _table(source.name)
        if data.partitions:
            place["partitions"] = {
                column.lower(): sorted(values) for column, values in data.partitions.items()
            }
    else:
        place["path"] = _path(source.name)
    if server := (source.identity or {}).get("server"):
        place["server"] = server
    return redact.plain(place, names=False)


def settings(data: DataSection) -> dict[str, Any]:
    """What a source is read with, where it is not at its default: other columns are other rows."""
    return data.model_dump(mode="json", include=set(_READ_WITH), exclude_defaults=True)


def display_name(source: Source, data: DataSection) -> str:
    """The name of a part that is given none: its partitions, else the last name of its source."""
    if data.partitions:
        each = data.partitions.items()
        return ",".join(f"{column}={'+'.join(sorted(values))}" for column, values in each)
    return storage.name(source.name.rstrip("/")) or source.name


def shown(place: dict[str, Any] | None) -> str:
    """A place in a message."""
    if place is None:
        return "a source that an older version of Howdah did not record"
    return " ".join(f"{key} {value}" for key, value in place.items() if key != "kind")


def _table(name: str) -> str:
    """Hive's names have no case; without a database a table is in `default`."""
    name = name.lower().removeprefix("spark_catalog.")
    return name if "." in name else f"default.{name}"


def _path(path: str) -> str:
    """One spelling: absolute, without `.`, `..` and double slashes, the default host in full."""
    if storage.is_local(path):
        # POSIX keeps two slashes at the beginning.
        return "/" + storage.local_path(path).lstrip("/")
    host = paths.authority(path)
    if not host and paths.on_hdfs(path):
        host = hadoop.load().default_authority() or ""
    return f"{paths.scheme(path)}://{host.lower()}{posixpath.normpath(paths.inner(path))}"
