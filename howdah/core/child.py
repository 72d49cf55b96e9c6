"""A child process in its own session: its output lines, its end, and that of its descendants."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import BinaryIO, Self

from howdah.core import threads
from howdah.core.processes import die_with_parent, session_members

_PUMP_SECONDS = 5.0
"""Wait for the last lines; a process outside the session may keep the pipe open."""


class Child:
    """A process in a session and process group of its own.

    A Ctrl-C in the terminal reaches only its parent, which ends it by `end`, or at the end of a
    `with` block in any case.

    Args:
        argv: the command.
        env: its environment; None: this process's.
        cwd: its working directory; None: this process's.
        output: a file that stdout and stderr are appended to.
        on_line: called with each line of stdout and stderr, in a thread, without the line's end.
            If it raises, that is reported and the rest is read and dropped, since a full pipe
            would block the process. Without `output` and `on_line` the process writes to this
            one's stdout and stderr.
        on_stdout: with `on_line`: called with the lines of stdout instead, in a thread of its own.
        grace: seconds between SIGTERM and SIGKILL in `end`; 0: SIGKILL at once.
        pass_fds: file descriptors that stay open in it, such as a lock's.
        death_signal: the kernel sends it when the THREAD that starts the process ends, thus also
            when this process ends; None: the child may outlive its parent.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        output: str | os.PathLike[str] | None = None,
        on_line: Callable[[str], None] | None = None,
        on_stdout: Callable[[str], None] | None = None,
        grace: float = 0.0,
        pass_fds: Sequence[int] = (),
        death_signal: int | None = signal.SIGTERM,
    ) -> None:
        self._grace = grace
        self._pumps: list[threading.Thread] = []
        with contextlib.ExitStack() as files:
            out = files.enter_context(open(output, "ab")) if output is not None else None
            piped = subprocess.PIPE if on_line is not None else out
            merged = None if piped is None else subprocess.STDOUT
            apart = on_line is not None and on_stdout is not None
            dying = None
            if death_signal is not None:
                dying = functools.partial(die_with_parent, death_signal, os.getpid())
            self._process = subprocess.Popen(
                list(argv), env=None if env is None else dict(env), cwd=cwd,
                stdin=subprocess.DEVNULL, stdout=piped,
                stderr=subprocess.PIPE if apart else merged,
                start_new_session=True, preexec_fn=dying, pass_fds=pass_fds,
            )  # fmt: skip
        if apart:
            self._read(self._process.stdout, on_stdout)
            self._read(self._process.stderr, on_line)
        elif on_line is not None:
            self._read(self._process.stdout, on_line)

    def _read(self, stream: BinaryIO, on_line: Callable[[str], None]) -> None:
        self._pumps.append(
            threads.start(
                _pump, stream, on_line, name=f"output of {self.pid}",
                failed=lambda error: _drain(stream),
            )
        )  # fmt: skip

    @property
    def pid(self) -> int:
        """Its process id, also the id of its session and process group."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it is running."""
        return self._process.poll() is None

    @property
    def code(self) -> int | None:
        """Its exit code (negative: the signal that ended it); None while it is running."""
        return self._process.poll()

    def wait(self, seconds: float | None = None) -> int | None:
        """Wait for its end; its exit code, or None if it is still running after `seconds`."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def read_rest(self) -> None:
        """After its end wait for its last lines; a `with` block does so at its end."""
        for pump in self._pumps:
            pump.join(_PUMP_SECONDS)

    def send(self, number: int, *, group: bool = False) -> None:
        """Send a signal to it, or with `group` to its process group, which may outlive it."""
        with contextlib.suppress(ProcessLookupError):
            if group:
                os.killpg(self.pid, number)
            else:
                self._process.send_signal(number)

    def end(
        self, number: int = signal.SIGTERM, grace: float | None = None, *, group: bool = False
    ) -> bool:
        """Ask it to end, then kill what is left of its session, also if an exception (a second
        Ctrl-C) interrupts the wait.

        Args:
            number: the signal that asks it to end.
            grace: seconds until it is killed; None: the constructor's.
            group: send `number` to its whole process group.
        Returns:
            Whether it ended by itself.
        """
        grace = self._grace if grace is None else grace
        try:
            if grace > 0 and self.alive:
                self.send(number, group=group)
                self.wait(grace)
            return not self.alive
        finally:
            self.send(signal.SIGKILL, group=True)
            for pid in session_members(self.pid):  # other process groups of the session
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.end()
        self.read_rest()


def _pump(stream: BinaryIO, on_line: Callable[[str], None]) -> None:
    for line in iter(stream.readline, b""):
        on_line(line.decode("utf-8", "replace").rstrip("\r\n"))
    stream.close()


def _drain(stream: BinaryIO) -> None:
    while stream.read(65536):
        pass
    stream.close()
