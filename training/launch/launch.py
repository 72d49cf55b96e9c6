"""`howdah train` with one rank: starts its process, watches it, and reports how training ended.

It passes on Ctrl-C and SIGTERM as an orderly request and waits for the checkpoint, notices a
process that vanished, leaves none behind, and shows its error last. Several ranks are a job
(cli/local_job.py).
"""

from __future__ import annotations

import shlex
import sys

from howdah.config.loader import require_secrets
from howdah.config.model import Config
from howdah.errors import ClusterError
from howdah.models.runs import settings
from howdah.models.runs.run_json import NEEDED, readable_config
from howdah.process import isolation
from howdah.storage import directories
from howdah.training.launch import outcome
from howdah.training.launch.rank_process import RankProcess
from howdah.training.process import failure
from howdah.training.run.local_dir import RankRecord, RunLock, local_directory


def train(config: Config) -> None:
    """Train with one rank and wait for the end; nothing if the run was finished before.

    Args:
        config: checked configuration; it is frozen into the run directory, where the rank reads it.
    Raises:
        HowdahError: the rank's error, with its exit code.
    """
    directory = config.run.directory
    require_secrets(config, *NEEDED)
    done = settings.already_finished(config)
    if done is not None:
        print("\n".join(done), file=sys.stderr, flush=True)
        return
    directories.take(directory, config.run.mode, key="run.directory", below=directories.BELOW)
    local = local_directory(directory)
    lock = RunLock(local, ".launch.lock", directory)
    lock.take()
    try:
        rank_lock = RunLock(local, ".lock", directory)
        rank_lock.take()  # refused while a rank that another command has started has it
        rank_lock.release()
        failure.clear(local)
        RankRecord.clear(local)
        before = outcome.attempts(directory)
        with readable_config(config, directory) as path:
            argv = isolation.module("howdah.training", "--config", path)
            rank = RankProcess(argv, local, grace_seconds=config.checkpoint.grace_seconds)
            rank.run()
        error = outcome.taken_over(rank, directory, before)
        if error is None:
            error = outcome.cause(rank, config, local) or outcome.not_finished(directory, before)
            begun = len(outcome.attempts(directory)) > len(before)
            outcome.write(config, local, error, begun=begun)
        if isinstance(error, ClusterError):  # it has no message of its own: it can be tried
            error.got = "\n".join([*filter(None, [error.got]), f"command: {shlex.join(argv)}"])
        if error is not None:
            raise error
    finally:
        lock.release()
