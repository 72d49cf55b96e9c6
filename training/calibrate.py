"""Measures what training/scaling.py needs, by running the configured training for a few steps.

Real ranks take real steps of the real dataset, in a directory of their own that is removed again:
alone with the configured batch and with half of it (what is fixed, and what a token costs), then a
probe of the network by two ranks, then two ranks that train: what the model says of them is held
against what they took.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from howdah.config import Config, dump_yaml
from howdah.errors import TrainingError
from howdah.manifest import load_dataset
from howdah.processes import stat_fields
from training import distilbert, env, failure, launch_command, parameters, scaling
from training.basemodel import load_base
from training.comm import split_evenly
from training.metricslog import FILE_NAME
from training.place import process_start
from training.planner import Planner, Rows, micro_batches, pad_multiple, padded_length
from training.prepare import training_planner
from training.scaling import Compute, Gradient, Network, Prediction, Work
from training.shards import ShardSet, node_cache

__all__ = ["MEASURED", "Calibration", "Sizes", "measure"]

_STEPS = 8
_WARM_UP = 2
MEASURED = range(_WARM_UP, _STEPS)
"""Steps of the first epoch that short runs are judged by."""
_SAMPLED_STEPS = 20
_HANG_SECONDS = 900.0
_LOOPBACK_HOP = 30e-6
_LINK_HOP = 50e-6
"""A switched network's latency with the system's part in it, one way."""

_PAYLOAD = 1448 / 1514
"""Of an Ethernet frame of 1,500 bytes, without the headers of TCP, IP and Ethernet."""

Progress = Callable[[str], None]


class Sizes:
    """What of a run's steps is known without running it.

    Args:
        config: the run's.

    Raises:
        DataError, ModelError: no dataset or base model.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._dataset = load_dataset(config.data.dataset)
        self._shards = ShardSet(self._dataset, "train", cache=node_cache(config.training))

    def planner(self, global_batch_size: int) -> Planner:
        """The plan with another batch."""
        return training_planner(_with(self._config, global_batch_size), self._shards)

    def rank_tokens(self, rows: Rows) -> int:
        """Tokens of a rank's rows, with padding."""
        maximum = self._config.training.per_device_max_tokens
        multiple = pad_multiple(gpu=False)
        return sum(
            padded_length(int(part.length.max()), multiple) * len(part)
            for part in micro_batches(rows, maximum, multiple)
        )

    def work(self, world: int, steps: range = range(_SAMPLED_STEPS)) -> Work:
        """A rank's slice in a world; a batch smaller than the world is taken as large as it.

        Args:
            world: ranks.
            steps: of the first epoch, whose typical one it shall be.
        """
        batch = max(self._config.training.global_batch_size, world)
        planner = self.planner(batch)
        steps = [step for step in steps if step < planner.steps_per_epoch]
        # Rank 0 has the longest rows of a sorted batch: the one that the others wait for.
        slices = [planner.rank_rows(0, step, 0, world) for step in steps]
        return Work(
            rows=batch / world,
            tokens=statistics.median(self.rank_tokens(rows) for rows in slices),
            unique_ids=statistics.fmean(self._unique(rows) for rows in slices[:4]),
        )

    def micro(self) -> Work:
        """A full micro-batch: as many rows of the usual length as per_device_max_tokens holds."""
        one = self.work(1)
        rows = max(1, int(self._config.training.per_device_max_tokens * one.rows / one.tokens))
        planner = self.planner(rows)
        taken = planner.rank_rows(0, 0, 0, 1)
        return Work(rows=rows, tokens=rows * one.tokens / one.rows, unique_ids=self._unique(taken))

    def _unique(self, rows: Rows) -> int:
        rows = rows.take(rows.real)
        return len(np.unique(self._shards.gather(rows.shard, rows.row, rows.length)))

    def gradient(self) -> Gradient:
        """What a step's reduction sends."""
        training, model = self._config.training, self._config.model
        base = load_base(model.base, revision=model.revision)
        labels = len(self._dataset.manifest.labels)
        shapes = {
            **distilbert.encoder_shapes(base.config),
            **distilbert.head_shapes(base.config, labels),
        }
        names = parameters.trainable_names(base.config, model)
        words = parameters.WORD_EMBEDDINGS
        rest = [int(np.prod(shapes[name])) for name in names if name != words]
        every = [*rest, int(np.prod(shapes[words]))] if words in names else rest
        return Gradient(
            dense=_messages(every, training.fusion_groups),
            without_words=_messages(rest, training.fusion_groups),
            vocabulary=base.config["vocab_size"] if words in names else 0,
            width=base.config["dim"],
            choice=training.sparse_embeddings,
        )


