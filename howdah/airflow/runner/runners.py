"""The base class of runners, and the runner of this machine.

Every command runs under `howdah guard` (howdah/process/supervisor.py), which is connected by stdin,
stdout and stderr. No command outlives the task's process: when that process dies, the guard's stdin
closes, and the guard ends the command.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from howdah import __version__
from howdah.core import threads
from howdah.errors import ClusterError, HowdahError, UsageError
from howdah.process.supervisor import HELLO

OnLine = Callable[[str], None]

_HELLO_SECONDS = 120.0
"""Time limit for the guard's first line; a login that asks for input never sends it."""
_HEARTBEAT_SECONDS = 10.0
"""Interval of heartbeats; a guard over SSH waits SshRunner.silence_seconds for one."""
_KEPT_LINES = 20
_KEPT_BYTES = 64 * 2**20
"""Most bytes of stdout that are kept; a command's JSON object is far smaller."""


@dataclass(frozen=True)
class CommandResult:
    """Exit code and output of a command."""

    code: int
    """Exit code."""
    result: dict[str, Any] | None
    """The JSON object that it printed on stdout, if any."""
    tail: tuple[str, ...]
    """Its last lines on stderr."""


class Streams(ABC):
    """The streams of a guard's process. Each method may be called from any thread."""

    @abstractmethod
    def send(self, data: bytes) -> None:
        """Write to its stdin; OSError: the process no longer reads it."""

    @abstractmethod
    def out(self) -> Iterator[bytes]:
        """Its stdout, until it closes."""

    @abstractmethod
    def err(self) -> Iterator[bytes]:
        """Its stderr, until it closes."""

    @abstractmethod
    def wait(self) -> int:
        """Wait for its end; return its exit code, or -1 if the connection was lost before."""

    @abstractmethod
    def close(self) -> None:
        """Close its stdin, which makes the guard end."""


class Runner(ABC):
    """Runs one command at a time; a signal handler may cancel it.

    Args:
        command: the howdah program.
        environment: additional variables for it.
        directory: its working directory.
    """

    silence_seconds: float | None = None

    def __init__(
        self,
        command: str,
        *,
        environment: Mapping[str, str] | None = None,
        directory: str | None = None,
    ) -> None:
        self.command = command
        self._environment = dict(environment or {})
        self._directory = directory
        self._session: _GuardSession | None = None

    @property
    @abstractmethod
    def where(self) -> str:
        """The machine of the commands, for messages."""

    @abstractmethod
    def open(self, argv: Sequence[str]) -> Streams:
        """Start a program.

        Raises:
            HowdahError: the program cannot be started, or the machine cannot be reached.
        """

    def run(
        self,
        arguments: Sequence[str],
        *,
        config: str | None = None,
        policy: str | None = None,
        on_line: OnLine,
        lock: str | None = None,
        grace_seconds: float = 60.0,
    ) -> CommandResult:
        """Run `howdah ARGUMENTS` and wait for its end; an exception meanwhile ends the command.

        Args:
            arguments: the command and its options; with a configuration `--config -` among them.
            config: the configuration's text.
            policy: text of the policy to apply to the command; None: no policy.
            on_line: called with each line of stderr as it comes, from another thread.
            lock: name of a lock that the command holds: of two commands with the same lock on one
                machine, the later one waits.
            grace_seconds: time limit for an orderly end.
        Raises:
            HowdahError: the program does not exist, has another version or cannot be reached, or
                the connection was lost.
        """
        streams = self.open([self.command, "guard", "--", *arguments])
        session = _GuardSession(streams, on_line, heartbeat=self.silence_seconds is not None)
        self._session = session
        try:
            self._check(session)
            order = {
                "config": config,
                "policy": policy,
                "environment": self._environment,
                "directory": self._directory,
                "grace_seconds": grace_seconds,
                "silence_seconds": self.silence_seconds,
                "lock": lock,
            }
            session.send(json.dumps(order).encode() + b"\n")
            session.wait()
        except BaseException:
            session.stop(grace_seconds)
            raise
        finally:
            session.close()
            self._session = None
        if session.code == -1:
            raise ClusterError(
                f"the connection was lost while `howdah {arguments[0]}` ran; the guard ends it",
                where=self.where,
                remedy="start it again: it resumes from its checkpoint, or finds its application",
            )
        return CommandResult(session.code, session.result(), tuple(session.tail))

    def cancel(self, seconds: float = 60.0) -> None:
        """End the running command gracefully, and wait up to `seconds` for that."""
        session = self._session
        if session is not None:
            session.stop(seconds)

    def _check(self, session: _GuardSession) -> None:
        """Raise unless the guard has answered and has this version."""
        version = session.version(_HELLO_SECONDS)
        if version is None:
            raise self._no_guard(session)
        major_minor = [text.split(".")[:2] for text in (version, __version__)]
        if major_minor[0] != major_minor[1]:
            raise UsageError(
                "the howdah program and Airflow's howdah have different versions",
                where=f"{self.command} on {self.where}",
                expected=f"version {'.'.join(major_minor[1])} ({__version__} beside Airflow)",
                got=f"version {version}",
            )

    def _no_guard(self, session: _GuardSession) -> HowdahError:
        output = "\n".join(session.tail) or "nothing"
        where = f"{self.command} on {self.where}"
        if session.code == 127 or (session.code == 126 and "ermission" not in output):
            return UsageError(
                "the howdah program does not exist",
                where=where,
                got=output,
                remedy="install Howdah there, and name its program (an absolute path) in the"
                " Connection's field command",
            )
        if session.code is None:
            got = f"no answer within {_HELLO_SECONDS:.0f} s; output: {output}"
        else:
            got = f"exit code {session.code}; output: {output}"
        kind = ClusterError if session.code in (None, -1) else UsageError
        what = f"this program does not answer like howdah {__version__}"
        return kind(what, where=where, got=got, remedy="check `howdah --version` there")


