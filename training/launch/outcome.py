"""How training by `howdah train` ended, judged by the files of the ranks, never by exit codes.

Of several ranks the job's driver says who failed (cli/local_job.py); both know here which
checkpoint is left, and what a stop is called.
"""

from __future__ import annotations

import os
import signal
import socket
from typing import Any

from howdah import redact, storage
from howdah.config.model import Config
from howdah.errors import (
    CheckpointError,
    ClusterError,
    DataError,
    HowdahError,
    Interrupted,
    StorageError,
    Terminated,
    TokensExpiring,
    TrainingError,
    UsageError,
)
from howdah.models.runs.run_json import RunFile, cpu_seconds
from howdah.run_files import RUN_JSON
from howdah.storage import growing
from howdah.training.checkpoint.fence import FencedOff
from howdah.training.checkpoint.manager import Checkpoints
from howdah.training.launch.rank_process import RankProcess
from howdah.training.process import failure

_BY_EXIT_CODE: dict[int, type[HowdahError]] = {
    error.exit_code: error
    for error in (UsageError, DataError, CheckpointError, StorageError, TrainingError,
                  Interrupted, Terminated)
}  # fmt: skip


NONE = "none"
"""For `newest_checkpoint`: there is no checkpoint."""


def attempts(directory: str) -> list[dict[str, Any]]:
    """The attempts in run.json, the newest last."""
    return list(RunFile(directory).values.get("attempts", []))


def taken_over(
    rank: RankProcess, directory: str, before: list[dict[str, Any]]
) -> HowdahError | None:
    """The error if another command's later attempt has taken the run, so that this one must not
    write there any more.

    Args:
        before: the attempts when this command began.
    """
    try:
        now = attempts(directory)
    except StorageError:  # nothing can be written there either
        return None
    if len(now) <= len(before):
        return None  # our rank has not come so far
    newest = now[-1]
    if (newest.get("host"), newest.get("pid")) == (socket.gethostname(), rank.pid):
        return None
    return FencedOff(
        "a later attempt has taken over this run; nothing more was written by this one",
        where=directory,
        expected="the newest attempt to belong to a rank that this command started",
        got=f"attempt {newest.get('attempt')}: host {newest.get('host')}, pid {newest.get('pid')}",
        remedy="look at the run as it is now: howdah status, or its run.json",
    )


def not_finished(directory: str, before: list[dict[str, Any]]) -> HowdahError | None:
    """The error if run.json has no finished attempt of this rank, whatever its exit code.

    Args:
        before: the attempts when this command began.
    """
    now = attempts(directory)
    newest = now[-1] if len(now) > len(before) else {}
    if newest.get("status") == "finished":
        return None
    return ClusterError(
        "the rank ended with exit code 0, but its run.json does not record a finished training",
        where=storage.join(directory, RUN_JSON),
        expected="a finished attempt of this rank",
        got=f"status {newest.get('status')}" if newest else "no attempt: it has not trained",
        remedy="did it run another program? The command above starts it; its output is"
        " in logs/output",
    )


def cause(rank: RankProcess, config: Config, local: str) -> HowdahError | None:
    """The error that ended training; None if it finished."""
    failed = failure.first(local)
    if rank.asked_by is not None and (rank.exit_code != 0 or rank.killed):
        return stopped(config, rank.asked_by, killed=rank.killed, failed=failed)
    if failed is not None:
        return _rebuilt(failed, local)
    if rank.lost:
        return _lost(rank, config, local)
    if rank.exit_code != 0:
        return ClusterError(
            "training ended without reporting an error",
            where=os.path.join(local, "logs"),
            expected="exit code 0",
            got=f"exit code {rank.exit_code}",
            remedy="its output says what it did last; `howdah doctor` checks this machine",
        )
    return None


