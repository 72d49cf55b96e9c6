"""Ends the ranks of this machine where `howdah train` is killed: by SIGKILL, or for want of memory.

    python -m training.launch.guard LOCAL_DIRECTORY LAUNCHER_PID SECONDS < PIPE

`howdah train` alone holds the pipe's other end: its end of file says that it is gone. The launcher
gets SIGTERM from the kernel then, but mpirun passes that on only after `checkpoint.grace_seconds`,
in which the ranks would train on and refuse the run directory to the next attempt.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from types import TracebackType
from typing import Self

from howdah.core.processes import descendants, process_start
from training.run.local_dir import RankRecord

__all__ = ["Guard"]

_POLL_SECONDS = 0.05


class Guard:
    """The process of this module, for as long as the `with` block lasts.

    Args:
        local: the run's local directory, with the ranks' records.
        launcher: process id of the ranks' launcher.
        seconds: that the ranks have to end, of which rank 0 saves its last step.
    """

    def __init__(self, local: str, launcher: int, seconds: float) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, local, str(launcher), str(seconds)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,  # what is sent to the group of `howdah train` is not for it
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.stdin.close()
        self._process.wait()


def _end_ranks(local: str, launcher: int, started: int | None, seconds: float) -> None:
    """SIGTERM to the ranks; when they are gone, or their time is over, SIGKILL to all that is left.

    Args:
        started: when the launcher did, so that no other process of its id is killed.
    """
    below = [(pid, process_start(pid)) for pid in descendants(launcher)]
    ranks = [record for record in RankRecord.read_all(local) if record.is_local]
    for record in ranks:
        if record.alive:
            _send(record.pid, signal.SIGTERM)
    deadline = time.monotonic() + seconds
    while any(record.alive for record in ranks) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    for pid, then in [(launcher, started), *below]:
        if then is not None and process_start(pid) == then:
            _send(pid, signal.SIGKILL)


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _main(local: str, launcher: str, seconds: str) -> None:
    started = process_start(int(launcher))
    while os.read(0, 1):  # blocks until its end: nothing is ever written
        pass
    _end_ranks(local, int(launcher), started, float(seconds))


if __name__ == "__main__":
    _main(*sys.argv[1:])
