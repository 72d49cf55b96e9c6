"""`python -m howdah.training.launch.horovodrun SECONDS ...`: leaves ranks time to save.

When one rank has ended, horovodrun sends the others SIGTERM and, 5 s later, SIGKILL. Rank 0 may
need longer to save the last step: here the 5 s are SECONDS. horovodrun starts each rank from a
helper process of its own, which imports this module again (multiprocessing's way to spawn) and so
has the same limit; it finds SECONDS in the environment.
"""

from __future__ import annotations

import os
import sys

from horovod.runner.common.util import safe_shell_exec  # noqa: TID253 - imports no framework

_SECONDS = "HOWDAH_HOROVODRUN_GRACE_SECONDS"

if __name__ == "__main__":
    os.environ[_SECONDS] = sys.argv.pop(1)

safe_shell_exec.GRACEFUL_TERMINATION_TIME_S = float(os.environ[_SECONDS])

if __name__ == "__main__":
    from horovod.runner.launch import run_commandline

    sys.exit(run_commandline())
