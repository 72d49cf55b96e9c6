"""How a `howdah` command runs for a task: on this machine here, on an edge node by SSH beside it.

Both speak with `howdah guard` (howdah/guard.py) over three streams, and nothing outlives the
task's process: when it dies, the guard's stdin closes, and the guard ends the command.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from howdah import __version__
from howdah.errors import ClusterError, HowdahError, UsageError
from howdah.guard import HELLO

__all__ = ["Done", "LocalRunner", "Runner", "Streams", "local_command"]

OnLine = Callable[[str], None]

_HELLO_SECONDS = 120.0
"""Within this long the guard has said hello, or it is an error (a login that asks)."""
_BEAT_SECONDS = 10.0
"""Between two signs of life; a guard by SSH waits for them SshRunner.silence_seconds."""
_KEPT_LINES = 20
_KEPT_BYTES = 64 * 2**20
"""Most that a command may write to stdout: its one JSON object is far smaller."""


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    """Exit code."""
    result: dict[str, Any] | None
    """The JSON object of its stdout; None: there was none."""
    tail: tuple[str, ...]
    """Its last lines on stderr."""


class Streams(ABC):
    """A guard's process, wherever it is. Each method may be called from any thread."""

    @abstractmethod
    def send(self, data: bytes) -> None:
        """To its stdin; OSError: nobody reads it."""

    @abstractmethod
    def out(self) -> Iterator[bytes]:
        """Its stdout, until it closes."""

    @abstractmethod
    def err(self) -> Iterator[bytes]:
        """Its stderr, until it closes."""

    @abstractmethod
    def wait(self) -> int:
        """Until it has ended; its exit code, -1 where that is not told (the connection is lost)."""

    @abstractmethod
    def close(self) -> None:
        """Let go of it: its stdin closes, which ends it."""


