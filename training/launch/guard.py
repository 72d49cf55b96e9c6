"""Ends the rank where `howdah train` is killed: by SIGKILL, or for want of memory.

    python -m howdah.training.launch.guard RANK_PID SECONDS < PIPE

The kernel sends the rank SIGTERM then, and it saves and ends. One whose save hangs, or that is
stopped, would stay for ever: this process kills it when its time is over. `howdah train` alone
holds the pipe's other end: its end of file says that it is gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

from howdah.core.processes import process_start, session_members
from howdah.process import isolation

_POLL_SECONDS = 0.05


@contextlib.contextmanager
def guarded(rank: int, seconds: float) -> Iterator[None]:
    """Inside, the process of this module watches over this one.

    Args:
        rank: process id of the rank, and of its session.
        seconds: the time that it has to save and end.
    """
    with subprocess.Popen(
        isolation.module(__name__, str(rank), str(seconds)),
        env=isolation.environment(),
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,  # what is sent to the group of `howdah train` is not for it
    ) as guard:  # fmt: skip
        try:
            yield
        finally:
            guard.kill()


def _main(rank: int, seconds: float) -> None:
    started = process_start(rank)
    while os.read(0, 1):  # blocks until its end: nothing is ever written
        pass
    deadline = time.monotonic() + seconds
    while started is not None and process_start(rank) == started and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    for pid in session_members(rank):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    _main(int(sys.argv[1]), float(sys.argv[2]))
