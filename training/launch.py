"""`howdah train`: starts the ranks, watches over them, and says in the end what came of it.

It passes on Ctrl-C and SIGTERM as an orderly request and waits for the checkpoint (by themselves
mpirun would kill after one second, horovodrun after five), notices a rank that vanished, leaves no
process behind, and shows the first failing rank's error last.
"""

from __future__ import annotations

import contextlib
import json as _json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

from howdah import errors, growing, storage
from howdah.config import Config
from howdah.errors import (
    CheckpointError,
    ClusterError,
    ConfigError,
    DataError,
    HowdahError,
    Interrupted,
    StorageError,
    Terminated,
    TokensExpiring,
    TrainingError,
    UsageError,
)
from howdah.processes import die_with_parent
from training import env, failure, launch_command
from training.checkpoint import Checkpoints
from training.launch_output import Relay
from training.place import RankRecord, RunLock, local_directory
from training.runfile import RunFile, freeze_config

__all__ = ["train"]

_POLL_SECONDS = 0.1
_FAREWELL_SECONDS = 1.0
"""What the launcher has for its own end once all ranks are gone."""
_TEARDOWN_SECONDS = 15.0
"""After a rank has failed or vanished, the others have this long, and `checkpoint.grace_seconds`
where that is more: rank 0 saves its last step."""

_BY_EXIT_CODE: dict[int, type[HowdahError]] = {
    error.exit_code: error
    for error in (UsageError, DataError, CheckpointError, StorageError, TrainingError,
                  Interrupted, Terminated)
}  # fmt: skip
_ASK = {
    signal.SIGINT: signal.SIGUSR1,
    signal.SIGTERM: signal.SIGUSR2,
    signal.SIGHUP: signal.SIGUSR2,
}


def train(
    config: Config,
    *,
    np: int = 1,
    launcher: launch_command.Launcher = "mpirun",
    hosts: str | None = None,
    json: bool = False,
) -> int:
    """Train with `np` ranks and wait for the end.

    Args:
        config: checked configuration; it is frozen into the run directory, where ranks read it.
        np: ranks.
        launcher: mpirun or horovodrun (Gloo); one rank needs none.
        hosts: "node1:2,node2:2"; None: this machine.
        json: print one JSON object about the run to stdout.
    Returns:
        0; every other end is raised.
    Raises:
        HowdahError: what the first failing rank died of, with its exit code.
    """
    if config.training.global_batch_size < np:
        raise ConfigError(
            "training.global_batch_size is smaller than the world",
            where="training.global_batch_size",
            expected=f"at least {np}, one row for each rank",
            got=str(config.training.global_batch_size),
            remedy="raise it, or start fewer ranks",
        )
    directory = config.run.directory
    local = local_directory(directory)
    lock = RunLock(local, ".launch.lock", directory)
    lock.take()
    try:
        _refuse_if_in_use(local, directory)
        failure.clear(local)
        RankRecord.clear(local)
        argv = launch_command.command(
            freeze_config(config, directory),
            np=np,
            launcher=launcher,
            hosts=hosts,
            cores=env.available_cores(),
            is_root=os.geteuid() == 0,
            grace_seconds=config.checkpoint.grace_seconds,
        )
        print(f"+ {launch_command.shown(argv)}", file=sys.stderr, flush=True)
        job = _Job(
            argv,
            launcher if np > 1 or hosts else "training",
            local,
            np=np,
            all_local=hosts is None,
            grace_seconds=config.checkpoint.grace_seconds,
        )
        job.run()
        error = _what_went_wrong(job, config, local)
        _close_books(config, local, error)
        if error is not None:
            raise error
    finally:
        lock.release()
    if json:
        print(_json.dumps(_summary(directory), ensure_ascii=False))
    return 0


def _refuse_if_in_use(local: str, directory: str) -> None:
    """Refuse while ranks that somebody started without us are at work here."""
    probe = RunLock(local, ".lock", directory)
    probe.take()
    probe.release()


