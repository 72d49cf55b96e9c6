"""Attempts of applications at a run, and which of two is the later one.

A cluster that has lost contact with an attempt starts the next one, while the first may still run:
cut off by the network, or stopped and continued later. Attempts of one application are ordered by
their number, applications by their submission time. Each attempt at training writes a fence file
`<run>/attempts/<N>.json` (training/checkpoint/fence.py), and a driver's status names its attempt.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from howdah import storage
from howdah.errors import DataError, NotFound

_FOLDER = "attempts"
_APPLICATION = "HOWDAH_APPLICATION"
_STARTED = "HOWDAH_APPLICATION_STARTED"
_NUMBER = "HOWDAH_APPLICATION_ATTEMPT"


@dataclass(frozen=True)
class Attempt:
    """One attempt of an application on the cluster."""

    application: str
    """Application id."""
    started: float
    """Submission time, seconds since 1970. A later application of the same run directory always has
    a greater one, even if the submitters' clocks differ (jobs/status/claim.py)."""
    number: int
    """1 for the application's first attempt."""

    def follows(self, other: Attempt) -> bool:
        """Whether this attempt began after the other one, which then must not write any more."""
        if self.application == other.application:
            return self.number > other.number
        return self.started > other.started

    def __str__(self) -> str:
        return f"attempt {self.number} of {self.application}"

    def to_dict(self) -> dict[str, Any]:
        """The fields of files and messages."""
        return {
            "application": self.application,
            "application_started": self.started,
            "application_attempt": self.number,
        }

    @classmethod
    def of(cls, values: Any) -> Attempt | None:
        """The attempt that `to_dict` gave; None if there is none, as in a run without a cluster."""
        if not isinstance(values, Mapping):
            return None
        return _attempt(
            values.get("application"),
            values.get("application_started"),
            values.get("application_attempt"),
        )

    def environment(self) -> dict[str, str]:
        """The environment variables for a training process."""
        return {
            _APPLICATION: self.application,
            _STARTED: repr(self.started),
            _NUMBER: str(self.number),
        }

    @classmethod
    def of_environment(cls) -> Attempt | None:
        """This process's attempt, from its environment; None outside of a cluster."""
        try:
            started, number = float(os.environ[_STARTED]), int(os.environ[_NUMBER])
        except (KeyError, ValueError):
            return None
        return _attempt(os.environ.get(_APPLICATION), started, number)


def _attempt(application: Any, started: Any, number: Any) -> Attempt | None:
    valid = isinstance(application, str) and application != ""
    valid = valid and isinstance(number, int) and isinstance(started, int | float)
    if not valid or not math.isfinite(started):
        return None
    return Attempt(application, float(started), number)


# ---------------------------------------------------------------------------------- fences
def fences(run_directory: str) -> list[int]:
    """The numbers of a run directory's fence files, unordered; [] if there are none."""
    try:
        entries = storage.list_dir(storage.join(run_directory, _FOLDER))
    except NotFound:
        return []
    stems = [entry.name.removesuffix(".json") for entry in entries if entry.name.endswith(".json")]
    return [int(stem) for stem in stems if stem.isdecimal()]


def of_fence(run_directory: str, number: int) -> dict[str, Any] | None:
    """The fields of a fence file; {} if it cannot be parsed, None if it does not exist."""
    try:
        body = storage.read_json(storage.join(run_directory, _FOLDER, f"{number}.json"))
    except NotFound:
        return None
    except DataError:
        return {}
    return body if isinstance(body, dict) else {}


def newest_fence(run_directory: str) -> dict[str, Any] | None:
    """The fields of the newest fence file; None if no attempt at training has begun."""
    numbers = fences(run_directory)
    return of_fence(run_directory, max(numbers)) if numbers else None
