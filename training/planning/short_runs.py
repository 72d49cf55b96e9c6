"""Runs trainings of a few steps with real ranks, to measure them; kills each when it has enough."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence

from howdah.config.loader import Config, dump_yaml
from howdah.config.splits import VALIDATION
from howdah.core import machine
from howdah.core.child import Child
from howdah.core.processes import descendants, process_start
from howdah.errors import TrainingError
from howdah.models.runs.metrics_log import FILE_NAME
from howdah.process import isolation
from howdah.training.comm.backends import horovod_installed
from howdah.training.launch import command as launch_command
from howdah.training.process import failure

WARM_UP = 2
"""First steps, which are not counted."""
_LEAST_STEPS, _MOST_STEPS = 8, 60
_ENOUGH_SECONDS = 6.0
"""Steps are measured until they took so long in all: short steps vary more."""
_HANG_SECONDS = 900.0


def _launcher(framework: str) -> str:
    """One whose ranks sum over Gloo as those of a job on YARN do, which `howdah plan` predicts."""
    if framework == "torch" and not horovod_installed(framework):
        return "torchrun"
    return "horovodrun"


def short(config: Config, directory: str, batch: int, threads: int) -> Config:
    """The configuration of a short run: few steps, own directory, no checkpoints or tracking."""
    training = config.training.model_copy(
        update={
            "global_batch_size": batch,
            "max_steps": _MOST_STEPS,
            "logging_steps": 1,
            "threads_per_rank": threads,
        }
    )
    return config.model_copy(
        update={
            "run": config.run.model_copy(update={"directory": directory}),
            "training": training,
            "checkpoint": type(config.checkpoint)(
                every_minutes=None, every_epoch=False, resume="never"
            ),
            "evaluation": type(config.evaluation)(splits=[VALIDATION]),
            "tracking": type(config.tracking)(tensorboard=False),
        }
    )


def steps(
    config: Config, ranks: int, count: int | None = None, *, most: int = _MOST_STEPS
) -> list[float]:
    """Seconds of each step after the warm-up, in a run that is then killed.

    Args:
        count: steps, warm-up included; None: as many as _ENOUGH_SECONDS takes.
        most: at most so many.
    """
    return steps_at_once([config], ranks, count, most=most)[0]


def steps_at_once(
    configs: Sequence[Config], ranks: int, count: int | None, *, most: int = _MOST_STEPS
) -> list[list[float]]:
    """`steps` of independent trainings that run at the same time."""
    least = count or max(WARM_UP + 1, min(_LEAST_STEPS, most))
    most = count or max(least, min(most, _MOST_STEPS))
    with contextlib.ExitStack() as running:
        runs = [_Run(config, ranks, running) for config in configs]

        def enough(run: _Run) -> bool:
            found = run.seconds(most)
            return len(found) >= (least if sum(found) >= _ENOUGH_SECONDS else most) - WARM_UP

        def failed(run: _Run) -> bool:
            return not run.process.alive and not enough(run)

        _until(lambda: all(map(enough, runs)) or any(map(failed, runs)), runs[0].output)
        for run in filter(failed, runs):
            raise _ended(run.output, run.process.code)
    return [run.seconds(most) for run in runs]


class _Run:
    """A training of a few steps, started here and killed when `running` closes."""

    def __init__(self, config: Config, ranks: int, running: contextlib.ExitStack) -> None:
        directory = config.run.directory
        os.makedirs(directory)
        path = os.path.join(directory, "config.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(dump_yaml(config))
        argv = launch_command.command(
            path,
            np=ranks,
            launcher=_launcher(config.training.framework),
            cores=machine.cores(),
            is_root=os.geteuid() == 0,
        )
        self.output = os.path.join(directory, "output.txt")
        self._metrics = os.path.join(directory, FILE_NAME)
        self._rows = config.training.global_batch_size
        self.process = running.enter_context(_running(argv, self.output))

    def seconds(self, most: int) -> list[float]:
        """Seconds of each step so far, without the warm-up and those beyond `most`."""
        return [self._rows / rate for rate in rates(self._metrics)[WARM_UP:most]]


def rates(metrics: str) -> list[float]:
    """Rows per second of each step logged so far."""
    try:
        with open(metrics, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        return []
    lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    return [line["examples_per_second"] for line in lines if "examples_per_second" in line]


def probe(framework: str, messages: Sequence[int], directory: str) -> dict:
    """The result of training/planning/network_probe.py on two ranks of this machine.

    Args:
        framework: tensorflow or torch.
        messages: bytes of each message of a step's reduction.
        directory: for the probe's files.
    """
    out = os.path.join(directory, "probe.json")
    sizes = json.dumps(list(messages))
    rank = isolation.module("howdah.training.planning.network_probe", framework, sizes, out)
    argv = launch_command.command(
        "-", np=2, launcher=_launcher(framework), cores=machine.cores(), is_root=False, rank=rank
    )
    output = os.path.join(directory, "probe.txt")
    with _running(argv, output) as process:
        _until(lambda: not process.alive, output)
    if process.code != 0:
        raise _ended(output, process.code)
    with open(out, encoding="utf-8") as file:
        return json.load(file)


# ------------------------------------------------------------------------------------ processes
@contextlib.contextmanager
def _running(argv: Sequence[str], output: str) -> Iterator[Child]:
    """Start a launcher with its ranks; all of them are killed in the end, after errors too."""
    scratch = os.path.dirname(output)
    variables = launch_command.environment(os.environ, terminal=None, scratch=scratch)
    process = Child(argv, env=variables, output=output)
    try:
        yield process
    finally:  # the launcher starts each rank in its own session: find them by their parents
        family = [process.pid, *descendants(process.pid)]
        starts = {pid: process_start(pid) for pid in family}
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.end()
        # A rank that still writes could create its directory again after the removal.
        _until(
            lambda: all(start != process_start(pid) for pid, start in starts.items() if start),
            output,
        )


def _until(ready: Callable[[], object], output: str) -> None:
    started = time.monotonic()
    while not ready():
        if time.monotonic() - started > _HANG_SECONDS:
            raise _ended(output, None)
        time.sleep(0.05)


def _ended(output: str, exit_code: int | None) -> TrainingError:
    reported = failure.first(os.path.dirname(output))
    if reported is not None:
        last = reported.text.splitlines()
    else:
        with open(output, encoding="utf-8", errors="replace") as file:
            last = file.read().strip().splitlines()[-15:]
    return TrainingError(
        "a short run to measure steps ended before its steps were done",
        expected=f"{_LEAST_STEPS} steps",
        got=("no progress" if exit_code is None else f"exit code {exit_code}")
        + "".join(f"\n    {line}" for line in last),
        remedy="`howdah train` with the same configuration shows what is wrong",
    )
