"""What `howdah score` has written down beside a model.

That is `<model>/scored/<table>/<partition>/done.json`, one for each partition that was scored. Read
alone, and leniently: what a marker says besides is the business of `howdah score`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from howdah import storage
from howdah.errors import NotFound

__all__ = ["DIRECTORY", "MARKER", "markers", "tables"]

DIRECTORY = "scored"
MARKER = "done.json"


def markers(root: str) -> Iterator[dict[str, Any]]:
    """{table, partition, path, version, run_id, source, rows} of each scored partition.

    Args:
        root: directory of a published model.
    """
    top = storage.join(root, DIRECTORY)
    for path in sorted(_files(top)):
        where = storage.parent(path)
        words = where[len(top) :].strip("/").split("/", 1)
        found = storage.read_fields(path)
        yield {
            "table": found.get("output") or words[0],
            "partition": found.get("partition") or (words[1] if len(words) > 1 else ""),
            "path": where,
            **{key: found.get(key) for key in ("version", "run_id", "source", "rows")},
        }


def tables(root: str, version: int) -> list[str]:
    """Tables with a partition that this version of the model has scored."""
    return sorted({str(one["table"]) for one in markers(root) if _of(one["version"], version)})


def _of(said: Any, version: int) -> bool:
    return str(said).removeprefix("v=") == str(version)


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
