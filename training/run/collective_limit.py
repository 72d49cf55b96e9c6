"""A time limit for collectives on GPUs and of MPI.

NCCL waits forever for a peer that has vanished, and MPI for one that is stopped. Neither has a time
limit, and Horovod's stall check only warns, and only about ranks that have not entered a
collective, not about one that hangs in it (docs/decisions/gpus.md). Gloo on CPUs has a limit below
job.hang_seconds or, with torch.distributed, this limit, which gloo itself enforces.

It was tested with a stopped rank under mpirun and with a blocked main thread, but not with several
GPUs.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import time

from howdah.core import threads
from howdah.core.processes import limit
from howdah.errors import ClusterError, render
from howdah.training.comm.base import Waits
from howdah.training.run.run import Run

COLLECTIVE_SECONDS = limit("collective_seconds", 3_600.0)
"""Longest collective. It allows for everything that ranks may have to wait for: an export, the
check of a dataset, and storage that does not answer for half an hour
(run.storage_retry_seconds)."""

_MARGIN_SECONDS = 10.0
"""Time to record why this process ends, after the save."""


class CollectiveLimit:
    """Ends this process if a collective lasts too long.

    Rank 0 first saves the last completed step, if it can within checkpoint.grace_seconds: the copy
    from a GPU may hang as well.

    Args:
        margin: seconds for the work after the save.
    """

    def __init__(
        self, run: Run, waits: Waits, seconds: float, *, margin: float = _MARGIN_SECONDS
    ) -> None:
        self._run, self._waits, self._seconds, self._margin = run, waits, seconds, margin

    def start(self) -> None:
        threads.start(self._watch, name="collective limit", failed=threads.RESTART)

    def _watch(self) -> None:
        while True:
            since = self._waits.longest_since
            waited = 0.0 if since is None else time.monotonic() - since
            if waited >= self._seconds:
                self._end(waited)
            time.sleep(max(0.05, min(1.0, self._seconds - waited)))

    def _end(self, waited: float) -> None:
        run = self._run
        error = ClusterError(
            "a collective does not return",
            where=f"rank {run.rank} of {run.world_size}",
            expected=f"at most {self._seconds:g} s",
            got=f"{waited:.0f} s",
            remedy="look for a rank that is stopped or lost, or a broken link between GPUs (set"
            " NCCL_DEBUG=INFO); start again: the run resumes from its newest checkpoint",
        )
        print(render(error), file=sys.stderr, flush=True)
        faulthandler.dump_traceback(all_threads=True)
        ending = threads.start(self._leave, error, name="leaving", failed=threads.REPORT)
        ending.join(run.config.checkpoint.grace_seconds + self._margin)
        print("the last completed step could not be saved in time", file=sys.stderr, flush=True)
        os._exit(error.exit_code)

    def _leave(self, error: ClusterError) -> None:
        self._run.last_save.save()
        self._run.leave(error)
