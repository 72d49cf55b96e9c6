"""How a rank says why it ended: `logs/failure.<rank>.json`, read by `howdah train`.

Launchers report exit codes each in their own way, or not at all; the first failing rank's words
must come last on the user's screen all the same.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from dataclasses import asdict, dataclass

from howdah import storage
from howdah.errors import HowdahError, TrainingError, as_dict, render

__all__ = ["DEFECT_EXIT_CODE", "Failure", "clear", "first", "of", "read_all", "write"]

DEFECT_EXIT_CODE = TrainingError.exit_code
"""Exit code of what is no HowdahError: training had to stop."""


@dataclass(frozen=True)
class Failure:
    """Why a rank ended."""

    rank: int
    exit_code: int
    text: str
    """What a user sees: the rendered error, or a defect's traceback."""
    unix_time: float
    consequence: bool
    """It ended because another rank, or its launcher, did."""
    error: dict | None = None
    """errors.as_dict of a HowdahError; None for a defect."""


def of(rank: int, error: BaseException, *, consequence: bool = False) -> Failure:
    """The failure that an exception means.

    Args:
        rank: the rank that raised it.
        error: a HowdahError, or anything else (a defect).
        consequence: another rank ended first.
    """
    known = isinstance(error, HowdahError)
    return Failure(
        rank=rank,
        exit_code=error.exit_code if known else DEFECT_EXIT_CODE,
        text=render(error) if known else "".join(traceback.format_exception(error)).rstrip(),
        unix_time=time.time(),
        consequence=consequence,
        error=as_dict(error) if known else None,
    )


def write(directory: str, failure: Failure) -> None:
    """Put a failure into `<directory>/logs/`."""
    path = os.path.join(directory, "logs", f"failure.{failure.rank}.json")
    storage.write_whole(path, json.dumps(asdict(failure)).encode())


def read_all(directory: str) -> list[Failure]:
    """The failures in `<directory>/logs/`, causes before consequences, then by time."""
    folder = os.path.join(directory, "logs")
    if not os.path.isdir(folder):
        return []
    found = [
        Failure(**storage.read_json(entry.path))
        for entry in storage.list_dir(folder)
        if entry.name.startswith("failure.") and entry.name.endswith(".json")
    ]
    return sorted(found, key=lambda failure: (failure.consequence, failure.unix_time))


def first(directory: str) -> Failure | None:
    """The failure that began it; None where no rank has written one."""
    return next(iter(read_all(directory)), None)


def clear(directory: str, rank: int | None = None) -> None:
    """Forget the failures of an earlier attempt: of one rank, or of all."""
    for failure in read_all(directory):
        if rank is None or failure.rank == rank:
            storage.remove(os.path.join(directory, "logs", f"failure.{failure.rank}.json"))
