"""How a rank says why it ended: `logs/failure.<rank>.json`, read by what has started it.

An exit code does not name the error, and launchers report theirs each in their own way; still, the
first failing rank's error must come last on the user's screen.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from dataclasses import asdict, dataclass

from howdah import redact, storage
from howdah.errors import HowdahError, TrainingError, render

_TEXT_CHARACTERS, _MESSAGE_CHARACTERS = 20_000, 500
"""Of a traceback (its end) and of a message; longer ones are cut."""
DEFECT_EXIT_CODE = TrainingError.exit_code
"""Exit code of an exception that is no HowdahError."""


@dataclass(frozen=True)
class Failure:
    """Why a rank ended."""

    rank: int
    exit_code: int
    text: str
    """What a user sees: the rendered error, or a defect's traceback."""
    unix_time: float
    consequence: bool
    """It ended because another rank, or its launcher, had ended."""
    error: dict | None = None
    """`as_dict` of a HowdahError; None for a defect."""


def of(rank: int, error: BaseException, *, consequence: bool = False) -> Failure:
    """The failure record of an exception.

    Args:
        rank: the rank that raised it.
        error: a HowdahError, or anything else (a defect).
        consequence: another rank ended first.
    """
    known = isinstance(error, HowdahError)
    return Failure(
        rank=rank,
        exit_code=error.exit_code if known else DEFECT_EXIT_CODE,
        text=render(error) if known else _traceback(error),
        unix_time=time.time(),
        consequence=consequence,
        error=error.as_dict() if known else None,
    )


def describe(error: BaseException) -> dict:
    """An exception for the driver of a job (jobs/driver/faults.py): its `as_dict`, or for a defect
    {error, what: its traceback}, without secrets; and besides

        kinds     the names of its class and of that one's bases, the nearest first
        message   its own first line
        causes    the classes of what it was raised from
        errno     of an OSError, its own or the one that it was raised from; where: its file
    """
    if isinstance(error, HowdahError):
        found = error.as_dict()
        message = error.what
    else:
        found = {"error": type(error).__name__, "what": _traceback(error)[-_TEXT_CHARACTERS:]}
        message = str(error).strip()
    kinds = [kind.__name__ for kind in type(error).__mro__[:-1]]
    message = redact.text(message).partition("\n")[0][:_MESSAGE_CHARACTERS]
    found |= {"kinds": kinds, "message": message}
    chain = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    found["causes"] = [type(cause).__name__ for cause in chain[1:]]
    cause = next((one for one in chain if isinstance(one, OSError)), None)
    if cause is not None and cause.errno is not None:
        found["errno"] = cause.errno
        if found.get("where") is None and cause.filename is not None:
            found["where"] = str(cause.filename)
    return found


def _traceback(error: BaseException) -> str:
    """Without its secrets: a library's message may name a URL with its password."""
    return redact.text("".join(traceback.format_exception(error)).rstrip())


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
        Failure(**storage.read_object(entry.path))
        for entry in storage.list_dir(folder)
        if entry.name.startswith("failure.") and entry.name.endswith(".json")
    ]
    return sorted(found, key=lambda failure: (failure.consequence, failure.unix_time))


def first(directory: str) -> Failure | None:
    """The first failure; None where no rank has written one."""
    return next(iter(read_all(directory)), None)


def clear(directory: str, rank: int | None = None) -> None:
    """Remove the failures of an earlier attempt: of one rank, or of all."""
    for failure in read_all(directory):
        if rank is None or failure.rank == rank:
            storage.remove(os.path.join(directory, "logs", f"failure.{failure.rank}.json"))
