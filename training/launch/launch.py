"""`howdah train`: starts the ranks, watches them, and reports how training ended.

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
import sys
import tempfile
import time
from typing import Any

from howdah import redact, storage
from howdah.config import launchers
from howdah.config.loader import Config, require_secrets
from howdah.core import machine
from howdah.core.child import Child
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
from howdah.storage import directories, growing
from training.checkpoint.fence import FencedOff
from training.checkpoint.manager import Checkpoints
from training.comm import backends
from training.comm.groups import check_ranks
from training.launch import command as launch_command
from training.launch.guard import guarded
from training.launch.output import Relay
from training.process import failure
from training.run.local_dir import RankRecord, RunLock, local_directory
from training.run.run_json import NEEDED, RunFile, cpu_seconds, readable_config

__all__ = ["train"]

_POLL_SECONDS = 0.1
_EXIT_SECONDS = 1.0
"""Time that the launcher has to exit once all ranks are gone."""
_LAUNCHER_SECONDS = 2.0
"""Between SIGTERM and SIGKILL for a launcher that is to end."""
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
    launcher: str = launchers.DEFAULT,
    hosts: str | None = None,
    json: bool = False,
) -> int:
    """Train with `np` ranks and wait for the end.

    Args:
        config: checked configuration; it is frozen into the run directory, where ranks read it.
        np: ranks.
        launcher: one of launchers.LAUNCHERS; one rank needs none.
        hosts: "node1:2,node2:2"; None: this machine.
        json: print one JSON object about the run to stdout.
    Returns:
        0; every other end is raised.
    Raises:
        HowdahError: the error of the first rank that failed, with its exit code.
    """
    if config.training.global_batch_size < np:
        raise ConfigError(
            "training.global_batch_size is smaller than the world",
            where="training.global_batch_size",
            expected=f"at least {np}, one row for each rank",
            got=str(config.training.global_batch_size),
            remedy="raise it, or start fewer ranks",
        )
    check_ranks(config.training.parallel, np)
    if np > 1 or hosts is not None:
        training = config.training
        row = launchers.require(launcher)
        launchers.require_carrier(row, training.framework, training.comm)
        backends.require_parallel(row, training)
    directory = config.run.directory
    require_secrets(config, *NEEDED)
    directories.take(directory, config.run.mode, key="run.directory", below=directories.BELOW)
    local = local_directory(directory)
    lock = RunLock(local, ".launch.lock", directory)
    lock.take()
    try:
        _refuse_if_in_use(local, directory)
        failure.clear(local)
        RankRecord.clear(local)
        before = _attempts(directory)
        with readable_config(config, directory, shared=hosts is not None) as path:
            argv = launch_command.command(
                path,
                np=np,
                launcher=launcher,
                hosts=hosts,
                cores=machine.cores(),
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
        error = _taken_over(job, directory, before)
        if error is None:
            error = _cause(job, config, local)
            _write_outcome(config, local, error, begun=len(_attempts(directory)) > len(before))
        if error is not None:
            raise error
    finally:
        lock.release()
    if json:
        print(_json.dumps(_summary(directory), ensure_ascii=False))
    return 0


def _refuse_if_in_use(local: str, directory: str) -> None:
    """Refuse while ranks that another command started use the run directory."""
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
                if handled == 0:
                    deadline = time.monotonic() + self._ask_to_stop(self._signals[0])
                else:
                    deadline = 0.0  # asked again: at once
                # Up to here it is one request: `timeout` and a closing terminal send theirs twice.
                handled = len(self._signals)
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
        """The launcher's own message at its end, which was not shown."""
        return self._relay.held_back()

    def _ask_to_stop(self, number: int) -> float:
        """Ask every rank to save and stop; returns the seconds to wait for it."""
        self.asked_by = number
        asked = [record for record in self._read_records() if record.is_local and record.alive]
        for record in asked:
            record.send(_ASK[signal.Signals(number)])
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


# -------------------------------------------------------------------------------- the outcome
def _attempts(directory: str) -> list[dict[str, Any]]:
    """The attempts in run.json, the newest last."""
    return list(RunFile(directory).values.get("attempts", []))


