"""Reads a rank's log from the run directory, for jobs on any cluster."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from howdah import storage
from howdah.storage import growing

_NAME = re.compile(r"rank\.(\d+)(?:\.(\d+)-(\d+))?")
"""Names of logs: rank.RANK, and in later attempts or worlds rank.RANK.ATTEMPT-WORLD
(training/run/rank_files.py)."""


def path_of(run_directory: str, rank: int) -> str:
    """Path of the log of a rank's first process in the run directory."""
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

    A job that restarted, or replaced a worker, has several logs: the earliest comes first, and a
    line with its file's name precedes each.

    Args:
        is_over: True once nothing more will be written; called before each read, so that the last
            lines are read after it. If it is always True, the present lines are passed on.
        out: called with each line, and at the end with an unfinished one.
        poll_seconds: time between two reads.
    Returns:
        False if the rank has no log.
    """
    shown: dict[str, int] = {}
    rest: dict[str, bytes] = {}
    last: str | None = None
    while True:
        over = is_over()
        paths = _logs_of(run_directory, rank)
        for path in paths:
            growth = growing.read(path, shown.get(path, 0))
            if growth is None:
                continue
            data, end = growth
            if end < shown.get(path, 0):  # begun anew
                rest.pop(path, None)
            shown[path] = end
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
    matches = [match for name in growing.names(folder) if (match := _NAME.fullmatch(name))]
    matches = [match for match in matches if int(match[1]) == rank]
    matches.sort(key=lambda match: (int(match[2] or 1), int(match[3] or 1)))
    return [storage.join(folder, match[0]) for match in matches]
