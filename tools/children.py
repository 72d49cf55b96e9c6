"""Servers as child processes: each in a session of its own, output in a file, none left over."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from howdah.processes import marked

HOST = "127.0.0.1"
_TAIL_BYTES = 4000


def free_port(host: str = HOST) -> int:
    """A port that nobody listens on now."""
    with socket.socket() as found:
        found.bind((host, 0))
        return found.getsockname()[1]


def is_free(port: int, host: str = HOST) -> bool:
    """Whether a server could listen there."""
    with socket.socket() as tried:
        # As servers do: connections of an earlier server that wait to be forgotten do not count.
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, port))
        except OSError:
            return False
    return True


class Child:
    """A server that was started; the kernel ends it when the thread that has started it ends.

    It has a session of its own: a Ctrl-C in the terminal reaches its parent alone, which ends its
    children in order.

    Args:
        name: for messages.
        argv: the command.
        log: its output is appended there.
        env: its environment; None: as this process.
        cwd: its working directory.
        death_signal: what it gets when its parent dies, without SIG.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | str = "/",
        death_signal: str = "TERM",
    ) -> None:
        self.name = name
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as out:
            self._offset = out.tell()
            self._process = subprocess.Popen(
                # setpriv is the last to say so: a change of user would undo it.
                _with_death_signal(argv, death_signal),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=None if env is None else dict(env),
                cwd=cwd,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its process id, which is its session's and process group's too."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def wait(self) -> int:
        """Wait for its end; its exit code."""
        return self._process.wait()

    def send(self, number: int, *, group: bool = False) -> None:
        """Send it a signal; with `group` also to what it has in its process group."""
        with contextlib.suppress(ProcessLookupError):
            if group:
                os.killpg(self.pid, number)
            elif self.alive:
                os.kill(self.pid, number)

    def end(self, number: int, seconds: float, *, group: bool = False) -> bool:
        """Ask it to end, and kill it and its process group when it has not after `seconds`.

        Returns:
            Whether it ended by itself.
        """
        self.send(number, group=group)
        try:
            self._process.wait(timeout=seconds)
            orderly = True
        except subprocess.TimeoutExpired:
            orderly = False
        self.send(signal.SIGKILL, group=True)  # what it has started may be left in any case
        self._process.wait()
        return orderly

    def tail(self) -> str:
        """The end of what it has written since it was started."""
        with open(self.log, "rb") as file:
            file.seek(max(self._offset, os.path.getsize(self.log) - _TAIL_BYTES))
            return file.read().decode(errors="replace").strip()


def _with_death_signal(argv: Sequence[str], number: str) -> list[str]:
    words = [f"--pdeathsig={number}"]
    if argv[0] == "setpriv":
        return ["setpriv", *words, *argv[1:]]
    return ["setpriv", *words, "--", *argv]


def end_marked(mark: str, value: str, *, grace: float) -> list[int]:
    """End all such processes: asked first, killed after `grace` seconds; those that are left."""
    for pid in marked(mark, value):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    killing = time.monotonic() + grace
    while (left := marked(mark, value)) and time.monotonic() < killing + 10:
        if time.monotonic() > killing:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    return left