def stopped(
    config: Config, number: int, *, killed: bool, failed: failure.Failure | None = None
) -> HowdahError:
    """The error of a training that was asked to stop.

    Args:
        number: the signal that asked.
        killed: its time was over before it had saved.
        failed: what its rank says of its end.
    """
    kind = Interrupted if number == signal.SIGINT else Terminated
    newest = newest_checkpoint(config)
    what = "training was interrupted" if kind is Interrupted else "training was terminated"
    if killed:
        what += ", and its ranks were killed before they had saved" + cut_short(config)
    elif failed is not None and failed.exit_code not in (130, 143):
        what += f"; saving failed: {(failed.error or {}).get('what', failed.text.splitlines()[-1])}"
    got = f"the newest checkpoint is {newest}"
    remedy = "start it again in the same way: it resumes from there"
    if newest == NONE:
        got = "no checkpoint had been saved yet"
        remedy = "start it again in the same way: it begins with the base model"
    return kind(what, where=config.run.directory, got=got, remedy=remedy)


def _rebuilt(failed: failure.Failure, local: str) -> HowdahError:
    """The rank's failure as the error it was."""
    if failed.error is None:
        return TrainingError(
            f"rank {failed.rank} was stopped by an unexpected error",
            where=_log(local),
            remedy="a defect of Howdah, or of what it runs on; the log has all of it",
            got=failed.text,
        )
    # Its class is kept: with --json it says what can be done about it.
    return _BY_EXIT_CODE.get(failed.exit_code, TrainingError).from_dict(failed.error)


def _lost(rank: RankProcess, config: Config, local: str) -> TrainingError:
    why = "it ended without reporting an error: killed (SIGKILL, out of memory) or crashed"
    if rank.exit_code > 0:
        why = f"it ended with exit code {rank.exit_code}, and could not report why: is a disk full?"
    return TrainingError(
        "rank 0 was lost, and training stopped",
        where=_log(local),
        expected=f"pid {rank.pid} on {socket.gethostname()} to run to the end",
        got=f"{why}; the newest checkpoint is {newest_checkpoint(config)}{cut_short(config)}",
        remedy="look at the end of its log and at the kernel's (dmesg); start again: the run"
        " resumes from that checkpoint",
    )


def _log(local: str) -> str:
    """The rank's log."""
    return os.path.join(local, "logs", "rank.0")


def newest_checkpoint(config: Config) -> str:
    """Name of the newest whole checkpoint, or NONE."""
    try:
        checkpoints = Checkpoints(config.checkpoint_directory).list()
    except StorageError as error:
        return f"unknown ({error.what})"
    return f"step-{checkpoints[0].step}" if checkpoints else NONE


def cut_short(config: Config) -> str:
    """A phrase about a save that was not finished; "" where there is none, or it is not known."""
    try:
        step = Checkpoints(config.checkpoint_directory).cut_short()
    except StorageError:
        return ""
    return "" if step is None else f"; the save of step {step} was cut short"


def write(config: Config, local: str, error: HowdahError | None, *, begun: bool) -> None:
    """Write what a killed rank could not: the outcome and what it used in run.json, logs of a
    remote run.

    Args:
        begun: our rank has begun an attempt.
    """
    directory = config.run.directory
    file = RunFile(directory)
    if begun:  # this process has waited for the rank
        file.used(cpu_seconds=cpu_seconds(), gpus=None, of="howdah train and its rank")
    # A refusal before an attempt began does not end an earlier one, which has written its end.
    if error is not None and (begun or file.values.get("status") == "running"):
        orderly = isinstance(error, Interrupted | Terminated | TokensExpiring)
        file.end("interrupted" if orderly else "failed", redact.text(error.what))
    if not storage.is_local(directory):
        logs = os.path.join(local, "logs")
        for name in sorted(os.listdir(logs)) if os.path.isdir(logs) else []:
            growing.publish_whole(os.path.join(logs, name), storage.join(directory, "logs", name))


def summary(directory: str) -> dict[str, Any]:
    """What `--json` prints of a finished run."""
    values = RunFile(directory).values
    keys = ("run_id", "status", "framework", "world_size", "steps", "epochs", "train_seconds",
            "examples_per_second", "tokens_per_second", "best_step", "metrics")  # fmt: skip
    result = {key: values.get(key) for key in keys}
    export = storage.join(directory, "export")
    return {
        "run": directory,
        "export": export if storage.is_dir(export) else None,
        **result,
    }
