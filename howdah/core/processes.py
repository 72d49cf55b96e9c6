"""Processes on Linux: parents, descendants, sessions and environments, by /proc and prctl(2); their
locks on files, and what of their stderr is shown."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import IO, Any

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # <sys/prctl.h>
_LIBC = ctypes.CDLL(None, use_errno=True)  # loaded before a fork, which must do little


def die_with_parent(death_signal: int = signal.SIGKILL, parent: int | None = None) -> None:
    """Have the kernel end this process when its parent dies, so that no orphan stays.

    Linux only. Call it from the main thread; the parent is the launcher or its helper.

    Args:
        death_signal: what the kernel sends.
        parent: id of the process that started this one, which may be gone by now. None: the
            present parent.
    """
    parent = os.getppid() if parent is None else parent
    _LIBC.prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
    if os.getppid() != parent:  # it died before the prctl: the signal will not come
        os._exit(128 + death_signal)  # a handler inherited from the parent could ignore it


def yield_to_other_threads(niceness: int = 10) -> None:
    """Permanently lower this thread's share of a busy core, for background work.

    On Linux each thread has its niceness. 10 gives a tenth of a normal thread's share: an equal
    share would delay all compute threads, which wait for each other at barriers.
    """
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends (Linux only)."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(pid: int) -> list[int]:
    """Ids of all descendants of a process, without zombies."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := stat_fields(int(name))) and fields[0] not in "ZX":
            children.setdefault(int(fields[1]), []).append(int(name))
    ids, new = [], [pid]
    while new:
        new = [child for parent in new for child in children.get(parent, [])]
        ids += new
    return ids


def session_members(session: int) -> list[int]:
    """Ids of a session's processes, the newest first, zombies included."""
    members = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(ProcessLookupError):
                if os.getsid(int(name)) == session:
                    members.append(int(name))
    return sorted(members, reverse=True)


def marked(name: str, value: str, *, working_in: re.Pattern[str] | None = None) -> list[int]:
    """Ids of the other processes whose environment has a variable with this value, without zombies.

    Args:
        working_in: also processes whose working directory matches: a launcher may have cleared its
            environment.
    """
    import psutil

    def matches(environ: dict[str, str] | None, cwd: str | None) -> bool:
        """Arguments are None where they may not be read, or the process has ended."""
        marked = environ is not None and environ.get(name) == value
        return marked or (working_in is not None and bool(working_in.match(cwd or "")))

    return [
        process.pid
        for process in psutil.process_iter(["environ", "cwd"])
        if process.pid != os.getpid() and matches(**process.info)
    ]


def stat_fields(pid: int) -> list[str] | None:
    """Fields of /proc/<pid>/stat from the state on: field N of proc(5) has the index N - 3.

    The program's name before them may contain blanks and brackets.

    Returns:
        None if there is no such process.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split() or None
    except OSError:
        return None


def process_start(pid: int) -> int | None:
    """Start of a process in clock ticks since boot, which stays when the clock is set: with the
    pid and the boot, its identity.

    Field 22 of proc(5)'s /proc/<pid>/stat.

    Returns:
        None if there is no such process, or it has ended and is not yet waited for (a zombie).
    """
    fields = stat_fields(pid)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def boot_id() -> str:
    """The machine's current boot: random(4)'s boot_id.

    Raises:
        OSError: /proc does not say.
    """
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def pid_space() -> str:
    """This process's namespace of process ids (namespaces(7)): containers of one machine have
    their own.

    Raises:
        OSError: /proc does not say.
    """
    return os.readlink("/proc/self/ns/pid")


def reap() -> None:
    """Wait for all children that have ended, orphans that were adopted among them; none is waited
    for that still runs."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def locked(file: IO) -> bool:
    """Lock an open file for this process alone, by flock(2), which ends with the process; False:
    another one has locked it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_named(file: IO, path: str) -> bool:
    """Whether `path` still names the open file."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def utf8_locale(env: Mapping[str, str]) -> bool:
    """True if an environment's locale is of UTF-8: Java takes the names of files by it.

    >>> utf8_locale({"LC_ALL": "C", "LANG": "C.UTF-8"}), utf8_locale({"LANG": "de_DE.utf8"})
    (False, True)
    """
    name = env.get("LC_ALL") or env.get("LC_CTYPE") or env.get("LANG") or ""
    return "UTF" in name.upper()


@contextlib.contextmanager
def environ(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Inside, os.environ has these values (None: not set); afterwards the former ones."""
    before = {key: os.environ.get(key) for key in variables}
    _set_all(variables)
    try:
        yield
    finally:
        _set_all(before)


def _set_all(variables: Mapping[str, str | None]) -> None:
    """Set variables of the environment; None removes a variable."""
    for key, value in variables.items():
        if value is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = value


_FILTERS: list[subprocess.Popen] = []
"""They end with the processes that they filter; an object that is collected earlier warns."""


@contextlib.contextmanager
def stderr_without(pattern: str) -> Iterator[None]:
    """Processes that are started inside write their stderr to this one's, for as long as they live,
    without the lines that match.

    A process of its own passes the lines on, so that none is lost when this process ends first.
    Where there is no sed all lines are shown.

    Args:
        pattern: a basic regular expression without "/".
    """
    sys.stderr.flush()
    shown = os.dup(2)
    try:
        passing = subprocess.Popen(
            ["sed", "-u", f"/{pattern}/d"], stdin=subprocess.PIPE, stdout=shown,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    except OSError:
        os.close(shown)
        yield
        return
    _FILTERS.append(passing)
    os.dup2(passing.stdin.fileno(), 2)
    passing.stdin.close()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(shown, 2)
        os.close(shown)


def silence_filtered() -> None:
    """Drop what the processes that were started in `stderr_without` write from now on."""
    for passing in _FILTERS:
        passing.terminate()


LIMITS = "HOWDAH_TEST_LIMITS"
"""Environment variable of tests: {name: value} as JSON."""


def limit(name: str, value: Any) -> Any:
    """The value, or that of the same name in $HOWDAH_TEST_LIMITS.

    A limit that no user has a reason to set is a constant beside its use, and a test of one process
    patches that constant. What a test starts as another process (a server, a job's driver, a rank)
    reads the test's value from the environment.
    """
    replaced = os.environ.get(LIMITS)
    return value if replaced is None else json.loads(replaced).get(name, value)


def how_ended(code: int) -> str:
    """An exit code for users: "exit code 3", "signal SIGKILL"; a real-time signal has no name."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
