"""Ends the ranks of this machine where `howdah train` is killed: by SIGKILL, or for want of memory.

    python -m howdah.training.launch.guard LOCAL_DIRECTORY LAUNCHER_PID SECONDS < PIPE

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
from collections.abc import Iterator

from howdah.core.processes import descendants, process_start
from howdah.process import isolation
from howdah.training.run.local_dir import RankRecord

_POLL_SECONDS = 0.05


@contextlib.contextmanager
def guarded(local: str, launcher: int, seconds: float) -> Iterator[None]:
    """Inside, the process of this module watches over this one.

    Args:
        local: the run's local directory, with the ranks' records.
        launcher: process id of the ranks' launcher.
        seconds: that the ranks have to end, of which rank 0 saves its last step.
    """
    with subprocess.Popen(
        isolation.module(__name__, local, str(launcher), str(seconds)),
        env=isolation.environment(),
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,  # what is sent to the group of `howdah train` is not for it
    ) as guard:  # fmt: skip
        try:
            yield
        finally:
            guard.kill()


def _end_ranks(local: str, launcher: int, started: int | None, seconds: float) -> None:
    """SIGTERM to the ranks; when they are gone, or their time is over, SIGKILL to all that is left.

    Args:
        started: when the launcher did, so that no other process of its id is killed.
    """
    below = [(pid, process_start(pid)) for pid in descendants(launcher)]
    ranks = [record for record in RankRecord.read_all(local) if record.is_local]
    for record in ranks:
        record.send(signal.SIGTERM)
    deadline = time.monotonic() + seconds
    while any(record.alive for record in ranks) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    for pid, then in [(launcher, started), *below]:
        if then is not None and process_start(pid) == then:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _main(local: str, launcher: str, seconds: str) -> None:
    started = process_start(int(launcher))
    while os.read(0, 1):  # blocks until its end: nothing is ever written
        pass
    _end_ranks(local, int(launcher), started, float(seconds))


if __name__ == "__main__":
    _main(*sys.argv[1:])
