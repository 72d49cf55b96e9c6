"""Runs trainings of a few steps with real ranks, to measure them; kills each when it has enough.

Their sums go over Gloo as those of a job on YARN do, which `howdah plan` predicts.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from howdah.config.launchers import LAUNCHERS
from howdah.config.loader import dump_yaml
from howdah.config.model import Config
from howdah.config.splits import VALIDATION
from howdah.core.child import Child
from howdah.core.processes import descendants, process_start
from howdah.errors import ClusterError, TrainingError
from howdah.models.runs.metrics_log import FILE_NAME
from howdah.process import isolation
from howdah.process.env import STORE
from howdah.training.comm.backends import horovod_installed
from howdah.training.process import failure

WARM_UP = 2
"""First steps, which are not counted."""
_LEAST_STEPS, _MOST_STEPS = 8, 60
_ENOUGH_SECONDS = 6.0
"""Steps are measured until they took so long in all: short steps vary more."""
_HANG_SECONDS = 900.0


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
            "evaluation": type(config.evaluation)(
                splits=[VALIDATION], metric=config.evaluation.metric
            ),
            "tracking": type(config.tracking)(tensorboard=False),
        }
    )


def steps(
    config: Config, ranks: int, count: int | None = None, *, most: int = _MOST_STEPS
) -> list[float]:
    """Seconds of each step after the warm-up, in a run that is then killed.

    Args:
        count: steps, warm-up included; None: as many as _ENOUGH_SECONDS takes.
        most: maximum number of steps.
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
            seconds = run.seconds(most)
            return len(seconds) >= (least if sum(seconds) >= _ENOUGH_SECONDS else most) - WARM_UP

        def failed(run: _Run) -> bool:
            return _over(run.ranks) and not enough(run)

        _until(lambda: all(map(enough, runs)) or any(map(failed, runs)), runs[0].output)
        for run in filter(failed, runs):
            raise _ended(run.output, _code(run.ranks))
    return [run.seconds(most) for run in runs]


class _Run:
    """A training of a few steps, started here and killed when `running` closes."""

    def __init__(self, config: Config, ranks: int, running: contextlib.ExitStack) -> None:
        directory = config.run.directory
        os.makedirs(directory)
        path = os.path.join(directory, "config.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(dump_yaml(config))
        argv = isolation.module("howdah.training", "--config", path)
        self.output = os.path.join(directory, "output.txt")
        self._metrics = os.path.join(directory, FILE_NAME)
        self._rows = config.training.global_batch_size
        self.ranks = running.enter_context(
            _running(argv, ranks, config.training.framework, self.output)
        )

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
        messages: bytes of each message of a step's reduction.
    """
    out = os.path.join(directory, "probe.json")
    sizes = json.dumps(list(messages))
    rank = isolation.module("howdah.training.planning.network_probe", framework, sizes, out)
    output = os.path.join(directory, "probe.txt")
    with _running(rank, 2, framework, output) as ranks:
        _until(lambda: _over(ranks), output)
        code = _code(ranks)
    if code != 0:
        raise _ended(output, code)
    with open(out, encoding="utf-8") as file:
        return json.load(file)


# ------------------------------------------------------------------------------------ processes
@contextlib.contextmanager
def _running(
    rank: Sequence[str], count: int, framework: str, output: str
) -> Iterator[Sequence[Child]]:
    """Start ranks on this machine; all of them are killed in the end, after errors too."""
    started: list[Child] = []
    try:
        for argv, env in _commands(rank, count, framework, os.path.dirname(output)):
            # Where this process is killed, nothing is to be saved.
            started.append(Child(argv, env=env, output=output, death_signal=signal.SIGKILL))
        yield started
    finally:  # Horovod starts each rank in its own session: find them by their parents
        family = [pid for child in started for pid in (child.pid, *descendants(child.pid))]
        starts = {pid: process_start(pid) for pid in family}
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for child in started:
            child.end()
        # A rank that still writes could create its directory again after the removal.
        _until(
            lambda: all(start != process_start(pid) for pid, start in starts.items() if start),
            output,
        )


def _commands(
    rank: Sequence[str], count: int, framework: str, directory: str
) -> Iterator[tuple[Sequence[str], Mapping[str, str]]]:
    """The processes to start, each with its environment: Horovod starts its ranks itself, those of
    torch.distributed meet in a file and need no launcher.

    Raises:
        ClusterError: TensorFlow's ranks need Horovod, and it is not installed.
    """
    env = isolation.environment() | {STORE: os.path.join(directory, "meeting")}
    if count == 1:
        yield rank, env
    elif horovod_installed(framework):
        hosts = ["--gloo", "-np", str(count), "-H", f"localhost:{count}"]
        yield [*isolation.module("horovod.runner.launch", *hosts), *rank], env
    elif framework == "torch":
        names = LAUNCHERS["torchrun"].variables
        for number in map(str, range(count)):
            place = {names.rank: number, names.local_rank: number}
            yield rank, env | place | {names.size: str(count), names.local_size: str(count)}
    else:
        raise ClusterError(
            f"Horovod for {framework} is not installed, and {count} ranks need it",
            remedy="run `make setup`, which builds it; `howdah doctor` says what is missing",
        )


def _over(ranks: Sequence[Child]) -> bool:
    """All have ended, or one has failed: the others can only wait for it."""
    return bool(_code(ranks)) or not any(rank.alive for rank in ranks)


def _code(ranks: Sequence[Child]) -> int | None:
    """The exit code of one that has failed; else 0, or None while one is running."""
    codes = [rank.code for rank in ranks]
    return next(filter(None, codes), None if None in codes else 0)


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
