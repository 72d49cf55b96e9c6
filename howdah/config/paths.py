"""The paths in a configuration, by its types: what a job's containers must be able to open."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from howdah.config.model import Config
from howdah.config.types import UsedBy, mark_of

__all__ = ["of_ranks", "paths_of"]

_NO_CHECKPOINTS = ("auto", "never")


def of_ranks(config: Config) -> dict[str, str]:
    """{key: path} of what the ranks of a run read and write. A model may be a hub's name."""
    return paths_of(config, "ranks")


def paths_of(config: Config, used: UsedBy) -> dict[str, str]:
    """{key: path} of the paths that are set and that these processes open."""
    return {key: path for key, path in _paths(config, "", used) if path not in _NO_CHECKPOINTS}


def _paths(section: BaseModel, prefix: str, used: UsedBy) -> Iterator[tuple[str, str]]:
    for name, field in type(section).model_fields.items():
        value, key = getattr(section, name), prefix + name
        if isinstance(value, BaseModel):
            yield from _paths(value, f"{key}.", used)
            continue
        mark = mark_of(field)
        if mark is not None and mark.used == used:
            values = [value] if isinstance(value, str) else value or ()
            yield from ((key, path) for path in values)
