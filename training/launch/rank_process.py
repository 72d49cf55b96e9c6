"""The rank of `howdah train` while it runs: asked to stop, given its time, ended as a whole."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence

from howdah.core.child import Child
from howdah.process import isolation
from howdah.process.env import TERMINAL
from howdah.training.launch.guard import guarded
from howdah.training.process import failure
from howdah.training.run.local_dir import RankRecord

_POLL_SECONDS = 0.1
_TERM_SECONDS = 2.0
"""Between SIGTERM and SIGKILL for a rank that is to end at once."""
_LEAVE_SECONDS = 15.0
"""A rank that has written its failure has this long to end, and `checkpoint.grace_seconds` where
that is more: a save may be under way."""
_ASK = {
    signal.SIGINT: signal.SIGUSR1,
    signal.SIGTERM: signal.SIGUSR2,
    signal.SIGHUP: signal.SIGUSR2,
}


class RankProcess:
    """The process of the rank; what it starts is in its session, and ends with it.

    Args:
        grace_seconds: how long a save may take before the rank is killed.
    """

    def __init__(self, argv: Sequence[str], local: str, *, grace_seconds: float) -> None:
        self._argv = argv
        self._local = local
        self._grace_seconds = grace_seconds
        self._leave_seconds = max(_LEAVE_SECONDS, grace_seconds)
        self._output = _Output(os.path.join(local, "logs", "output"))
        self._signals: list[int] = []
        self.pid = 0
        """Its process id, once `run` has started it."""
        self.asked_by: int | None = None
        """The signal that asked us to stop."""
        self.killed = False
        """It did not stop in time."""
        self.lost = False
        """It vanished in the middle of training: it has written neither an end nor a failure."""
        self.exit_code = 0

    def run(self) -> None:
        """Start it and watch it; returns when no process is left."""
        old = {number: signal.getsignal(number) for number in _ASK}
        for number in _ASK:
            if old[number] is not signal.SIG_IGN or number != signal.SIGHUP:  # nohup stays nohup
                signal.signal(number, lambda number, frame: self._signals.append(number))
        try:
            # Where `howdah train` is killed, the kernel sends the rank SIGTERM, so that it saves,
            # and the guard sees that it ends.
            child = Child(
                self._argv, env=_environment(), on_line=self._output.take, grace=_TERM_SECONDS
            )
            self.pid = child.pid
            try:
                with guarded(child.pid, self._leave_seconds):
                    self._watch(child)
            finally:
                child.end()
                child.read_rest()
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)
        self.exit_code = child.code

    def _watch(self, child: Child) -> None:
        """Pass signals on until the rank has ended, or its time is over."""
        deadline, handled = float("inf"), 0
        while child.alive:
            if len(self._signals) > handled:
                line = None
                if handled == 0:
                    seconds, line = self._ask_to_stop(child, self._signals[0])
                    deadline = time.monotonic() + seconds
                else:
                    deadline = 0.0  # asked again: at once
                # Up to here it is one request: `timeout` and a closing terminal send theirs twice.
                # Before the line is shown: a signal that answers it is another request.
                handled = len(self._signals)
                if line is not None:
                    _show(line)
            if deadline == float("inf") and failure.first(self._local) is not None:
                deadline = time.monotonic() + self._leave_seconds
            if time.monotonic() > deadline:
                self.killed = self._record() is not None
                return
            child.wait(_POLL_SECONDS)
        record = self._record()
        unsaid = record is not None and not record.ended
        self.lost = unsaid and failure.first(self._local) is None

    def _ask_to_stop(self, child: Child, number: int) -> tuple[float, str]:
        """Ask it to save and stop; returns the seconds to wait for it, and what to show."""
        self.asked_by = number
        name = signal.Signals(number).name
        if self._record() is None:  # it does not handle the request yet
            return 0.0, f"{name}: stopping; training has not begun"
        child.send(_ASK[signal.Signals(number)])
        seconds = self._grace_seconds
        again = "send it again to kill at once"
        return seconds, f"{name}: saving a checkpoint, at most {seconds:g} s ({again})"

    def _record(self) -> RankRecord | None:
        """What it has put on record; None: it has not come so far."""
        return next(iter(RankRecord.read_all(self._local)), None)


class _Output:
    """Shows on stderr what the rank writes outside its own log, and keeps it: its progress, and
    all that it says before it has a log, such as the traceback of an import that failed.
    """

    def __init__(self, log: str) -> None:
        self._log: str | None = log

    def take(self, line: str) -> None:
        """Take a line. A log that cannot be written is reported once, and ends nothing: the rank
        would stop at a full pipe."""
        _show(line)
        if self._log is None:
            return
        try:
            os.makedirs(os.path.dirname(self._log), exist_ok=True)
            with open(self._log, "a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            _show(f"howdah: {self._log}: {error.strerror}")
            self._log = None


def _show(line: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # stderr is closed, or its terminal is gone
        print(line, file=sys.stderr, flush=True)


def _environment() -> dict[str, str]:
    """The environment of the rank; what a rank can set for itself, it does
    (howdah/process/env.py)."""
    env = isolation.environment()
    env["HOWDAH_STARTED"] = repr(time.time())  # rounded, it could lie in the future
    env.pop(TERMINAL, None)
    with contextlib.suppress(OSError):  # stderr is not a terminal
        env[TERMINAL] = os.ttyname(2)
    return env
