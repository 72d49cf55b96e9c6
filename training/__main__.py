"""`python -m training --config run.yaml`: one rank of a training job, under any launcher.

    python -m training --config run.yaml
    horovodrun -np 2 python -m training --config run.yaml --set training.max_steps=100
    mpirun -np 2 python -m training --config run.yaml --resume never

`howdah train` starts the same with the right environment. Nothing here imports a framework before
the environment is set.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence

from howdah import storage
from howdah.config import Config
from howdah.config import load as load_config
from howdah.errors import HowdahError, TrainingError, render
from training import env, output
from training.place import local_directory
from training.run import Run

_LOOPS = {"tensorflow": "training.loop_tf", "torch": "training.loop_torch"}


def main(argv: Sequence[str] | None = None) -> int:
    """Train as one rank; the process's exit code."""
    here = env.rank_env()
    if here.launcher is not None or "HOWDAH_STARTED" in os.environ:
        env.die_with_parent()
    args = _parse(argv)
    try:
        config = load_config(args.config, _overrides(args))
        _configure_storage(config)
        env.prepare(config.training.framework, threads=config.training.threads_per_rank)
        console, log = output.redirect(local_directory(config.run.directory), here.rank)
    except HowdahError as error:
        return _refuse(error, here.rank)
    run = Run(config, here, console=console, log=log)
    _configure_storage(config, run.say)  # who waits for storage says so where people look
    try:
        _train(config, run)
    except BaseException as error:  # noqa: BLE001 - every end of a rank is written down
        _leave(run, error)
    return 0


def _configure_storage(config: Config, say: Callable[[str], None] | None = None) -> None:
    run = config.run
    storage.configure(retry_seconds=run.storage_retry_seconds, user=run.user, say=say)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__.split("\n")[0])
    parser.add_argument("--config", "-c", required=True, help="run configuration (YAML)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="section.key=value", help="an override"
    )
    parser.add_argument("--resume", help="auto, never, or a checkpoint (checkpoint.resume)")
    return parser.parse_args(argv)


def _overrides(args: argparse.Namespace) -> list[str]:
    if args.resume is None:
        return args.set
    return [*args.set, f"checkpoint.resume={json.dumps(args.resume)}"]


def _train(config: Config, run: Run) -> None:
    run.open()  # before the framework: a directory in use is refused at once
    from training import comm as comm_module

    comm = comm_module.init(config.training.framework)
    run.share(comm)
    importlib.import_module(_LOOPS[config.training.framework]).train(config, comm, run)
    run.close("finished")
    comm.shutdown()


def _leave(run: Run, error: BaseException) -> None:
    """End this rank by what it raised; does not come back."""
    lost = _rank_lost(error)
    if lost or run.stop_alone:
        run.save_last_completed()
    if lost and not isinstance(error, HowdahError):
        told = TrainingError(
            "another rank was lost, and training stopped",
            where=run.directory,
            got=str(error).splitlines()[0] if str(error) else type(error).__name__,
            remedy="the lost rank's log says why; start again: the run goes on from the newest"
            " checkpoint",
        )
        told.__cause__ = error
        error = told
    run.leave(error, consequence=lost or run.stop_alone)


def _rank_lost(error: BaseException | None) -> bool:
    """The error is, or comes from, the loss of another rank."""
    comm_module = sys.modules.get("training.comm")
    while comm_module is not None and error is not None:
        if isinstance(error, comm_module.RankLost):
            return True
        error = error.__cause__
    return False


def _refuse(error: HowdahError, rank: int) -> int:
    """A refusal before the run has begun: every rank meets it, rank 0 tells it."""
    if rank != 0:
        time.sleep(2.0)  # rank 0's end ends this process; who is left had a trouble of its own
        print(f"rank {rank}: {render(error)}", file=sys.stderr, flush=True)
    else:
        print(f"training: {render(error)}", file=sys.stderr, flush=True)
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
