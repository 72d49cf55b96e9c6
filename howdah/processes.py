"""What a process can do for itself and see of others, by the kernel: Linux' /proc and prctl(2)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterator, Mapping

__all__ = ["die_with_parent", "environ", "stat_fields"]

_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


def die_with_parent(death_signal: int = signal.SIGKILL) -> None:
    """Have the kernel end this process when its parent dies: a killed launcher leaves no orphan.

    Linux only. To be called from the main thread; the parent is the launcher or its helper.
    """
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
    if os.getppid() != parent:  # it died between the two lines: the signal will not come
        os.kill(os.getpid(), death_signal)


def stat_fields(pid: int) -> list[str] | None:
    """proc(5)'s /proc/<pid>/stat from the state on: its field N is number N - 3 here.

    The program's name before it may hold anything, blanks and brackets too.

    Returns:
        None if there is no such process.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split() or None
    except OSError:
        return None


@contextlib.contextmanager
def environ(wanted: Mapping[str, str | None]) -> Iterator[None]:
    """os.environ with these in it, or without them (None), and as before at the end."""
    before = {key: os.environ.get(key) for key in wanted}
    _set_all(wanted)
    try:
        yield
    finally:
        _set_all(before)


def _set_all(wanted: Mapping[str, str | None]) -> None:
    """Set variables of the environment; None removes one."""
    for key, value in wanted.items():
        if value is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = value
