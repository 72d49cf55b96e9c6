"""Finds the run directory of an application's id, from a small file in its user's .howdah.

YARN cannot store it, since a tag is too short for a path, and `howdah status APP` only has the id.
"""

from __future__ import annotations

import json

from howdah import storage
from howdah.config.model import Config
from howdah.errors import ConfigError, NotFound, PermissionDenied, UsageError
from howdah.hadoop.resourcemanager import APPLICATION
from howdah.packaging import cluster_paths
from howdah.storage.shapes import TEXT, Fields

_MOST_ENTRIES = 1000
_ENTRY = Fields({"run_directory": TEXT}, needed=("run_directory",))


def announce(config: Config, application: str, directory: str) -> str | None:
    """Register a job in its user's home, even if `yarn.staging` is elsewhere.

    Args:
        directory: the run directory, or a served model's.
    Returns:
        A line for the user if the home does not exist (commands then need `--config`); else None.
    """
    try:
        register(cluster_paths.home(config, config.yarn), application, directory)
    except (ConfigError, PermissionDenied) as error:
        return f"howdah status, logs and kill of {application} need --config: {error.what}"
    return None


def register(staging: str, application: str, directory: str) -> None:
    """Record an application's run directory, and remove the oldest entries beyond the limit."""
    data = json.dumps({"application": application, "run_directory": directory}).encode()
    storage.write_whole(_path(staging, application), data)
    entries = storage.list_dir(storage.join(staging, "applications"))
    for entry in sorted(entries, key=lambda entry: -entry.modified)[_MOST_ENTRIES:]:
        storage.remove(entry.path)


def run_directory(staging: str, application: str) -> str | None:
    """The run directory of an application; None: not recorded here."""
    try:
        return storage.read_object(_path(staging, application), _ENTRY)["run_directory"]
    except NotFound:
        return None


def _path(staging: str, application: str) -> str:
    if not APPLICATION.fullmatch(application):
        raise UsageError(
            f"not an application's id: {application}", expected="application_<number>_<number>"
        )
    return storage.join(staging, "applications", f"{application}.json")
