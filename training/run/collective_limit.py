"""A time limit for collectives on GPUs, and for those of MPI.

NCCL waits for ever for a peer that has vanished, and so does MPI for one that is stopped: neither
has a time limit of its own, and Horovod's stall check only warns, and sees only ranks that have not
entered a collective, not one that hangs in it (docs/decisions/gpus.md). Gloo on CPUs has
job.gloo_timeout_seconds, or with torch.distributed this very limit, which gloo keeps itself.

Tried with a stopped rank under mpirun, and with a main thread that is held up: no machine with
several GPUs was at hand.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import time

from howdah.core import threads
from howdah.errors import ClusterError, render
from howdah.training.comm.base import Waits
from howdah.training.run.run import Run

_MARGIN_SECONDS = 10.0
"""To write down why this process ends, after the save."""


class CollectiveLimit:
    """Ends this process when one collective lasts too long.

    Rank 0 saves the last completed step first, as far as it can within checkpoint.grace_seconds:
    the copy from a GPU may hang as well.

    Args:
        run: this rank's side of the run.
        waits: counts the time in collectives.
        seconds: the limit.
        margin: seconds for what follows the save.
    """

    def __init__(
        self, run: Run, waits: Waits, seconds: float, *, margin: float = _MARGIN_SECONDS
    ) -> None:
        self._run, self._waits, self._seconds, self._margin = run, waits, seconds, margin

    def start(self) -> None:
        """Watch from now on, in a thread of its own."""
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
            "a collective does not come back",
            where=f"rank {run.rank} of {run.world_size}",
            expected=f"at most {self._seconds:g} s (training.gpu_collective_seconds)",
            got=f"{waited:.0f} s",
            remedy="look for a rank that is stopped or lost, or a broken link between GPUs"
            " (NCCL_DEBUG=INFO tells more); started again, the run goes on from its newest"
            " checkpoint. Raise the limit where a rank may rightly be waited for so long",
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
