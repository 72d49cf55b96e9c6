"""The ranks of `howdah train` while they run: asked to stop, missed when lost, ended with it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time

from howdah.core.child import Child
from howdah.training.launch import command as launch_command
from howdah.training.launch.guard import guarded
from howdah.training.launch.output import Relay
from howdah.training.process import failure
from howdah.training.run.local_dir import RankRecord

_POLL_SECONDS = 0.1
_EXIT_SECONDS = 1.0
"""Time that the launcher has to exit once all ranks are gone."""
_LAUNCHER_SECONDS = 2.0
"""Between SIGTERM and SIGKILL for a launcher that is to end."""
_TEARDOWN_SECONDS = 15.0
"""After a rank has failed or vanished, the others have this long, and `checkpoint.grace_seconds`
where that is more: rank 0 saves its last step."""
_ASK = {
    signal.SIGINT: signal.SIGUSR1,
    signal.SIGTERM: signal.SIGUSR2,
    signal.SIGHUP: signal.SIGUSR2,
}


class Ranks:
    """The launcher's process and, through their records, the ranks below it.

    Args:
        argv: the launcher's command.
        program: its name, for messages.
        local: the run's local directory.
        np: ranks.
        all_local: all of them run on this machine.
        grace_seconds: how long a save may take before they are killed.
    """

    def __init__(
        self,
        argv: list[str],
        program: str,
        local: str,
        *,
        np: int,
        all_local: bool,
        grace_seconds: float,
    ) -> None:
        self._argv = argv
        self.program = program
        self._local = local
        self._np = np
        self._all_local = all_local
        self._grace_seconds = grace_seconds
        self._teardown_seconds = max(_TEARDOWN_SECONDS, grace_seconds)
        self._relay = Relay(sys.stderr, os.path.join(local, "logs", "launcher"))
        self._scratch = tempfile.mkdtemp(prefix="howdah-")
        self._signals: list[int] = []
        self.asked_by: int | None = None
        """The signal that asked us to stop."""
        self.killed = False
        """The ranks did not stop in time."""
        self.exit_code = 0
        self.lost: dict[int, float] = {}
        """Ranks that vanished without a failure record, and when (unix time)."""
        self.records: dict[int, RankRecord] = {}

    def run(self) -> None:
        """Start, watch, and clean up; returns when no process is left."""
        old = {number: signal.getsignal(number) for number in _ASK}
        for number in _ASK:
            if old[number] is not signal.SIG_IGN or number != signal.SIGHUP:  # nohup stays nohup
                signal.signal(number, lambda number, frame: self._signals.append(number))
        try:
            # Where `howdah train` is killed, the kernel sends SIGTERM, and the guard does the rest.
            child = Child(
                self._argv,
                env=launch_command.environment(
                    os.environ,
                    terminal=_terminal(),
                    scratch=self._scratch if self._all_local else None,
                ),
                on_line=self._relay.take,
                grace=_LAUNCHER_SECONDS,
            )
            try:
                with (
                    guarded(self._local, child.pid, self._teardown_seconds)
                    if self._all_local
                    else contextlib.nullcontext()
                ):
                    self._watch(child)
            finally:
                self._clean_up(child)
                child.read_rest()
                self._relay.finish()
        finally:
            shutil.rmtree(self._scratch, ignore_errors=True)
            for number, handler in old.items():
                signal.signal(number, handler)
        self.exit_code = child.code

    def _watch(self, child: Child) -> None:
        deadline, handled = float("inf"), 0
        while child.alive:
            if len(self._signals) > handled:
                line = None
                if handled == 0:
                    seconds, line = self._ask_to_stop(self._signals[0])
                    deadline = time.monotonic() + seconds
                else:
                    deadline = 0.0  # asked again: at once
                # Up to here it is one request: `timeout` and a closing terminal send theirs twice.
                # Before the line is shown: a signal that answers it is another request.
                handled = len(self._signals)
                if line is not None:
                    print(line, file=sys.stderr, flush=True)
            self._look_for_lost_ranks()
            if deadline == float("inf") and self._broken():
                self._tear_down()
                deadline = time.monotonic() + self._teardown_seconds
            if time.monotonic() > deadline:
                self.killed = any(record.alive for record in self._read_records())
                return
            if self._over():
                # mpirun waits its whole teardown time even when no rank is left.
                deadline = min(deadline, time.monotonic() + _EXIT_SECONDS)
            child.wait(_POLL_SECONDS)
        self._look_for_lost_ranks()

    def _broken(self) -> bool:
        """A rank has failed or vanished: the others can only wait for it."""
        return bool(self.lost) or failure.first(self._local) is not None

    def _tear_down(self) -> None:
        """End the other ranks as their launcher will, but at once: mpirun waits first.

        To a rank of several, SIGTERM means that no collective can be trusted any more; rank 0
        saves the last step it has completed. A rank that has written its failure is ending already.
        """
        reported = {one.rank for one in failure.read_all(self._local)}
        for record in self._read_records():
            if record.rank not in reported:
                record.send(signal.SIGTERM)

    def _over(self) -> bool:
        """Training has ended badly, and every rank of it is gone."""
        records = self.records.values()
        if len(records) < self._np or any(r.alive or not r.is_local for r in records):
            return False
        return self._broken()

    def launcher_message(self) -> str:
        """The launcher's own last message, which was not shown."""
        return self._relay.held_back()

    def _ask_to_stop(self, number: int) -> tuple[float, str]:
        """Ask every rank to save and stop; returns the seconds to wait for it, and what to show."""
        self.asked_by = number
        alive = [record for record in self._read_records() if record.is_local and record.alive]
        for record in alive:
            record.send(_ASK[signal.Signals(number)])
        name = signal.Signals(number).name
        if not alive:
            return 0.0, f"{name}: stopping, training has not begun"
        seconds = self._grace_seconds
        return seconds, f"{name}: saving a checkpoint, at most {seconds:g} s (once more: kill)"

    def _read_records(self) -> list[RankRecord]:
        for record in RankRecord.read_all(self._local):
            self.records[record.rank] = record
        return list(self.records.values())

    def _look_for_lost_ranks(self) -> None:
        """Find ranks of this machine whose process is gone without a failure record."""
        running = [r for r in self.records.values() if not r.ended and r.rank not in self.lost]
        if len(self.records) < self._np or any(not record.alive for record in running):
            running = [r for r in self._read_records() if not r.ended and r.rank not in self.lost]
        gone = [record for record in running if record.is_local and not record.alive]
        if gone:
            reported = {one.rank for one in failure.read_all(self._local)}
            # The record may have been completed between our two looks.
            ended = {r.rank for r in RankRecord.read_all(self._local) if r.ended}
            for record in gone:
                if record.rank not in reported | ended:
                    self.lost[record.rank] = time.time()

    def _clean_up(self, child: Child) -> None:
        """End all processes that are left of the job."""
        child.end()
        for record in self._read_records():
            record.send(signal.SIGKILL)


def _terminal() -> str | None:
    """The terminal of our stderr, if it is one."""
    try:
        return os.ttyname(2)
    except OSError:
        return None
