"""Finds the run directory of an application's id: one small file each in its user's .howdah.

YARN does not keep it (a tag is too short for a path), and `howdah status APP` has the id alone.
"""

from __future__ import annotations

import json

from howdah import storage
from howdah.config.model import Config
from howdah.errors import ConfigError, NotFound, PermissionDenied, UsageError
from howdah.hadoop.resourcemanager import APPLICATION
from howdah.packaging import cluster_paths
from howdah.storage.shapes import TEXT, Fields

_KEPT = 1000
_ENTRY = Fields({"run_directory": TEXT}, needed=("run_directory",))


def announce(config: Config, application: str) -> str | None:
    """Register a job in its user's home, also if `yarn.staging` is elsewhere.

    Returns:
        A line for the user if there is no such home (commands then need `--config`); else None.
    """
    try:
        register(cluster_paths.home(config, config.yarn), application, config.run.directory)
    except (ConfigError, PermissionDenied) as error:
        return f"howdah status, logs and kill of {application} need --config: {error.what}"
    return None


def register(staging: str, application: str, directory: str) -> None:
    """Record an application's run directory; remove the oldest entries beyond 1,000."""
    entry = json.dumps({"application": application, "run_directory": directory}).encode()
    storage.write_whole(_path(staging, application), entry)
    entries = storage.list_dir(storage.join(staging, "applications"))
    if len(entries) > _KEPT:
        for entry in sorted(entries, key=lambda entry: entry.modified)[: len(entries) - _KEPT]:
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
            "no application's id", expected="application_<number>_<number>", got=application
        )
    return storage.join(staging, "applications", f"{application}.json")