class Runner(ABC):
    """Runs one command at a time, and can be told from a signal handler to end it.

    Args:
        command: the howdah program.
        environment: more variables for it.
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
        self._talk: _Talk | None = None

    @property
    @abstractmethod
    def where(self) -> str:
        """Where commands run, for messages."""

    @abstractmethod
    def open(self, argv: Sequence[str]) -> Streams:
        """Start a program.

        Raises:
            HowdahError: it cannot be started, or the machine cannot be reached.
        """

    def run(
        self,
        words: Sequence[str],
        *,
        config: str | None = None,
        on_line: OnLine,
        lock: str | None = None,
        grace_seconds: float = 60.0,
    ) -> Done:
        """Run `howdah WORDS`, and wait for its end; whatever is raised meanwhile ends it.

        Args:
            words: the command and its options; with a configuration `--config -` among them.
            config: the configuration's text.
            on_line: told each line of stderr as it comes, from another thread.
            lock: two commands with one lock do not run at once on one machine: the later waits.
            grace_seconds: what it has for an end in order.
        Raises:
            HowdahError: the program is not there, is another version, cannot be reached, or the
                connection was lost.
        """
        streams = self.open([self.command, "guard", "--", *words])
        talk = _Talk(streams, on_line, beating=self.silence_seconds is not None)
        self._talk = talk
        try:
            self._check(talk)
            order = {
                "config": config,
                "environment": self._environment,
                "directory": self._directory,
                "grace_seconds": grace_seconds,
                "silence_seconds": self.silence_seconds,
                "lock": lock,
            }
            talk.say(json.dumps(order).encode() + b"\n")
            talk.until_over()
        except BaseException:
            talk.stop(grace_seconds)
            raise
        finally:
            talk.close()
            self._talk = None
        if talk.code == -1:
            raise ClusterError(
                "the connection was lost while a command ran; it is ended there",
                where=self.where,
                got=f"`howdah {words[0]}` told no exit code",
                remedy="start it again: it goes on from what is saved, or finds what it submitted",
            )
        return Done(talk.code, talk.result(), tuple(talk.tail))

    def cancel(self, seconds: float = 60.0) -> None:
        """End the command that runs, in order, and wait for that at most so long."""
        talk = self._talk
        if talk is not None:
            talk.stop(seconds)

    def _check(self, talk: _Talk) -> None:
        """The guard has said hello, and is of our version."""
        hello = talk.hello(_HELLO_SECONDS)
        if hello is None:
            raise self._no_guard(talk)
        major_minor = [version.split(".")[:2] for version in (hello, __version__)]
        if major_minor[0] != major_minor[1]:
            raise UsageError(
                "the howdah program is another version than Airflow's howdah",
                where=f"{self.command} on {self.where}",
                expected=f"version {'.'.join(major_minor[1])}, as beside Airflow ({__version__})",
                got=f"version {hello}",
                remedy="install the same version in both places",
            )

    def _no_guard(self, talk: _Talk) -> HowdahError:
        said = "\n".join(talk.tail) or "nothing"
        where = f"{self.command} on {self.where}"
        if talk.code == 127 or (talk.code == 126 and "ermission" not in said):
            return UsageError(
                "there is no howdah program",
                where=where,
                got=said,
                remedy="install Howdah there, and name its program (an absolute path) in the"
                " Connection's field command",
            )
        if talk.code is None:
            got = f"no answer within {_HELLO_SECONDS:.0f} s; it said: {said}"
        else:
            got = f"exit code {talk.code}; it said: {said}"
        kind = ClusterError if talk.code in (None, -1) else UsageError
        return kind(
            "the howdah program does not speak as this version does",
            where=where,
            expected=f"howdah {__version__}",
            got=got,
            remedy="look what `howdah --version` says there",
        )


class _Talk:
    """One conversation with a guard.

    Waits on pipes, never on locks: a signal handler of the main thread may call `stop` while that
    thread is inside `until_over`.
    """

    def __init__(self, streams: Streams, on_line: OnLine, *, beating: bool) -> None:
        self._streams = streams
        self._beating = beating
        self._on_line = on_line
        self._out: list[bytes] = []
        self._size = 0
        self._version: str | None = None
        self._greeted, self._greet = os.pipe()
        self._over, self._end = os.pipe()
        self.tail: list[str] = []
        self.code: int | None = None
        self._closed = False
        threading.Thread(target=self._follow, name="howdah-command", daemon=True).start()

    def _follow(self) -> None:
        """Read to the end, then tell the exit code; in a thread."""
        readers = [
            threading.Thread(target=read, daemon=True) for read in (self._read_out, self._read_err)
        ]
        for reader in readers:
            reader.start()
        if self._beating:
            threading.Thread(target=self._beat, daemon=True).start()
        code = self._streams.wait()
        for reader in readers:
            reader.join()
        self.code = code
        os.close(self._greet)
        os.close(self._end)

    def _beat(self) -> None:
        """Signs of life, until it has ended: the guard ends the command without them."""
        while not _readable(self._over, _BEAT_SECONDS):
            if self._version is not None and not self._closed:
                self.say(b"\n")

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
                self._heard(line.decode(errors="replace"))
        if rest:
            self._heard(rest.decode(errors="replace"))

    def _heard(self, line: str) -> None:
        if self._version is None and line.startswith(HELLO):
            self._version = line.removeprefix(HELLO).split()[0]
            os.write(self._greet, b".")
            return
        self.tail = [*self.tail[-_KEPT_LINES:], line]
        if line.strip():
            self._on_line(line)

    def hello(self, seconds: float) -> str | None:
        """The guard's version; None: it has ended, or not spoken, without one."""
        if _readable(self._greeted, seconds) and self._version is None:
            self.until_over()  # its exit code is about to be told
        return self._version

    def say(self, data: bytes) -> None:
        """To the guard; that it is gone shows elsewhere."""
        with contextlib.suppress(OSError):
            self._streams.send(data)

    def until_over(self) -> None:
        """Until the command has ended and all that it said is heard."""
        while not _readable(self._over, 3600.0):
            pass

    def stop(self, seconds: float) -> None:
        """Ask for the end and wait for it; after that the guard does the rest without us."""
        if self._closed:
            return
        self.say(b"stop\n")
        if not _readable(self._over, seconds):
            self._streams.close()

    def close(self) -> None:
        """Let go of the guard."""
        self._closed = True
        self._streams.close()

    def __del__(self) -> None:  # not before: threads wait on them to the last
        os.close(self._greeted)
        os.close(self._over)

    def result(self) -> dict[str, Any] | None:
        """The JSON object on the last line of stdout (a login may have said something before)."""
        lines = b"".join(self._out).decode(errors="replace").strip().splitlines()
        for text in ("\n".join(lines), lines[-1] if lines else ""):
            with contextlib.suppress(ValueError):
                found = json.loads(text)
                if isinstance(found, dict):
                    return found
        return None


def _readable(handle: int, seconds: float) -> bool:
    """True once a pipe has something, or its writing end is closed."""
    watch = select.poll()  # not select(): a worker may have more open files than that counts
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
                remedy="install Howdah with what the run needs, and name its program (an absolute"
                " path) in the Connection's field command",
            ) from None


class _Process(Streams):
    def __init__(self, argv: Sequence[str]) -> None:
        # A session of its own: Airflow kills its task's process group, and the guard is to end
        # the command in order then.
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
    """This process's environment without Airflow's own settings: some of them are secrets."""
    hidden = ("AIRFLOW__", "_AIRFLOW_", "AIRFLOW_CONN_", "AIRFLOW_VAR_", "HOWDAH_TTY")
    return {name: value for name, value in os.environ.items() if not name.startswith(hidden)}


def local_command() -> str:
    """The howdah program of this Python; just its name where it lies elsewhere on the PATH."""
    beside = os.path.join(os.path.dirname(sys.executable), "howdah")
    return beside if os.access(beside, os.X_OK) else "howdah"


def shown(argv: Sequence[str]) -> str:
    """A command as a shell takes it."""
    return shlex.join(argv)