def _messages(elements: Sequence[int], groups: int | None) -> tuple[int, ...]:
    sizes: dict[int, int] = {}
    for count, group in zip(elements, split_evenly(elements, groups), strict=True):
        sizes[group] = sizes.get(group, 0) + 4 * count
    return tuple(sizes.values())


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What was measured here, and how well the model says it again."""

    sizes: Sizes
    threads: int
    compute: Compute
    gradient: Gradient
    loopback: Network
    measured: dict[int, float]
    """Seconds a step, by ranks on this machine."""

    def network(self, bits_per_second: float) -> Network:
        """The network between nodes; a processor slower than the link is what counts."""
        return Network(
            byte_seconds=max(8 / bits_per_second / _PAYLOAD, self.loopback.byte_seconds),
            message_seconds=self.loopback.message_seconds,
            hop_seconds=_LINK_HOP,
        )

    def predict(
        self, workers: int, network: Network, steps: range = range(_SAMPLED_STEPS)
    ) -> Prediction:
        """The typical step of a world, among some of the first epoch."""
        return scaling.predict(
            workers,
            work=self.sizes.work(workers, steps),
            alone=self.sizes.work(1),
            micro=self.sizes.micro(),
            compute=self.compute,
            gradient=self.gradient,
            network=network,
        )

    def held_against(self) -> list[dict]:
        """Predicted and measured seconds of the worlds that were run here."""
        found = []
        for ranks, measured in self.measured.items():
            predicted = self.predict(ranks, self.loopback, MEASURED).step_seconds
            found.append(
                {
                    "workers": ranks,
                    "predicted_seconds": round(predicted, 4),
                    "measured_seconds": round(measured, 4),
                    "error": round(predicted / measured - 1, 4),
                }
            )
        return found


def measure(config: Config, progress: Progress) -> Calibration:
    """Calibrate the model on this machine: a minute or a few, all cores.

    Raises:
        TrainingError: a run ended before its steps were done; the end of its output is in it.
    """
    sizes = Sizes(config)
    gradient = sizes.gradient()
    # Two ranks share the machine in the end: one alone gets what each of them will have.
    threads = config.training.threads_per_rank or max(1, env.available_cores() // 2)
    batch = config.training.global_batch_size
    with tempfile.TemporaryDirectory(prefix="howdah-plan-") as place:
        tokens, seconds = [], []
        alone = 0.0
        for number, size in enumerate(dict.fromkeys((batch, max(1, batch // 2)))):
            progress(f"one rank, {_STEPS} steps of {size} rows ...")
            short = _short(config, os.path.join(place, f"alone-{number}"), size, threads)
            taken = _steps(short, 1)
            planner = sizes.planner(size)
            rows = [planner.rank_rows(0, step, 0, 1) for step in MEASURED]
            tokens += [sizes.rank_tokens(one) for one in rows]
            seconds += taken
            alone = alone or statistics.median(taken)
        measured = {1: alone}
        compute = scaling.fit(tokens, seconds)
        if batch > 1:
            progress("two ranks, the network alone ...")
            loopback = _loopback(config.training.framework, gradient, place)
            progress(f"two ranks, {_STEPS} steps of {batch} rows ...")
            taken = _steps(_short(config, os.path.join(place, "pair"), batch, threads), 2)
            measured[2] = statistics.median(taken)
        else:
            loopback = _loopback(config.training.framework, gradient, place)
    return Calibration(
        sizes=sizes,
        threads=threads,
        compute=compute,
        gradient=gradient,
        loopback=loopback,
        measured=measured,
    )


def _with(config: Config, global_batch_size: int) -> Config:
    training = config.training.model_copy(update={"global_batch_size": global_batch_size})
    return config.model_copy(update={"training": training})


def _short(config: Config, directory: str, batch: int, threads: int) -> Config:
    """The same training, a few steps of it, in a directory of its own and with no traces."""
    training = config.training.model_copy(
        update={
            "global_batch_size": batch,
            "max_steps": _STEPS,
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


def _steps(config: Config, ranks: int) -> list[float]:
    """Seconds of each step after the first ones, of a run that ends with them."""
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
    metrics = os.path.join(directory, FILE_NAME)
    output = os.path.join(directory, "output.txt")
    with _running(argv, output) as process:
        _until(lambda: len(_rates(metrics)) >= _STEPS or process.poll() is not None, output)
    rates = _rates(metrics)
    if len(rates) < _STEPS:
        raise _ended(output, process.returncode)
    rows = config.training.global_batch_size
    return [rows / rate for rate in rates[_WARM_UP:_STEPS]]


def _rates(metrics: str) -> list[float]:
    """Rows a second of each step that is logged so far."""
    try:
        with open(metrics, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        return []
    lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    return [line["examples_per_second"] for line in lines if "examples_per_second" in line]


def _loopback(framework: str, gradient: Gradient, place: str) -> Network:
    """Two ranks on this machine: what a message and a byte cost without a link between."""
    out = os.path.join(place, "probe.json")
    argv = launch_command.command(
        "-", np=2, launcher="horovodrun", cores=env.available_cores(), is_root=False
    )
    start = argv.index(sys.executable)
    sizes = json.dumps(list(gradient.dense))
    argv = [*argv[:start], sys.executable, "-m", "training.network_probe", framework, sizes, out]
    output = os.path.join(place, "probe.txt")
    with _running(argv, output) as process:
        _until(lambda: process.poll() is not None, output)
    if process.returncode != 0:
        raise _ended(output, process.returncode)
    with open(out, encoding="utf-8") as file:
        found = json.load(file)
    total = sum(gradient.dense)
    whole = found["reduction_seconds"] - len(gradient.dense) * found["message_seconds"]
    return Network(
        byte_seconds=max(whole, 0.0) / total,  # 2 (N - 1) / N = 1 for two
        message_seconds=max(found["message_seconds"] - 2 * _LOOPBACK_HOP, 0.0),
        hop_seconds=_LOOPBACK_HOP,
    )


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
            family = [process.pid, *_descendants(process.pid)]
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


def _descendants(pid: int) -> list[int]:
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = stat_fields(int(name))
            if fields is not None:
                parents[int(name)] = int(fields[1])
    found, todo = [], [pid]
    while todo:
        parent = todo.pop()
        children = [child for child, of in parents.items() if of == parent]
        found += children
        todo += children
    return found


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
        expected=f"{_STEPS} steps",
        got=("no progress" if exit_code is None else f"exit code {exit_code}")
        + "".join(f"\n    {line}" for line in last),
        remedy="`howdah train` with the same configuration shows what is wrong",
    )
