"""Reads a rank's log from the run directory, on whichever cluster the job runs."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from howdah import storage
from howdah.storage import growing

_NAME = re.compile(r"rank\.(\d+)(?:\.(\d+)-(\d+))?")
"""rank.RANK, and of processes of a later attempt or world rank.RANK.ATTEMPT-WORLD
(training/run/rank_files.py)."""


def path_of(run_directory: str, rank: int) -> str:
    """Where the run directory holds the log of the first process of a rank."""
    return storage.join(run_directory, "logs", f"rank.{rank}")


def follow(
    run_directory: str,
    rank: int,
    is_over: Callable[[], bool],
    out: Callable[[str], None],
    *,
    poll_seconds: float,
) -> bool:
    """Pass the logs of the processes that began as a rank to `out`, line by line, until `is_over`.

    A job that began again, or replaced a worker, has several: the earliest comes first, and each
    is headed by a line with its file's name.

    Args:
        is_over: nothing more will be written; asked before each look, so that the last lines are
            read after it. Always True: what is there now.
        out: gets each line, and at the end what no line feed follows.
        poll_seconds: between two looks.
    Returns:
        False: there is none.
    """
    shown: dict[str, int] = {}
    rest: dict[str, bytes] = {}
    last: str | None = None
    while True:
        over = is_over()
        paths = _logs_of(run_directory, rank)
        for path in paths:
            found = growing.read(path, shown.get(path, 0))
            if found is None:
                continue
            data, shown[path] = found
            *whole, rest[path] = (rest.get(path, b"") + data).split(b"\n")
            if over and rest[path]:
                whole.append(rest[path])
            if whole and path != last:
                if len(paths) > 1:
                    out(f"==> {storage.name(path)} <==")
                last = path
            for line in whole:
                out(line.decode(errors="replace"))
        if over:
            return bool(shown)
        time.sleep(poll_seconds)


def _logs_of(run_directory: str, rank: int) -> list[str]:
    """Paths of the logs of a rank's processes, the earliest first."""
    folder = storage.join(run_directory, "logs")
    found = [match for name in growing.names(folder) if (match := _NAME.fullmatch(name))]
    found = [match for match in found if int(match[1]) == rank]
    found.sort(key=lambda match: (int(match[2] or 1), int(match[3] or 1)))
    return [storage.join(folder, match[0]) for match in found]
