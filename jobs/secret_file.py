"""The file that only a job's containers receive: their secret, and the values of `job.secret_env`.

This file carries the values from the submitter's environment to the training processes'. The
cluster must give it to the job's user alone (YARN: mode 0500 in a directory 0700). The values never
appear in an argument list, a launch script, a page of the cluster or the run directory. Later
attempts of the application and later workers get the same file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from howdah.config.model import Config
from howdah.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class JobSecrets:
    """The file's contents, which must never be printed."""

    secret: str = field(repr=False)
    """The submission's secret (yarn/address.py)."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables for the training processes."""

    def text(self) -> str:
        return json.dumps({"secret": self.secret, "env": dict(self.env)})


def parse(text: str) -> JobSecrets:
    """The file's contents.

    Raises:
        ValueError, KeyError: it is malformed.
    """
    payload = json.loads(text)
    if not isinstance(payload, dict):
        raise ValueError("not an object")
    return JobSecrets(secret=payload["secret"], env=dict(payload["env"]))


def values(config: Config, environ: Mapping[str, str]) -> dict[str, str]:
    """The values of `job.secret_env`.

    Args:
        environ: the submitter's environment.
    Raises:
        ConfigError: variables are not set; it names all of them.
    """
    names = config.job.secret_env
    missing = [name for name in names if name not in environ]
    if missing:
        raise ConfigError(
            "a variable of job.secret_env is not set where the job is submitted",
            where="job.secret_env",
            expected=f"{', '.join(missing)} in the environment",
            remedy="export it before `howdah submit`; from Airflow, put it into the environment of"
            " the howdah Connection",
        )
    return {name: environ[name] for name in names}


def write_private(directory: str, name: str, text: str) -> str:
    """Write a new file that only its owner can read, and return its path.

    Args:
        name: the file's name; a leading dot is removed.
    """
    path = os.path.join(directory, name.lstrip("."))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    return path
