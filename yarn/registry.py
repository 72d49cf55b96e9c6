"""Where an application's run directory is: one small file each in its owner's staging directory.

YARN knows nothing of run directories (a tag is too short for a path), and `howdah status APP` is
asked with the application's id alone.
"""

from __future__ import annotations

import json
import re

from howdah import storage
from howdah.errors import NotFound, UsageError

__all__ = ["register", "run_directory"]

_APPLICATION = re.compile(r"application_\d+_\d+")
_KEPT = 1000


def register(staging: str, application: str, directory: str) -> None:
    """Write down where an application's run directory is; the oldest entries go."""
    told = json.dumps({"application": application, "run_directory": directory}).encode()
    storage.write_whole(_path(staging, application), told)
    entries = storage.list_dir(storage.join(staging, "applications"))
    if len(entries) > _KEPT:
        for entry in sorted(entries, key=lambda entry: entry.modified)[: len(entries) - _KEPT]:
            storage.remove(entry.path)


def run_directory(staging: str, application: str) -> str | None:
    """The run directory of an application; None: not written down here."""
    try:
        return storage.read_json(_path(staging, application))["run_directory"]
    except NotFound:
        return None


def _path(staging: str, application: str) -> str:
    if not _APPLICATION.fullmatch(application):
        raise UsageError(
            "no application's id", expected="application_<number>_<number>", got=application
        )
    return storage.join(staging, "applications", f"{application}.json")
