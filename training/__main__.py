"""`python -m howdah.training --config run.yaml`: one rank of a training job, under any launcher.

    python -m howdah.training --config run.yaml
    horovodrun -np 2 python -m howdah.training --config run.yaml --set training.max_steps=100
    torchrun --nproc-per-node 2 -m howdah.training --config run.yaml
    mpirun -np 2 python -m howdah.training --config run.yaml --set checkpoint.resume=never

`howdah train` starts the same with the right environment. On a cluster an agent
(jobs/agent/agent.py) starts it with `--standby`: it imports its framework first, and then receives
its rank over the control channel (training/elastic/control_channel.py). Nothing here imports a
framework before the environment is set.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence

from howdah import storage
from howdah.config import launchers
from howdah.config.loader import load as load_config
from howdah.config.loader import require_secrets
from howdah.config.model import Config
from howdah.core.processes import die_with_parent
from howdah.data.splits.shard_files import TRAFFIC
from howdah.doctor.packages import carrier_of_job
from howdah.errors import ClusterError, HowdahError, Terminated, TrainingError, UsageError, render
from howdah.models.runs import settings
from howdah.models.runs.run_json import NEEDED
from howdah.process import devices, env
from howdah.process.quiet import starting_tensorflow
from howdah.storage import directories
from howdah.training.comm import backends
from howdah.training.comm.base import Waits, rank_lost
from howdah.training.elastic.control_channel import ENVIRONMENT as CHANNEL
from howdah.training.elastic.control_channel import ChannelConsole, ControlChannel
from howdah.training.elastic.heartbeat import Heartbeat
from howdah.training.process import failure, output
from howdah.training.run.local_dir import local_directory
from howdah.training.run.run import Run
from howdah.training.worlds import ProcessWorlds

_LOOPS = {"tensorflow": "howdah.training.loop_tf", "torch": "howdah.training.loop_torch"}


def main(argv: Sequence[str] | None = None) -> int:
    """Train as one rank. Returns the process's exit code."""
    here = env.rank_env()
    # The one rank of `howdah train` gets SIGTERM at its end, and saves (howdah/core/child.py).
    if here.launcher is not None or CHANNEL in os.environ:
        die_with_parent()
    args = _parse(argv)
    if args.standby:
        return _standby(args)
    try:
        config = load_config(args.config, args.set)
        _configure_storage(config)
        require_secrets(config, *NEEDED)
        done = None if "HOWDAH_STARTED" in os.environ else settings.already_finished(config)
        if done is not None:  # every rank returns: the record of a finished run does not change
            if here.rank == 0:
                print("\n".join(done), file=sys.stderr, flush=True)
            return 0
        launcher = launchers.started_by(os.environ)
        if launcher is not None and here.size > 1:
            launchers.require_carrier(launcher, config.training.framework, config.training.comm)
            backends.require_parallel(launcher, config.training)
        env.prepare(config.training.framework, threads=config.training.threads_per_rank)
        if here.rank == 0:  # before its log is written there
            directory, mode = config.run.directory, config.run.mode
            directories.take(directory, mode, key="run.directory", below=directories.BELOW)
        local = local_directory(config.run.directory, config.run.mode)
        console, log = output.redirect(local, here.rank)
    except HowdahError as error:
        return _refuse(error, here.rank)
    run = Run(config, here, console=console, log=log)
    _configure_storage(config, run.say)  # the console shows when storage is waited for
    waits = Waits()
    try:
        run.open()  # before the framework: a directory in use is refused at once
        run.heartbeat.start(run.say)
        _train(config, run, ProcessWorlds(config.training.framework, run, waits=waits))
    except BaseException as error:  # noqa: BLE001 - every end of a rank is recorded
        _leave(run, error)
    return 0


