"""`howdah guard -- COMMAND...`: run one howdah command that does not outlive its caller.

The caller (Airflow, here or over SSH) may be killed or lose its connection at any moment. The
supervisor runs between caller and command. When its stdin closes, stays silent for too long or
says "stop", it sends the command SIGTERM (which saves a checkpoint, or kills an application) and,
after a grace period, SIGKILL to it and to every process below it.

Standard input:
- one line of JSON: config (text of the run configuration, for `--config -`), policy (text of the
  policy that applies to the command, for `--policy`), environment, directory, grace_seconds,
  silence_seconds (null: no limit), lock (held by one supervisor at a time; the next one waits)
- then any lines: an empty line is a heartbeat, "stop" ends the command.
The first line on stderr begins with `HELLO`; all else on stdout and stderr is the command's.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from howdah import __version__
from howdah.core import threads
from howdah.core.cache import cache_root
from howdah.core.processes import (
    adopt_orphans,
    descendants,
    die_with_parent,
    is_named,
    locked,
    reap,
)
from howdah.errors import UsageError
from howdah.faults import typed
from howdah.process import isolation

HELLO = "howdah guard "
"""Beginning of the first line on stderr; version and pid follow."""

_EXIT_GRACE_SECONDS = 5.0
"""For processes that outlive the command to exit by themselves (a JVM that shuts down)."""
_LOCK_MAX_AGE_SECONDS = 30 * 86400.0
"""A lock file is removed this long after its last use."""
_LOCKING = "lock this task's file in the cache"
_POLL_SECONDS = 1.0
_ENDED_BY_STOP = 143


@dataclass(frozen=True)
class _Request:
    """The first line of stdin."""

    config: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    directory: str | None = None
    grace_seconds: float = 60.0
    silence_seconds: float | None = None
    lock: str | None = None
    policy: str | None = None


def supervise(argv: Sequence[str], policies: Sequence[str] = ()) -> int:
    """Run `howdah ARGV` until it ends or its caller goes away; the exit code.

    Args:
        argv: the command's arguments.
        policies: files of this machine's policies, which apply besides the request's.
    Raises:
        UsageError: the first line of stdin is not a request, or stdin is closed.
    """
    if sys.stdin is None:
        raise UsageError(
            "stdin is closed",
            where="stdin",
            remedy="`howdah guard` is for programs; run the command itself",
        )
    print(f"{HELLO}{__version__} pid {os.getpid()}", file=sys.stderr, flush=True)
    caller = _Caller(sys.stdin.fileno())
    request = caller.request()
    if request is None:  # the caller has gone, or sent "stop" instead of a request
        return _ENDED_BY_STOP
    try:
        if request.directory is not None:
            os.makedirs(request.directory, exist_ok=True)
            os.chdir(request.directory)
    except OSError as error:
        raise UsageError(
            "the working directory cannot be used", where=request.directory, got=error.strerror
        ) from None
    os.environ.update(request.environment)
    lock = _acquire_lock(request.lock, caller)
    if caller.stopped:
        return _ENDED_BY_STOP
    adopt_orphans()
    return _Command(argv, policies, request, caller, lock).run()


class _Caller:
    """The caller's lines on stdin, whether it is still there, and signals to this process."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._open = True
        self._rest = b""
        self._heard = time.monotonic()
        self._silence: float | None = None
        self.stopped = ""
        """Why the command must end; empty: it need not."""
        self._wake, writing = os.pipe()
        for end in (self._wake, writing):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def _on_signal(self, number: int, frame: object) -> None:
        self.stopped = self.stopped or signal.Signals(number).name

    def request(self) -> _Request | None:
        """The first line; None if the caller has gone, or sent "stop"."""
        line = self._line()
        while line is None:
            if self.stopped:
                return None
            self.wait(_POLL_SECONDS, lines=False)
            line = self._line()
        if line.strip() == b"stop":
            return None
        try:
            request = _Request(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise UsageError(
                "the first line is not a request to `howdah guard`",
                where="stdin",
                expected="JSON with " + ", ".join(_Request.__dataclass_fields__),
                got=type(error).__name__,
                remedy="`howdah guard` is for programs that start howdah; start the command itself",
            ) from None
        self._silence = request.silence_seconds
        return request

    def wait(self, seconds: float, *, lines: bool = True) -> None:
        """Wait for input, a signal or `seconds`, and set `stopped` if the command must end.

        Args:
            lines: read the lines that came; False leaves them for `request`.
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
                self.stopped = self.stopped or "the caller has gone"
        while lines and (line := self._line()) is not None:
            if line.strip() == b"stop":
                self.stopped = self.stopped or "stopped by the caller"
        if self._silence is not None and time.monotonic() - self._heard > self._silence:
            self.stopped = self.stopped or f"nothing heard for {self._silence:.0f} s"

    def _line(self) -> bytes | None:
        line, newline, rest = self._rest.partition(b"\n")
        if not newline:
            return None
        self._rest = rest
        return line


def _acquire_lock(key: str | None, caller: _Caller) -> BinaryIO | None:
    """Wait until no other supervisor on this machine has the lock, or until the caller stops us."""
    if key is None:
        return None
    directory = os.path.join(cache_root(), "guards")
    path = os.path.join(directory, hashlib.sha256(key.encode()).hexdigest()[:32])
    with typed(path, _LOCKING):
        os.makedirs(directory, mode=0o700, exist_ok=True)
        _sweep(directory)
        file = open(path, "ab", buffering=0)  # noqa: SIM115 - held until the command has ended
    announced = False
    while not caller.stopped:
        with typed(path, _LOCKING):  # a file system without locks
            is_ours = locked(file)
        if not is_ours:
            if not announced:
                _say("the same command of an earlier try is still ending: waiting for it")
                announced = True
            caller.wait(_POLL_SECONDS / 4)
            continue
        if is_named(file, path):
            os.utime(file.fileno())
            return file
        file.close()  # swept since it was opened: the next process would lock another file
        file = open(path, "ab", buffering=0)  # noqa: SIM115 - likewise
    file.close()
    return None


def _sweep(directory: str) -> None:
    """Remove lock files that no command has used for long: each task of each run makes one."""
    oldest = time.time() - _LOCK_MAX_AGE_SECONDS
    with contextlib.suppress(OSError):
        for entry in os.scandir(directory):
            with contextlib.suppress(OSError):  # swept by another process
                if entry.stat(follow_symlinks=False).st_mtime > oldest:
                    continue
                with open(entry.path, "rb") as file:
                    # A process that has it open and waits notices that its name is gone.
                    unused = locked(file) and os.fstat(file.fileno()).st_mtime <= oldest
                    if unused and is_named(file, entry.path):
                        os.unlink(entry.path)


class _Command:
    """The command's process, its descendants, and its output on the way to the caller."""

    def __init__(
        self,
        argv: Sequence[str],
        policies: Sequence[str],
        request: _Request,
        caller: _Caller,
        lock: BinaryIO | None,
    ) -> None:
        self._argv = list(argv)
        self._policies = list(policies)
        self._request = request
        self._caller = caller
        self._lock = lock

    def run(self) -> int:
        """Run the command to its end, then end its descendants; the exit code as a shell has it."""
        child = self._start()
        # A full pipe would block the command, so the relays keep reading whatever happens.
        relays = [
            threads.start(_relay, stream, out, name=f"relay-{out}", failed=threads.RESTART)
            for stream, out in ((child.stdout, 1), (child.stderr, 2))
        ]
        asked_at: float | None = None
        while child.poll() is None:
            self._caller.wait(_POLL_SECONDS)
            if self._caller.stopped and asked_at is None:
                asked_at = time.monotonic()
                _say(f"{self._caller.stopped}: ending `howdah {' '.join(self._argv)}`")
                with contextlib.suppress(ProcessLookupError):
                    child.send_signal(signal.SIGTERM)
            if asked_at is not None and time.monotonic() - asked_at > self._request.grace_seconds:
                _say(f"it has not ended within {self._request.grace_seconds:.0f} s: killed")
                _kill_all()
        self._end_descendants(gently=asked_at is None)
        for relay in relays:
            relay.join(_EXIT_GRACE_SECONDS)
        code = child.returncode
        return code if code >= 0 else 128 - code

    def _start(self) -> subprocess.Popen[bytes]:
        with contextlib.ExitStack() as stack:
            stdin: Any = subprocess.DEVNULL
            policies, passed = [*self._policies], []
            if self._request.config is not None:
                stdin = stack.enter_context(_unlinked_file(self._request.config))
            if self._request.policy is not None:
                file = stack.enter_context(_unlinked_file(self._request.policy))
                passed.append(file.fileno())
                policies.append(f"/proc/self/fd/{file.fileno()}")
            if self._lock is not None:
                passed.append(self._lock.fileno())
            # The working directory is the Connection's: what lies there is never run as ours.
            argv = isolation.module("howdah.cli")
            for policy in policies:
                argv += ["--policy", policy]
            return subprocess.Popen(
                [*argv, *self._argv], env=isolation.environment(), stdin=stdin,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                start_new_session=True,
                # SIGTERM ends the command in order even if the supervisor itself is killed, and
                # the command holds the lock until then.
                preexec_fn=lambda: die_with_parent(signal.SIGTERM),
                pass_fds=passed,
            )  # fmt: skip

    def _end_descendants(self, *, gently: bool) -> None:
        """End what the command has left running: orphans are this process's children."""
        until = time.monotonic() + (_EXIT_GRACE_SECONDS if gently else _POLL_SECONDS)
        while descendants(os.getpid()):
            reap()
            if time.monotonic() > until:
                _kill_all()
            time.sleep(0.02)
        reap()


def _unlinked_file(text: str) -> Any:
    """An open file with this text and without a name, so that a kill leaves no file."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller's to close
    file.write(text.encode())
    file.seek(0)
    return file


def _kill_all() -> None:
    for pid in descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _relay(stream: BinaryIO, out: int) -> None:
    """Copy a stream to `out`; when `out` is closed keep reading, so that the command can write."""
    writable = True
    while data := os.read(stream.fileno(), 65536):
        while writable and data:
            try:
                data = data[os.write(out, data) :]
            except OSError:
                writable = False


def _say(line: str) -> None:
    """Write a line of the supervisor's own to stderr, which may be closed."""
    with contextlib.suppress(OSError):
        os.write(2, f"howdah: {line}\n".encode())
