"""How training by `howdah train` ended, judged by the files of the ranks, never by exit codes."""

from __future__ import annotations

import os
import signal
from typing import Any

from howdah import redact, storage
from howdah.config.loader import Config
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
from howdah.training.launch.ranks import Ranks
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


def taken_over(job: Ranks, directory: str, before: list[dict[str, Any]]) -> HowdahError | None:
    """The error if another launcher's later attempt has taken the run, so that this one must not
    write there any more.

    Args:
        before: the attempts when this launcher began.
    """
    try:
        now = attempts(directory)
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


def not_finished(directory: str, before: list[dict[str, Any]]) -> HowdahError | None:
    """The error if run.json has no finished attempt of these ranks, whatever their exit codes.

    Args:
        before: the attempts when this launcher began.
    """
    now = attempts(directory)
    newest = now[-1] if len(now) > len(before) else {}
    if newest.get("status") == "finished":
        return None
    return ClusterError(
        "the ranks ended with exit code 0, but none of them says that training is finished",
        where=storage.join(directory, RUN_JSON),
        expected="a finished attempt of these ranks",
        got=f"status {newest.get('status')}" if newest else "no attempt: they have not trained",
        remedy="did they run another program? The command after `+` above starts them; their"
        " output is in logs/launcher",
    )


def cause(job: Ranks, config: Config, local: str) -> HowdahError | None:
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
            remedy="its log says what it did last; `howdah doctor` checks this machine",
        )
    return None


def _stopped(job: Ranks, config: Config, failed: failure.Failure | None) -> HowdahError:
    kind = Interrupted if job.asked_by == signal.SIGINT else Terminated
    newest = newest_checkpoint(config)
    what = "training was interrupted" if kind is Interrupted else "training was asked to end"
    if job.killed:
        what += ", and its ranks were killed before they had saved" + cut_short(config)
    elif failed is not None and failed.exit_code not in (130, 143):
        what += f"; saving failed: {(failed.error or {}).get('what', failed.text.splitlines()[-1])}"
    got = f"the newest checkpoint is {newest}"
    remedy = "start it again in the same way: it goes on from there"
    if newest == NONE:
        got = "no checkpoint had been saved yet"
        remedy = "start it again in the same way: it begins with the base model"
    return kind(what, where=config.run.directory, got=got, remedy=remedy)


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


def _rank_lost(rank: int, job: Ranks, config: Config, local: str) -> TrainingError:
    record = job.records.get(rank)
    who = f"pid {record.pid} on {record.host}" if record else "its process"
    return TrainingError(
        f"rank {rank} was lost, and training stopped",
        where=os.path.join(local, "logs", f"rank.{rank}"),
        expected=f"{who} to run to the end",
        got="it ended without reporting an error: killed (SIGKILL, out of memory) or crashed; the"
        f" newest checkpoint is {newest_checkpoint(config)}{cut_short(config)}",
        remedy="look at the end of its log and at the kernel's (dmesg); start again: the run goes"
        " on from that checkpoint",
    )


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
    """Write what killed ranks could not: the outcome and what they used in run.json, logs of a
    remote run.

    Args:
        begun: our ranks have begun an attempt.
    """
    directory = config.run.directory
    file = RunFile(directory)
    if begun:  # this process has waited for all ranks of this machine
        file.used(cpu_seconds=cpu_seconds(), gpus=None, of="the launcher's processes")
    # A refusal before an attempt began does not end an earlier one, which has written its end.
    if error is not None and (begun or file.values.get("status") == "running"):
        stopped = isinstance(error, Interrupted | Terminated | TokensExpiring)
        status = "interrupted" if stopped else "failed"
        file.end(status, redact.text(error.what))
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