def _standby(args: argparse.Namespace) -> int:
    """Train as the rank that the agent assigns, in one world or, in an elastic job, several."""
    stacks = os.environ.get("HOWDAH_STACKS")
    if stacks is not None:  # the agent sends the signal when the main thread hangs
        faulthandler.register(signal.SIGRTMIN + 3, file=open(stacks, "a"), all_threads=True)  # noqa: SIM115
    faulthandler.enable()
    channel = None
    try:
        channel = ControlChannel.of_environment()
        if channel is None:
            raise UsageError(
                f"--standby needs {CHANNEL} in the environment, which a job's agent sets",
                remedy="leave it out, or start training with `howdah submit`",
            )
        config = load_config(args.config, args.set)
        _configure_storage(config)
        carrier = None
        if config.job.most > 1:  # before the framework's import, so that a refusal is immediate
            carrier = carrier_of_job(config)
        threads = config.training.threads_per_rank or int(os.environ.get("HOWDAH_THREADS", 0))
        env.prepare(config.training.framework, threads=threads or None)
    except HowdahError as error:
        print(f"training: {render(error)}", file=sys.stderr, flush=True)
        if channel is not None:
            described = failure.describe(error)
            channel.send("failed", exit_code=error.exit_code, error=described, consequence=False)
        return error.exit_code
    waits = Waits()
    heartbeat = Heartbeat(channel, waits)
    console = ChannelConsole(channel, output.terminal_of_command())
    run = Run(config, env.RankEnv(), console=console, log=sys.stderr, heartbeat=heartbeat)
    _configure_storage(config, run.say)
    worlds = ProcessWorlds(config.training.framework, run, channel, waits)

    def stop(save: bool) -> None:
        if save:
            os.kill(os.getpid(), signal.SIGUSR2)  # see training/process/stopping.py
        else:
            run.leave(Terminated("the job was ended without saving", where=run.directory))

    try:
        run.open()
        channel.listen(on_stop=stop, on_loss=worlds.lost)
        heartbeat.start(run.say)
        heartbeat.watch_data(TRAFFIC.counts)
        started = time.monotonic()
        _import(config.training.framework, carrier)
        channel.send("ready", import_seconds=round(time.monotonic() - started, 3))
        _train(config, run, worlds)
        channel.send("finished")
    except BaseException as error:  # noqa: BLE001 - every end of a rank is reported
        _leave(run, error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # all is reported and closed; a framework's exit handlers take time and may fail


def _import(framework: str, carrier: launchers.CommKind | None) -> None:
    """Load the modules that a rank needs before it waits for its world.

    Args:
        carrier: library for the collectives of its worlds; None: a job of one rank.
    Raises:
        ClusterError: the agent allocated a GPU, but the framework does not see one.
    """
    device = _start_framework(framework)
    if carrier is not None:
        with contextlib.suppress(ClusterError):  # raised again by the world that needs it
            backends.COMMS[carrier](framework)
    devices.require(framework, device)


def _start_framework(framework: str) -> devices.Device:
    """Import the framework and find its devices. Returns the device to train on."""
    with starting_tensorflow() if framework == "tensorflow" else contextlib.nullcontext():
        importlib.import_module(_LOOPS[framework])
        return devices.find(framework)


def _configure_storage(config: Config, say: Callable[[str], None] | None = None) -> None:
    run = config.run
    storage.configure(
        retry_seconds=run.storage_retry_seconds, user=run.user, mode=config.most_open, say=say
    )


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m howdah.training", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--config", "-c", required=True, help="run configuration (YAML)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="section.key=value", help="an override"
    )
    parser.add_argument("--standby", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def _train(config: Config, run: Run, worlds: ProcessWorlds) -> None:
    device = _start_framework(config.training.framework)
    run.gpu = device.gpu
    importlib.import_module(_LOOPS[config.training.framework]).train(config, worlds, run)
    run.heartbeat.enter("end")
    run.close("finished")
    worlds.close()


def _leave(run: Run, error: BaseException) -> None:
    """Record the error and end this rank's process; does not return."""
    lost = rank_lost(error)
    if lost or run.stops.alone:
        with run.heartbeat.during("save"):
            run.last_save.save()
    if lost and not isinstance(error, HowdahError):
        lost_rank = TrainingError(
            "training stopped because another rank was lost",
            where=run.directory,
            got=str(error).splitlines()[0] if str(error) else type(error).__name__,
            remedy="see the lost rank's log for the cause; start again: the run resumes from the"
            " newest checkpoint",
        )
        lost_rank.__cause__ = error
        error = lost_rank
    run.leave(error, consequence=lost or run.stops.alone)


def _refuse(error: HowdahError, rank: int) -> int:
    """Print an error from before the run began, and return its exit code. Every rank raises it, but
    usually only rank 0 gets to print it."""
    if rank != 0:
        time.sleep(2.0)  # rank 0's exit ends this process, unless only this rank failed
        print(f"rank {rank}: {render(error)}", file=sys.stderr, flush=True)
    else:
        print(f"training: {render(error)}", file=sys.stderr, flush=True)
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