class _GuardSession:
    """The connection to one guard.

    Waits on pipes, never on locks: a signal handler of the main thread may call `stop` while that
    thread is inside `wait`.
    """

    def __init__(self, streams: Streams, on_line: OnLine, *, heartbeat: bool) -> None:
        self._streams = streams
        self._heartbeat = heartbeat
        self._on_line = on_line
        self._out: list[bytes] = []
        self._size = 0
        self._version: str | None = None
        self._hello, self._hello_end = os.pipe()
        self._over, self._over_end = os.pipe()
        self.tail: list[str] = []
        self.code: int | None = None
        self._closed = False
        threads.start(self._follow, name="howdah-command", failed=lambda error: self._ended(-1))

    def _follow(self) -> None:
        """Read all output, then store the exit code; in a thread."""
        # A command blocks at the first full pipe, so after an error in a reader the rest of its
        # stream is read and dropped.
        readers = [
            threads.start(read, name=name, failed=partial(_drop, stream))
            for name, read, stream in (
                ("howdah-stdout", self._read_out, self._streams.out),
                ("howdah-stderr", self._read_err, self._streams.err),
            )
        ]
        if self._heartbeat:
            threads.start(self._send_heartbeats, name="howdah-beat", failed=threads.RESTART)
        code = self._streams.wait()
        for reader in readers:
            reader.join()
        self._ended(code)

    def _ended(self, code: int) -> None:
        self.code = code
        os.close(self._hello_end)
        os.close(self._over_end)

    def _send_heartbeats(self) -> None:
        """Send heartbeats until the command has ended; without them the guard ends it."""
        while not _readable(self._over, _HEARTBEAT_SECONDS):
            if self._version is not None and not self._closed:
                self.send(b"\n")

    def _read_out(self) -> None:
        for data in self._streams.out():
            self._size += len(data)
            if self._size <= _KEPT_BYTES:
                self._out.append(data)

    def _read_err(self) -> None:
        rest = b""
        for data in self._streams.err():
            *lines, rest = (rest + data).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
            for line in lines:
                self._take_line(line.decode(errors="replace"))
        if rest:
            self._take_line(rest.decode(errors="replace"))

    def _take_line(self, line: str) -> None:
        if self._version is None and line.startswith(HELLO):
            self._version = line.removeprefix(HELLO).split()[0]
            os.write(self._hello_end, b".")
            return
        self.tail = [*self.tail[-_KEPT_LINES:], line]
        if line.strip():
            self._on_line(line)

    def version(self, seconds: float) -> str | None:
        """The guard's version; None: it did not send one within `seconds`, or has ended before."""
        if _readable(self._hello, seconds) and self._version is None:
            self.wait()  # to have its exit code
        return self._version

    def send(self, data: bytes) -> None:
        """Write to the guard's stdin; a lost guard is noticed by `_follow`."""
        with contextlib.suppress(OSError):
            self._streams.send(data)

    def wait(self) -> None:
        """Wait until the command has ended and its output is read."""
        while not _readable(self._over, 3600.0):
            pass

    def stop(self, seconds: float) -> None:
        """Request an orderly end; the guard ends a command that has not ended after `seconds`."""
        if self._closed:
            return
        self.send(b"stop\n")
        if not _readable(self._over, seconds):
            self._streams.close()

    def close(self) -> None:
        """Close the guard's stdin."""
        self._closed = True
        self._streams.close()

    def __del__(self) -> None:  # `close` would be too early: threads wait on these pipes
        os.close(self._hello)
        os.close(self._over)

    def result(self) -> dict[str, Any] | None:
        """The JSON object on the last line of stdout (a login may have printed lines above it)."""
        lines = b"".join(self._out).decode(errors="replace").strip().splitlines()
        for text in ("\n".join(lines), lines[-1] if lines else ""):
            with contextlib.suppress(ValueError):
                value = json.loads(text)
                if isinstance(value, dict):
                    return value
        return None


