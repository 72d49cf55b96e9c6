"""`howdah train`: starts the ranks, watches them, and reports how training ended.

It passes on Ctrl-C and SIGTERM as an orderly request and waits for the checkpoint (by themselves
mpirun would kill after one second, horovodrun after five), notices a rank that vanished, leaves no
process behind, and shows the first failing rank's error last.
"""

from __future__ import annotations

import json as _json
import os
import sys

from howdah.config import launchers
from howdah.config.loader import Config, require_secrets
from howdah.core import machine
from howdah.errors import (
    ConfigError,
)
from howdah.models.runs import settings
from howdah.models.runs.run_json import NEEDED, readable_config
from howdah.storage import directories
from howdah.training.comm import backends
from howdah.training.launch import command as launch_command
from howdah.training.launch import outcome
from howdah.training.launch.ranks import Ranks
from howdah.training.process import failure
from howdah.training.run.local_dir import RankRecord, RunLock, local_directory


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
    if np > 1 or hosts is not None:
        training = config.training
        row = launchers.require(launcher)
        launchers.require_carrier(row, training.framework, training.comm)
        backends.require_parallel(row, training)
    directory = config.run.directory
    require_secrets(config, *NEEDED)
    done = settings.already_finished(config)
    if done is not None:
        print("\n".join(done), file=sys.stderr, flush=True)
        if json:
            print(_json.dumps(outcome.summary(directory), ensure_ascii=False))
        return 0
    directories.take(directory, config.run.mode, key="run.directory", below=directories.BELOW)
    local = local_directory(directory)
    lock = RunLock(local, ".launch.lock", directory)
    lock.take()
    try:
        _refuse_if_in_use(local, directory)
        failure.clear(local)
        RankRecord.clear(local)
        before = outcome.attempts(directory)
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
            job = Ranks(
                argv,
                launcher if np > 1 or hosts else "training",
                local,
                np=np,
                all_local=hosts is None,
                grace_seconds=config.checkpoint.grace_seconds,
            )
            job.run()
        error = outcome.taken_over(job, directory, before)
        if error is None:
            error = outcome.cause(job, config, local) or outcome.not_finished(directory, before)
            outcome.write(
                config, local, error, begun=len(outcome.attempts(directory)) > len(before)
            )
        if error is not None:
            raise error
    finally:
        lock.release()
    if json:
        print(_json.dumps(outcome.summary(directory), ensure_ascii=False))
    return 0


def _refuse_if_in_use(local: str, directory: str) -> None:
    """Refuse while ranks that another command started use the run directory."""
    probe = RunLock(local, ".lock", directory)
    probe.take()
    probe.release()
