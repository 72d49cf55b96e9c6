"""The log of a job's driver and agents: lines on stderr."""

from __future__ import annotations

import contextlib
import sys
import time


def say(line: str) -> None:
    """Write a line with the time, in UTC, into the process's log.

    stderr escapes what the locale's encoding lacks, for which stdout would raise an error.
    """
    stamp = time.strftime("%H:%M:%S", time.gmtime())
    with contextlib.suppress(OSError):  # a full disk for the log must not end the job
        print(f"{stamp} {line}", file=sys.stderr, flush=True)