def _readable(handle: int, seconds: float) -> bool:
    """True once a pipe has data or its writing end is closed; False after `seconds`."""
    watch = select.poll()  # not select(), which is limited to file numbers below 1024
    watch.register(handle, select.POLLIN)
    return bool(watch.poll(seconds * 1000))


# ------------------------------------------------------------------------------- this machine
class LocalRunner(Runner):
    """Runs commands on this machine."""

    @property
    def where(self) -> str:
        return "this machine"

    def open(self, argv: Sequence[str]) -> Streams:
        try:
            return _Process(argv)
        except OSError as error:
            raise UsageError(
                "the howdah program cannot be started",
                where=argv[0],
                got=error.strerror,
                remedy="install Howdah, and name its program (an absolute path) in the Connection's"
                " field command",
            ) from None


def _drop(stream: Callable[[], Iterator[bytes]], error: Exception) -> None:
    for _ in stream():
        pass


class _Process(Streams):
    def __init__(self, argv: Sequence[str]) -> None:
        # Its own session: Airflow kills its task's process group, and the guard must survive that
        # to end the command in order.
        self._process = subprocess.Popen(
            list(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=_environment(), start_new_session=True, bufsize=0,
        )  # fmt: skip
        self._stdin = self._process.stdin.fileno()
        self._closed = False

    def send(self, data: bytes) -> None:
        while data and not self._closed:
            data = data[os.write(self._stdin, data) :]

    def out(self) -> Iterator[bytes]:
        return _chunks(self._process.stdout)

    def err(self) -> Iterator[bytes]:
        return _chunks(self._process.stderr)

    def wait(self) -> int:
        code = self._process.wait()
        return code if code >= 0 else 128 - code

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            with contextlib.suppress(OSError):
                self._process.stdin.close()


def _chunks(stream: Any) -> Iterator[bytes]:
    while data := os.read(stream.fileno(), 65536):
        yield data
    stream.close()


def _environment() -> dict[str, str]:
    """This process's environment without Airflow's settings, some of which are secrets, and without
    the PYTHONPATH of its DAGs: the program may use another Python (howdah/process/isolation.py)."""
    hidden = (
        "AIRFLOW__", "_AIRFLOW_", "AIRFLOW_CONN_", "AIRFLOW_VAR_", "HOWDAH_TTY", "PYTHONPATH"
    )  # fmt: skip
    return {name: value for name, value in os.environ.items() if not name.startswith(hidden)}


def local_command() -> str:
    """The howdah program beside this Python, or its bare name to be found on the PATH."""
    beside = os.path.join(os.path.dirname(sys.executable), "howdah")
    return beside if os.access(beside, os.X_OK) else "howdah"
