"""`howdah guard -- COMMAND...`: run one howdah command that lives no longer than who asked for it.

Whoever starts a command for another (Airflow here, or over SSH) may be killed or lose the
connection at any moment. The guard stands between: it holds the asker's end of stdin, and when
that closes, falls silent or says "stop", ends the command in order (SIGTERM: a checkpoint is
saved, an application is killed) and after a grace for good, with everything below it.

Standard input, in this order:
- one line of JSON: config (text of the run configuration, for `--config -`), environment,
  directory, grace_seconds, silence_seconds (null: silence means nothing), lock (one guard at a
  time has it; the next one waits until it is free)
- then any lines: an empty one is a sign of life, "stop" asks for the end.
The first line on stderr is `HELLO`'s; all else on stdout and stderr is the command's.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from howdah import __version__
from howdah.cache import cache_root
from howdah.errors import UsageError
from howdah.processes import adopt_orphans, descendants, die_with_parent

__all__ = ["HELLO", "guard"]

HELLO = "howdah guard "
"""How the first line on stderr begins; version and pid follow."""

_FAREWELL_SECONDS = 5.0
"""What processes that a command leaves behind have to end by themselves (a JVM that closes)."""
_TURN_SECONDS = 1.0
_ENDED_BY_STOP = 143


@dataclass(frozen=True)
class _Order:
    """The first line of stdin."""

    config: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    directory: str | None = None
    grace_seconds: float = 60.0
    silence_seconds: float | None = None
    lock: str | None = None


def guard(words: Sequence[str]) -> int:
    """Run `howdah WORDS` under guard; its exit code.

    Raises:
        UsageError: stdin is not what the module's text says.
    """
    print(f"{HELLO}{__version__} pid {os.getpid()}", file=sys.stderr, flush=True)
    asker = _Asker(sys.stdin.fileno())
    order = asker.order()
    if order is None:  # gone before it has said anything
        return _ENDED_BY_STOP
    try:
        if order.directory is not None:
            os.makedirs(order.directory, exist_ok=True)
            os.chdir(order.directory)
    except OSError as error:
        raise UsageError(
            "the working directory cannot be used", where=order.directory, got=error.strerror
        ) from None
    os.environ.update(order.environment)
    lock = _take_lock(order.lock, asker)
    if asker.stopped:
        return _ENDED_BY_STOP
    adopt_orphans()
    return _Guarded(words, order, asker, lock).run()


class _Asker:
    """The asker's end: its lines, whether it is still there, and signals to this process."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._open = True
        self._rest = b""
        self._heard = time.monotonic()
        self._silence: float | None = None
        self.stopped = ""
        """Why the command is to end; empty: it is not."""
        self._wake, writing = os.pipe()
        for end in (self._wake, writing):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._asked)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def _asked(self, number: int, frame: object) -> None:
        self.stopped = self.stopped or signal.Signals(number).name

    def order(self) -> _Order | None:
        """The first line; None if the asker has gone, or wants no more."""
        line = self._line()
        while line is None:
            if self.stopped:
                return None
            self.wait(_TURN_SECONDS, lines=False)
            line = self._line()
        if line.strip() == b"stop":  # asked to end before it was told what to begin
            return None
        try:
            made = _Order(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise UsageError(
                "the guard's first line is not what it takes",
                where="stdin",
                expected="JSON with " + ", ".join(_Order.__dataclass_fields__),
                got=type(error).__name__,
                remedy="`howdah guard` is for programs that start howdah; start the command itself",
            ) from None
        self._silence = made.silence_seconds
        return made

    def wait(self, seconds: float, *, lines: bool = True) -> None:
        """Until something has happened, or for `seconds`; `stopped` tells of it.

        Args:
            lines: heed the lines that came; else they are kept.
        """
        watched = [self._wake, *([self._handle] if self._open else [])]
        ready, _, _ = select.select(watched, [], [], seconds)
        if self._wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, 4096)
        if self._handle in ready:
            data = os.read(self._handle, 65536)
            self._heard = time.monotonic()
            self._rest += data
            if not data:
                self._open = False
                self.stopped = self.stopped or "who asked for it has gone"
        while lines and (line := self._line()) is not None:
            if line.strip() == b"stop":
                self.stopped = self.stopped or "asked to end"
        if self._silence is not None and time.monotonic() - self._heard > self._silence:
            self.stopped = self.stopped or f"nothing heard for {self._silence:.0f} s"

    def _line(self) -> bytes | None:
        line, newline, rest = self._rest.partition(b"\n")
        if not newline:
            return None
        self._rest = rest
        return line


