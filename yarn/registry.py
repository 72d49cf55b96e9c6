"""Where an application's run directory is: one small file each in .howdah of its owner's home.

YARN knows nothing of run directories (a tag is too short for a path), and `howdah status APP` is
asked with the application's id alone.
"""

from __future__ import annotations

import json
import re

from howdah import storage
from howdah.config_model import Config
from howdah.errors import ConfigError, NotFound, PermissionDenied, UsageError
from yarn import shipping

__all__ = ["announce", "register", "run_directory"]

_APPLICATION = re.compile(r"application_\d+_\d+")
_KEPT = 1000


def announce(config: Config, application: str) -> str | None:
    """Register a job in its owner's home, also where `yarn.staging` is elsewhere.

    Returns:
        Why that cannot be: a user needs no home, but `--config` beside the id then; else None.
    """
    try:
        register(shipping.home(config), application, config.run.directory)
    except (ConfigError, PermissionDenied) as error:
        return f"howdah status, logs and kill of {application} need --config: {error.what}"
    return None


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
