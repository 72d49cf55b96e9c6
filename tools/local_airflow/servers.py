"""Servers as child processes with their own session and log file, which end with their parent; and
the end of processes that are no children of this one."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from howdah.core.child import Child

HOST = "127.0.0.1"
_TAIL_BYTES = 4000
_KILL_SECONDS = 20.0  # for the kernel to end what was killed


def free_port() -> int:
    """A port of loopback on which no process listens now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def is_free(port: int) -> bool:
    """Whether a server could listen on a port of loopback."""
    with socket.socket() as probe:
        # Servers set it too, so that connections in TIME_WAIT do not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


class Server(Child):
    """A running server, which the kernel ends when the thread that started it ends.

    Args:
        name: its name in messages.
        argv: its command.
        log: file that its output is appended to.
        env: its environment; None: that of this process.
        cwd: its working directory.
        death_signal: the signal that it gets when its parent dies.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | str = "/",
        death_signal: signal.Signals = signal.SIGTERM,
    ) -> None:
        self.name = name
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        self._offset = os.path.getsize(log) if log.exists() else 0
        if argv[0] == "setpriv":  # a change of user clears the parent's death signal
            argv = ["setpriv", f"--pdeathsig={death_signal.name.removeprefix('SIG')}", *argv[1:]]
        super().__init__(argv, env=env, cwd=cwd, output=log, death_signal=death_signal)

    def tail(self) -> str:
        """The end of its output since its start."""
        with open(self.log, "rb") as file:
            file.seek(max(self._offset, os.path.getsize(self.log) - _TAIL_BYTES))
            return file.read().decode(errors="replace").strip()


def end_all(running: Callable[[], list[int]], *, grace: float) -> list[int]:
    """End processes by SIGTERM, after `grace` seconds by SIGKILL; return those that are left.

    Args:
        running: ids of those that still run. It is called again and again, since a dying process
            may have started another one.
    """
    for number in (signal.SIGCONT, signal.SIGTERM):  # a stopped process would not handle SIGTERM
        send(running(), number)
    killing = time.monotonic() + grace
    while (left := running()) and time.monotonic() < killing + _KILL_SECONDS:
        if time.monotonic() > killing:
            send(left, signal.SIGKILL)
        time.sleep(0.05)
    return left


def send(pids: list[int], number: int) -> None:
    """Send a signal to processes; some may have ended meanwhile."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
