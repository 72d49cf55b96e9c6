"""Redirects a rank's output: all of it goes to its log, rank 0's progress also to the console."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import TextIO

from howdah.faults import typed
from howdah.process.env import TERMINAL


def redirect(directory: str, rank: int) -> tuple[TextIO, TextIO]:
    """Send this process's stdout and stderr to `<directory>/logs/rank.<rank>`.

    The descriptors themselves are replaced, since C++ libraries (TensorFlow, Horovod) write to them
    directly.

    Args:
        directory: local directory of the run (training/run/local_dir.py).
    Returns:
        (console, log): the previous stderr or the terminal of `howdah train`, and the log.
    Raises:
        StorageError: the log cannot be written.
    """
    path = os.path.join(directory, "logs", f"rank.{rank}")
    stamp = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    with typed(path, "write the log"):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(handle, f"--- rank {rank}, pid {os.getpid()}, {stamp}\n".encode())
    sys.stdout.flush()
    sys.stderr.flush()
    console = terminal_of_command() or os.fdopen(os.dup(2), "w", encoding="utf-8")
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)
    return console, sys.stderr


def terminal_of_command() -> TextIO | None:
    """The terminal that `howdah train` runs in; the ranks' pipes and files cannot show a bar."""
    path = os.environ.get(TERMINAL)
    if path is None:
        return None
    # If it cannot be opened (it is another user's or another host's), the pipe is used.
    with contextlib.suppress(OSError):
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_NOCTTY), "w", encoding="utf-8")
    return None