def _take_lock(key: str | None, asker: _Asker) -> BinaryIO | None:
    """Wait until no other guard of this machine has this lock, or until nobody waits for us."""
    if key is None:
        return None
    directory = os.path.join(cache_root(), "guards")
    os.makedirs(directory, mode=0o700, exist_ok=True)
    path = os.path.join(directory, hashlib.sha256(key.encode()).hexdigest()[:32])
    file = open(path, "ab", buffering=0)  # noqa: SIM115 - held until the command has ended
    told = False
    while not asker.stopped:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            if not told:
                _say("the same command of an earlier try is still ending: waiting for it")
                told = True
            asker.wait(_TURN_SECONDS / 4)
    file.close()
    return None


class _Guarded:
    """The command's process, what is below it, and its output on the way to the asker."""

    def __init__(
        self, words: Sequence[str], order: _Order, asker: _Asker, lock: BinaryIO | None
    ) -> None:
        self._argv = [sys.executable, "-m", "howdah.cli", *words]
        self._order = order
        self._asker = asker
        self._lock = lock

    def run(self) -> int:
        """Start it, see it to its end, end what it left; its exit code as a shell tells it."""
        child = self._start()
        relays = [
            threading.Thread(target=_relay, args=(stream, out), daemon=True)
            for stream, out in ((child.stdout, 1), (child.stderr, 2))
        ]
        for relay in relays:
            relay.start()
        asked_at: float | None = None
        while child.poll() is None:
            self._asker.wait(_TURN_SECONDS)
            if self._asker.stopped and asked_at is None:
                asked_at = time.monotonic()
                _say(f"{self._asker.stopped}: ending `howdah {' '.join(self._argv[3:])}`")
                with contextlib.suppress(ProcessLookupError):
                    child.send_signal(signal.SIGTERM)
            if asked_at is not None and time.monotonic() - asked_at > self._order.grace_seconds:
                _say(f"it has not ended within {self._order.grace_seconds:.0f} s: killed")
                _kill_all()
        self._end_the_rest(gently=asked_at is None)
        for relay in relays:
            relay.join(_FAREWELL_SECONDS)
        code = child.returncode
        return code if code >= 0 else 128 - code

    def _start(self) -> subprocess.Popen[bytes]:
        with contextlib.ExitStack() as stack:
            stdin: Any = subprocess.DEVNULL
            if self._order.config is not None:
                stdin = stack.enter_context(tempfile.TemporaryFile())  # it has no name to be left
                stdin.write(self._order.config.encode())
                stdin.seek(0)
            return subprocess.Popen(
                self._argv, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                start_new_session=True,
                # Killed itself, the guard ends it in order all the same, and the lock stays.
                preexec_fn=lambda: die_with_parent(signal.SIGTERM),
                pass_fds=[self._lock.fileno()] if self._lock is not None else (),
            )  # fmt: skip

    def _end_the_rest(self, *, gently: bool) -> None:
        """End what the command has left behind: orphans are this process's children."""
        until = time.monotonic() + (_FAREWELL_SECONDS if gently else _TURN_SECONDS)
        while descendants(os.getpid()):
            _reap()
            if time.monotonic() > until:
                _kill_all()
            time.sleep(0.02)
        _reap()


def _kill_all() -> None:
    for pid in descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _reap() -> None:
    """Take leave of adopted processes that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _relay(stream: BinaryIO, out: int) -> None:
    """Hand on a stream; when nobody reads any more, go on reading: the command must not notice."""
    heard = True
    while data := os.read(stream.fileno(), 65536):
        while heard and data:
            try:
                data = data[os.write(out, data) :]
            except OSError:
                heard = False


def _say(line: str) -> None:
    """A line of the guard's own; nobody may be reading."""
    with contextlib.suppress(OSError):
        os.write(2, f"howdah: {line}\n".encode())