def _taken_over(job: _Job, directory: str, before: list[dict[str, Any]]) -> HowdahError | None:
    """That a later attempt, of another launcher, has the run: nothing may be written there then.

    Args:
        before: the attempts when this launcher began.
    """
    try:
        now = _attempts(directory)
    except StorageError:  # nothing can be written there either
        return None
    if len(now) <= len(before):
        return None  # none of our ranks has come so far
    newest, ranks = now[-1], job.records.values()
    if any((newest.get("host"), newest.get("pid")) == (r.host, r.pid) for r in ranks):
        return None
    return FencedOff(
        "a later attempt has taken over this run; nothing more was written by this one",
        where=directory,
        expected="the newest attempt to be of a rank that this command has started",
        got=f"attempt {newest.get('attempt')}: host {newest.get('host')}, pid {newest.get('pid')}",
        remedy="look at the run as it is now: howdah status, or its run.json",
    )


def _cause(job: _Job, config: Config, local: str) -> HowdahError | None:
    """The error that ended training; None if it finished."""
    failed = failure.first(local)
    lost = min(job.lost.items(), key=lambda item: item[1], default=None)
    if job.asked_by is not None and (job.exit_code != 0 or job.killed):
        return _stopped(job, config, failed)
    if failed is not None and not failed.consequence and (
        lost is None or failed.unix_time <= lost[1]
    ):  # fmt: skip
        return _rebuilt(failed, local)
    if lost is not None:
        return _rank_lost(lost[0], job, config, local)
    if failed is not None:
        return _rebuilt(failed, local)
    if job.exit_code != 0:
        return ClusterError(
            f"{job.program} ended without any rank saying why",
            where=os.path.join(local, "logs"),
            expected="exit code 0",
            got=f"exit code {job.exit_code}\n{job.launcher_message()}".rstrip(),
            remedy="`howdah doctor` checks the launcher; --np 1 needs none",
        )
    return None


def _stopped(job: _Job, config: Config, failed: failure.Failure | None) -> HowdahError:
    kind = Interrupted if job.asked_by == signal.SIGINT else Terminated
    newest = _newest_checkpoint(config)
    what = "training was interrupted" if kind is Interrupted else "training was asked to end"
    if job.killed:
        what += ", and its ranks were killed before they had saved" + _cut_short(config)
    elif failed is not None and failed.exit_code not in (130, 143):
        what += f"; saving failed: {(failed.error or {}).get('what', failed.text.splitlines()[-1])}"
    return kind(
        what,
        where=config.run.directory,
        got=f"the newest checkpoint is {newest}",
        remedy="start it again in the same way: it goes on from there",
    )


def _rebuilt(failed: failure.Failure, local: str) -> HowdahError:
    """A rank's failure as the error it was."""
    log = os.path.join(local, "logs", f"rank.{failed.rank}")
    if failed.error is None:
        return TrainingError(
            f"rank {failed.rank} stopped by an error that Howdah does not know",
            where=log,
            remedy="a defect of Howdah, or of what it runs on; the log has all of it",
            got=failed.text,
        )
    what = failed.error["what"] + (f" (rank {failed.rank})" if failed.rank else "")
    # Its class is kept: with --json it says what can be done about it.
    return _BY_EXIT_CODE.get(failed.exit_code, TrainingError).from_dict(
        {**failed.error, "what": what}
    )


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
    """A phrase about a save that was not finished; "" where there is none, or it is not known."""
    try:
        step = Checkpoints(config.checkpoint_directory).cut_short()
    except StorageError:
        return ""
    return "" if step is None else f"; the save of step {step} was cut short"


def _write_outcome(config: Config, local: str, error: HowdahError | None, *, begun: bool) -> None:
    """Write what killed ranks could not: the outcome and what they used in run.json, logs of a
    remote run.

    Args:
        begun: our ranks have begun an attempt.
    """
    directory = config.run.directory
    file = RunFile(directory)
    if begun:  # this process has waited for all ranks of this machine
        file.used(cpu_seconds=cpu_seconds(), gpus=None, of="the launcher's processes")
    # A refusal before an attempt began is no end of an earlier one, which has written its own.
    if error is not None and (begun or file.values.get("status") == "running"):
        stopped = isinstance(error, Interrupted | Terminated | TokensExpiring)
        status = "interrupted" if stopped else "failed"
        file.end(status, redact.text(error.what))
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
