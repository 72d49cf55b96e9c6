"""The file that only a job's containers receive: their secret, and the values of `job.secret_env`.

The values come from the submitter's environment and reach that of the training processes by this
file, which the cluster must give to the job's user alone (YARN: mode 0500 in a directory 0700).
They are in no argument list, no launch script, no page of the cluster, and not in the run
directory. Later attempts of the application and later workers get the same file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from howdah.config.model import Config
from howdah.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Secrets:
    """What the file holds; never to be printed."""

    secret: str = field(repr=False)
    """Of the submission (yarn/address.py)."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables of the training processes."""

    def text(self) -> str:
        """The file."""
        return json.dumps({"secret": self.secret, "env": dict(self.env)})


def parse(text: str) -> Secrets:
    """The file's contents.

    Raises:
        ValueError, KeyError: it is malformed.
    """
    payload = json.loads(text)
    if not isinstance(payload, dict):
        raise ValueError("no object")
    return Secrets(secret=payload["secret"], env=dict(payload["env"]))


def values(config: Config, environ: Mapping[str, str]) -> dict[str, str]:
    """The values of `job.secret_env`.

    Args:
        environ: the submitter's.
    Raises:
        ConfigError: with the names of all that are not set.
    """
    names = config.job.secret_env
    missing = [name for name in names if name not in environ]
    if missing:
        raise ConfigError(
            "a variable of job.secret_env is not set where the job is submitted",
            where="job.secret_env",
            expected=f"{', '.join(missing)} in the environment",
            got="not set",
            remedy="export it before `howdah submit`; from Airflow, put it into the environment of"
            " the howdah Connection",
        )
    return {name: environ[name] for name in names}