class _Job:
    """The launcher's process and, through their records, the ranks below it."""

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
        self._relay = Relay(sys.stderr, os.path.join(local, "logs", "launcher"))
        self._scratch = tempfile.mkdtemp(prefix="howdah-")
        self._signals: list[int] = []
        self.asked_by: int | None = None
        """The signal that asked us to stop."""
        self.killed = False
        """The ranks did not stop in time."""
        self.exit_code = 0
        self.lost: dict[int, float] = {}
        """Ranks that vanished without a word, and when (unix time)."""
        self.records: dict[int, RankRecord] = {}

    def run(self) -> None:
        """Start, watch, and clean up; comes back when no process is left."""
        old = {number: signal.getsignal(number) for number in _ASK}
        for number in _ASK:
            if old[number] is not signal.SIG_IGN or number != signal.SIGHUP:  # nohup stays nohup
                signal.signal(number, lambda number, frame: self._signals.append(number))
        try:
            child = subprocess.Popen(
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=launch_command.environment(
                    os.environ,
                    terminal=_terminal(),
                    scratch=self._scratch if self._all_local else None,
                ),
                start_new_session=True,  # a Ctrl-C at the terminal is ours to pass on
                preexec_fn=_end_with_parent,
            )
            self._relay.start(child.stdout)
            try:
                self._watch(child)
            finally:
                self._clean_up(child)
                self._relay.finish()
        finally:
            shutil.rmtree(self._scratch, ignore_errors=True)
            for number, handler in old.items():
                signal.signal(number, handler)
        self.exit_code = child.returncode

    def _watch(self, child: subprocess.Popen) -> None:
        deadline, handled = float("inf"), 0
        while child.poll() is None:
            if len(self._signals) > handled:
                if handled == 0:
                    deadline = time.monotonic() + self._ask_to_stop(self._signals[0])
                else:
                    deadline = 0.0  # asked again: at once
                handled = len(self._signals)
            self._look_for_lost_ranks()
            if deadline == float("inf") and self._broken():
                self._tear_down()
                deadline = time.monotonic() + max(_TEARDOWN_SECONDS, self._grace_seconds)
            if time.monotonic() > deadline:
                self.killed = any(record.alive for record in self._read_records())
                return
            if self._over():
                # mpirun waits its whole teardown time even when there is nobody left to wait for.
                deadline = min(deadline, time.monotonic() + _FAREWELL_SECONDS)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_POLL_SECONDS)
        self._look_for_lost_ranks()

    def _broken(self) -> bool:
        """A rank has failed or vanished: the others can only wait for it."""
        return bool(self.lost) or failure.first(self._local) is not None

    def _tear_down(self) -> None:
        """End the other ranks as their launcher will, but at once: mpirun thinks it over first.

        To a rank of several, SIGTERM means that no collective can be trusted any more; rank 0
        saves the last step it has completed. Who has said why it ends is on its way out already.
        """
        spoke = {told.rank for told in failure.read_all(self._local)}
        for record in self._read_records():
            if record.is_local and record.alive and record.rank not in spoke:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(record.pid, signal.SIGTERM)

    def _over(self) -> bool:
        """Training has ended badly, and every rank of it is gone."""
        records = self.records.values()
        if len(records) < self._np or any(r.alive or not r.is_local for r in records):
            return False
        return self._broken()

    def told_by_launcher(self) -> str:
        """What the launcher itself has said at the end, and nobody has been shown."""
        return self._relay.held_back()

    def _ask_to_stop(self, number: int) -> float:
        """Ask every rank to save and stop; returns the seconds to wait for it."""
        self.asked_by = number
        asked = [record for record in self._read_records() if record.is_local and record.alive]
        for record in asked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(record.pid, _ASK[signal.Signals(number)])
        name = signal.Signals(number).name
        if not asked:
            print(f"{name}: stopping, training has not begun", file=sys.stderr, flush=True)
            return 0.0
        print(
            f"{name}: saving a checkpoint, at most {self._grace_seconds:g} s (once more: kill)",
            file=sys.stderr, flush=True,
        )  # fmt: skip
        return self._grace_seconds

    def _read_records(self) -> list[RankRecord]:
        for record in RankRecord.read_all(self._local):
            self.records[record.rank] = record
        return list(self.records.values())

    def _look_for_lost_ranks(self) -> None:
        """Notice ranks of this machine whose process is gone and which left no word."""
        running = [r for r in self.records.values() if not r.ended and r.rank not in self.lost]
        if len(self.records) < self._np or any(not record.alive for record in running):
            running = [r for r in self._read_records() if not r.ended and r.rank not in self.lost]
        gone = [record for record in running if record.is_local and not record.alive]
        if gone:
            spoke = {told.rank for told in failure.read_all(self._local)}
            # The record may have been completed between our two looks.
            ended = {r.rank for r in RankRecord.read_all(self._local) if r.ended}
            for record in gone:
                if record.rank not in spoke | ended:
                    self.lost[record.rank] = time.time()

    def _clean_up(self, child: subprocess.Popen) -> None:
        """End whatever is left of the job."""
        if child.poll() is None:
            child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(2.0)
        for pid in _processes_of_session(child.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for record in self._read_records():
            if record.is_local and record.alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(record.pid, signal.SIGKILL)
        child.wait()


def _end_with_parent() -> None:
    """In the launcher's process: a killed `howdah train` ends the job as SIGTERM would."""
    die_with_parent(signal.SIGTERM)


def _processes_of_session(session: int) -> list[int]:
    """Processes of a session (field 6 of /proc/<pid>/stat), the newest first."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(ProcessLookupError):
                if os.getsid(int(name)) == session:
                    found.append(int(name))
    return sorted(found, reverse=True)


def _terminal() -> str | None:
    """The terminal of our stderr, if it is one."""
    try:
        return os.ttyname(2)
    except OSError:
        return None


# -------------------------------------------------------------------------------- the outcome
def _what_went_wrong(job: _Job, config: Config, local: str) -> HowdahError | None:
    """The error that began it; None if training finished."""
    told = failure.first(local)
    lost = min(job.lost.items(), key=lambda item: item[1], default=None)
    if job.asked_by is not None and (job.exit_code != 0 or job.killed):
        return _stopped(job, config, told)
    if told is not None and not told.consequence and (
        lost is None or told.unix_time <= lost[1]
    ):  # fmt: skip
        return _rebuilt(told, local)
    if lost is not None:
        return _rank_lost(lost[0], job, config, local)
    if told is not None:
        return _rebuilt(told, local)
    if job.exit_code != 0:
        return ClusterError(
            f"{job.program} ended without any rank saying why",
            where=os.path.join(local, "logs"),
            expected="exit code 0",
            got=f"exit code {job.exit_code}\n{job.told_by_launcher()}".rstrip(),
            remedy="`howdah doctor` checks the launcher; --np 1 needs none",
        )
    return None


def _stopped(job: _Job, config: Config, told: failure.Failure | None) -> HowdahError:
    kind = Interrupted if job.asked_by == signal.SIGINT else Terminated
    newest = _newest_checkpoint(config)
    what = "training was interrupted" if kind is Interrupted else "training was asked to end"
    if job.killed:
        what += ", and its ranks were killed before they had saved" + _cut_short(config)
    elif told is not None and told.exit_code not in (130, 143):
        what += f"; saving failed: {(told.error or {}).get('what', told.text.splitlines()[-1])}"
    return kind(
        what,
        where=config.run.directory,
        got=f"the newest checkpoint is {newest}",
        remedy="start it again in the same way: it goes on from there",
    )


def _rebuilt(told: failure.Failure, local: str) -> HowdahError:
    """A rank's failure as the error it was."""
    log = os.path.join(local, "logs", f"rank.{told.rank}")
    if told.error is None:
        return TrainingError(
            f"rank {told.rank} stopped by an error that Howdah does not know",
            where=log,
            remedy="a defect of Howdah, or of what it runs on; the log has all of it",
            got=told.text,
        )
    # The class, too, is told on: with --json it says what can be done about it.
    kind = getattr(errors, told.error.get("error", ""), None)
    if not (isinstance(kind, type) and issubclass(kind, HowdahError)):
        kind = _BY_EXIT_CODE.get(told.exit_code, TrainingError)
    fields = {key: told.error.get(key) for key in ("where", "expected", "got", "remedy")}
    what = told.error["what"] + (f" (rank {told.rank})" if told.rank else "")
    return kind(what, **fields)


def _rank_lost(rank: int, job: _Job, config: Config, local: str) -> TrainingError:
    record = job.records.get(rank)
    who = f"pid {record.pid} on {record.host}" if record else "its process"
    return TrainingError(
        f"rank {rank} was lost, and training stopped",
        where=os.path.join(local, "logs", f"rank.{rank}"),
        expected=f"{who} to run to the end",
        got="it was gone without a word: killed (SIGKILL, out of memory) or crashed; the newest"
        f" checkpoint is {_newest_checkpoint(config)}{_cut_short(config)}",
        remedy="look at the end of its log and at the kernel's (dmesg); start again: the run goes"
        " on from that checkpoint",
    )


def _newest_checkpoint(config: Config) -> str:
    try:
        found = Checkpoints(config.checkpoint_directory).list()
    except StorageError as error:
        return f"unknown ({error.what})"
    return f"step-{found[0].step}" if found else "none"


def _cut_short(config: Config) -> str:
    """That a save was not finished, in words; "" where none was begun, or storage does not say."""
    try:
        step = Checkpoints(config.checkpoint_directory).cut_short()
    except StorageError:
        return ""
    return "" if step is None else f"; the save of step {step} was cut short"


def _close_books(config: Config, local: str, error: HowdahError | None) -> None:
    """What killed ranks could not do themselves: run.json's last word, logs of a remote run."""
    directory = config.run.directory
    if error is not None and storage.exists(storage.join(directory, "run.json")):
        file = RunFile(directory)
        stopped = isinstance(error, Interrupted | Terminated | TokensExpiring)
        status = "interrupted" if stopped else "failed"
        file.update(status=status, error=error.what)
    if not storage.is_local(directory):
        logs = os.path.join(local, "logs")
        for name in sorted(os.listdir(logs)) if os.path.isdir(logs) else []:
            growing.publish_whole(os.path.join(logs, name), storage.join(directory, "logs", name))


def _summary(directory: str) -> dict[str, Any]:
    """What `--json` prints of a finished run."""
    values = RunFile(directory).values
    keys = ("run_id", "status", "framework", "world_size", "steps", "epochs", "train_seconds",
            "examples_per_second", "tokens_per_second", "best_step", "metrics")  # fmt: skip
    found = {key: values.get(key) for key in keys}
    export = storage.join(directory, "export")
    return {"run": directory, "export": export if storage.is_dir(export) else None, **found}
