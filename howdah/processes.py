"""What a process can do for itself and see of others, by the kernel: Linux' /proc and prctl(2)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import threading
from collections.abc import Iterator, Mapping

__all__ = [
    "adopt_orphans", "descendants", "die_with_parent", "environ", "marked", "stat_fields",
    "yield_to_other_threads",
]  # fmt: skip

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # <sys/prctl.h>


def die_with_parent(death_signal: int = signal.SIGKILL) -> None:
    """Have the kernel end this process when its parent dies: a killed launcher leaves no orphan.

    Linux only. To be called from the main thread; the parent is the launcher or its helper.
    """
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
    if os.getppid() != parent:  # it died between the two lines: the signal will not come
        os.kill(os.getpid(), death_signal)


def yield_to_other_threads(niceness: int = 10) -> None:
    """Lower this thread's share of a busy core, for work in the background; for its whole life.

    Linux keeps a niceness for each thread. 10 is a tenth of what an ordinary thread gets: beside
    compute threads that meet at barriers an equal share would hold all of them up.
    """
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)


def adopt_orphans() -> None:
    """Become the parent of every process below this one whose own parent ends (Linux only)."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(pid: int) -> list[int]:
    """Processes below a process, dead ones that nobody has reaped left out."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := stat_fields(int(name))) and fields[0] not in "ZX":
            children.setdefault(int(fields[1]), []).append(int(name))
    found, new = [], [pid]
    while new:
        new = [child for parent in new for child in children.get(parent, [])]
        found += new
    return found


def marked(name: str, value: str, *, working_in: re.Pattern[str] | None = None) -> list[int]:
    """Process ids of all whose environment has a variable with this value, but our own.

    A process that has ended and is not reaped is none of them.

    Args:
        working_in: those count too whose working directory's path begins so: a launcher may have
            emptied its environment.
    """
    want = f"{name}={value}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                ours = want in file.read().split(b"\0")
            if working_in is not None and not ours:
                ours = bool(working_in.match(os.readlink(f"/proc/{entry}/cwd")))
        except OSError:  # it has ended, or is somebody else's
            continue
        fields = stat_fields(int(entry)) if ours else None
        if fields is not None and fields[0] not in "ZX":
            found.append(int(entry))
    return found


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
