"""The reason why a rank ended: `logs/failure.<rank>.json`, which the process that started it reads.

Launchers report exit codes in different ways, or not at all. Still, the error of the rank that
failed first must be the last one on the user's screen.
"""

from __future__ import annotations

import errno
import glob
import json
import os
import time
import traceback
from dataclasses import asdict, dataclass

from howdah import redact, storage
from howdah.errors import HowdahError, StorageFull, TrainingError, render

_TEXT_CHARACTERS, _MESSAGE_CHARACTERS = 20_000, 500
"""Maximum lengths of a traceback (its end is kept) and of a message."""


@dataclass(frozen=True)
class Failure:
    """The reason why a rank ended."""

    rank: int
    exit_code: int
    text: str
    """Text for the user: the rendered error, or a defect's traceback."""
    unix_time: float
    consequence: bool
    """True if it ended because another rank, or its launcher, had ended."""
    error: dict | None = None
    """`as_dict` of a HowdahError; None for a defect."""


def of(rank: int, error: BaseException, *, consequence: bool = False) -> Failure:
    """The failure record of an exception.

    Args:
        error: a HowdahError, or any other exception (a defect).
        consequence: another rank ended first.
    """
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        error = StorageFull(
            "there is no space left on a disk of this machine",
            where=error.filename and str(error.filename),
            got=str(error),
            remedy="free space where the run's logs and temporary files are ($TMPDIR); then start"
            " again: the run resumes from its newest checkpoint",
        )
    is_howdah_error = isinstance(error, HowdahError)
    return Failure(
        rank=rank,
        exit_code=(error if is_howdah_error else TrainingError).exit_code,
        text=render(error) if is_howdah_error else _traceback(error),
        unix_time=time.time(),
        consequence=consequence,
        error=error.as_dict() if is_howdah_error else None,
    )


def describe(error: BaseException) -> dict:
    """An exception for the driver of a job (jobs/driver/faults.py): its `as_dict`, or for a defect
    {error, what: its traceback}, without secrets; and in addition

        kinds     the names of its class and of the base classes, the nearest first
        message   the first line of its message
        causes    the classes of the exceptions that it was raised from
        errno     the number of an OSError among these, and as `where` its file
    """
    if isinstance(error, HowdahError):
        described = error.as_dict()
        message = error.what
    else:
        described = {"error": type(error).__name__, "what": _traceback(error)[-_TEXT_CHARACTERS:]}
        message = str(error).strip()
    kinds = [kind.__name__ for kind in type(error).__mro__[:-1]]
    message = redact.text(message).partition("\n")[0][:_MESSAGE_CHARACTERS]
    described |= {"kinds": kinds, "message": message}
    chain = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    described["causes"] = [type(cause).__name__ for cause in chain[1:]]
    cause = next((one for one in chain if isinstance(one, OSError)), None)
    if cause is not None and cause.errno is not None:
        described["errno"] = cause.errno
        if described.get("where") is None and cause.filename is not None:
            described["where"] = str(cause.filename)
    return described


def _traceback(error: BaseException) -> str:
    """The traceback without secrets: a library's message may contain a URL with a password."""
    return redact.text("".join(traceback.format_exception(error)).rstrip())


def write(directory: str, failure: Failure) -> None:
    """Write a failure to `<directory>/logs/`."""
    storage.write_whole(_path(directory, failure.rank), json.dumps(asdict(failure)).encode())


def read_all(directory: str) -> list[Failure]:
    """The failures in `<directory>/logs/`, causes before consequences, then by time."""
    failures = [Failure(**storage.read_object(path)) for path in _paths(directory)]
    return sorted(failures, key=lambda failure: (failure.consequence, failure.unix_time))


def first(directory: str) -> Failure | None:
    """The first failure; None if no rank has written one."""
    return next(iter(read_all(directory)), None)


def clear(directory: str, rank: int | None = None) -> None:
    """Remove the failures of an earlier attempt: those of one rank, or of all.

    They are not read: a file may be damaged, and other ranks remove theirs at the same time.
    """
    for path in _paths(directory) if rank is None else [_path(directory, rank)]:
        storage.remove(path)


def _path(directory: str, rank: int | str) -> str:
    return os.path.join(directory, "logs", f"failure.{rank}.json")


def _paths(directory: str) -> list[str]:
    return glob.glob(_path(glob.escape(directory), "*"))
