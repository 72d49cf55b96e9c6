"""Trainings of a few steps, by real ranks, to measure with; each is ended once they are taken."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from howdah.config import Config, dump_yaml
from howdah.errors import TrainingError
from howdah.processes import descendants
from training import env, failure, launch_command
from training.metricslog import FILE_NAME
from training.place import process_start

__all__ = ["WARM_UP", "probe", "rates", "short", "steps", "steps_at_once"]

WARM_UP = 2
"""Steps that are not counted."""
_LEAST_STEPS, _MOST_STEPS = 8, 60
_ENOUGH_SECONDS = 6.0
"""Of steps: more of them are taken where they are short, since those vary more."""
_HANG_SECONDS = 900.0


def short(config: Config, directory: str, batch: int, threads: int) -> Config:
    """The same training, a few steps of it, in a directory of its own and with no traces."""
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
            "evaluation": type(config.evaluation)(splits=["validation"], predictions=False),
            "tracking": type(config.tracking)(tensorboard=False),
        }
    )


def steps(
    config: Config, ranks: int, count: int | None = None, *, most: int = _MOST_STEPS
) -> list[float]:
    """Seconds of each step after the first ones, of a run that is ended then.

    Args:
        count: steps to take with the first ones; None: as many as vary little together.
        most: not more than these.
    """
    return steps_at_once([config], ranks, count, most=most)[0]


def steps_at_once(
    configs: Sequence[Config], ranks: int, count: int | None, *, most: int = _MOST_STEPS
) -> list[list[float]]:
    """`steps` of trainings that know nothing of each other, beside one another."""
    least = count or max(WARM_UP + 1, min(_LEAST_STEPS, most))
    most = count or max(least, min(most, _MOST_STEPS))
    with contextlib.ExitStack() as running:
        runs = [_Run(config, ranks, running) for config in configs]

        def enough(run: _Run) -> bool:
            found = run.seconds(most)
            return len(found) >= (least if sum(found) >= _ENOUGH_SECONDS else most) - WARM_UP

        def failed(run: _Run) -> bool:
            return run.process.poll() is not None and not enough(run)

        _until(lambda: all(map(enough, runs)) or any(map(failed, runs)), runs[0].output)
        for run in filter(failed, runs):
            raise _ended(run.output, run.process.returncode)
    return [run.seconds(most) for run in runs]


class _Run:
    """A training of a few steps that has begun, and ends with `running`."""

    def __init__(self, config: Config, ranks: int, running: contextlib.ExitStack) -> None:
        directory = config.run.directory
        os.makedirs(directory)
        path = os.path.join(directory, "config.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(dump_yaml(config))
        argv = launch_command.command(
            path,
            np=ranks,
            launcher="horovodrun",
            cores=env.available_cores(),
            is_root=os.geteuid() == 0,
        )
        self.output = os.path.join(directory, "output.txt")
        self._metrics = os.path.join(directory, FILE_NAME)
        self._rows = config.training.global_batch_size
        self.process = running.enter_context(_running(argv, self.output))

    def seconds(self, most: int) -> list[float]:
        """Of each step so far, the first ones and those after `most` left out."""
        return [self._rows / rate for rate in rates(self._metrics)[WARM_UP:most]]


def rates(metrics: str) -> list[float]:
    """Rows a second of each step that is logged so far."""
    try:
        with open(metrics, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        return []
    lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    return [line["examples_per_second"] for line in lines if "examples_per_second" in line]


def probe(framework: str, messages: Sequence[int], place: str) -> dict:
    """What training/network_probe.py says of two ranks on this machine.

    Args:
        framework: tensorflow or torch.
        messages: bytes of each that a step's reduction sends.
        place: a directory for its files.
    """
    out = os.path.join(place, "probe.json")
    sizes = json.dumps(list(messages))
    rank = [sys.executable, "-m", "training.network_probe", framework, sizes, out]
    argv = launch_command.command(
        "-", np=2, launcher="horovodrun", cores=env.available_cores(), is_root=False, rank=rank
    )
    output = os.path.join(place, "probe.txt")
    with _running(argv, output) as process:
        _until(lambda: process.poll() is not None, output)
    if process.returncode != 0:
        raise _ended(output, process.returncode)
    with open(out, encoding="utf-8") as file:
        return json.load(file)


# ------------------------------------------------------------------------------------ processes
@contextlib.contextmanager
def _running(argv: Sequence[str], output: str) -> Iterator[subprocess.Popen]:
    """Ranks and their launcher; all of them are gone afterwards, whatever happened."""
    variables = launch_command.environment(os.environ, terminal=None, scratch=None)
    with open(output, "wb") as file:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
            env=variables, start_new_session=True,
        )  # fmt: skip
        try:
            yield process
        finally:  # the launcher gives each rank a session of its own: found by their parents
            family = [process.pid, *descendants(process.pid)]
            starts = {pid: process_start(pid) for pid in family}
            for pid in family:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
            # a rank that still writes would bring its directory back after its removal
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
    told = failure.first(os.path.dirname(output))
    if told is not None:
        last = told.text.splitlines()
    else:
        with open(output, encoding="utf-8", errors="replace") as file:
            last = file.read().strip().splitlines()[-15:]
    return TrainingError(
        "a short run to measure a step did not come to its end",
        expected=f"{_LEAST_STEPS} steps",
        got=("no progress" if exit_code is None else f"exit code {exit_code}")
        + "".join(f"\n    {line}" for line in last),
        remedy="`howdah train` with the same configuration shows what is wrong",
    )
