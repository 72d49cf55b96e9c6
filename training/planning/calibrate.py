"""Measures the inputs of training/planning/scaling.py by running a few steps of the configuration.

Ranks take steps on the configured dataset, in temporary directories. One rank trains with the
configured batch and with half of it (fixed cost, and cost per token); two ranks only reduce (the
network); two train independently at the same time (slowdown on a shared machine); two train
together, which is compared with the model's prediction.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from howdah.config.model import Config
from howdah.config.splits import TRAIN
from howdah.core import machine
from howdah.core.activity import Progress
from howdah.data.manifest import load_dataset
from howdah.data.splits.planner import Planner, Rows, micro_batches, pad_multiple, padded_length
from howdah.data.splits.shards import ShardSet, node_cache
from howdah.errors import DataError
from howdah.models.replay import training_rows
from howdah.models.weights import parameters
from howdah.models.weights.lora import adapter_shapes
from howdah.models.weights.pretrained import load_base
from howdah.process.devices import CPU
from howdah.training.comm.base import NETWORK_MESSAGE, network_message, split_evenly
from howdah.training.optim import schedule
from howdah.training.planning import scaling, short_runs
from howdah.training.planning.scaling import Compute, Gradient, Network, Prediction, Work
from howdah.training.preparation.job import training_planner
from howdah.training.preparation.precision import precision_of

_SAMPLED_STEPS = 20
_LOOPBACK_HOP = 30e-6
_LINK_HOP = 50e-6
"""One-way latency of a switched network, including the operating system."""

_PAYLOAD = 1448 / 1514
"""Share of payload in an Ethernet frame of 1,500 bytes, without TCP, IP and Ethernet headers."""


class Sizes:
    """Sizes of a run's steps, which follow from the plan without running it.

    Raises:
        DataError, ModelError: there is no dataset or base model.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._dataset = training_rows(load_dataset(config.data.dataset), config)
        self._shards = ShardSet(self._dataset, TRAIN, cache=node_cache(config.training))
        self._works: dict[tuple[int, range], Work] = {}

    def planner(self, global_batch_size: int) -> Planner:
        """The plan with a global batch size."""
        return training_planner(_with(self._config, global_batch_size), self._shards)

    def tokens(self, global_batch_size: int, steps: range) -> list[int]:
        """Tokens of each step with a global batch size on one rank, padding included."""
        planner = self.planner(global_batch_size)
        return [self.rank_tokens(planner.rank_rows(0, step, 0, 1)) for step in steps]

    def rank_tokens(self, rows: Rows) -> int:
        """Tokens of a rank's rows, padding included."""
        maximum = self._config.training.max_tokens()
        multiple = pad_multiple(False, precision_of(self._config, CPU))
        widest = self._dataset.manifest.fixed_length
        return sum(
            padded_length(int(part.length.max()), multiple, widest) * len(part)
            for part in micro_batches(rows, maximum, multiple, widest)
        )

    def work(self, world: int, steps: range = range(_SAMPLED_STEPS)) -> Work:
        """A rank's typical slice in a world; the batch has at least one row per rank.

        Args:
            world: number of ranks.
            steps: steps of the first epoch that the typical one is derived from.
        """
        if (world, steps) in self._works:
            return self._works[world, steps]
        batch = max(self._config.training.global_batch_size, world)
        planner = self.planner(batch)
        sampled = [step for step in steps if step < planner.steps_per_epoch]
        # Rank 0 has the longest rows of a sorted batch, so the others wait for it.
        slices = [planner.rank_rows(0, step, 0, world) for step in sampled]
        self._works[world, steps] = Work(
            rows=batch / world,
            tokens=statistics.median(self.rank_tokens(rows) for rows in slices),
            unique_ids=statistics.fmean(self._unique(rows) for rows in slices[:4]),
        )
        return self._works[world, steps]

    @cached_property
    def micro(self) -> Work:
        """A full micro-batch: as many rows of average length as fit per_device_max_tokens."""
        one = self.work(1)
        rows = max(1, int(self._config.training.max_tokens() * one.rows / one.tokens))
        planner = self.planner(rows)
        rank_rows = planner.rank_rows(0, 0, 0, 1)
        return Work(
            rows=rows, tokens=rows * one.tokens / one.rows, unique_ids=self._unique(rank_rows)
        )

    def _unique(self, rows: Rows) -> int:
        rows = rows.take(rows.real)
        return len(np.unique(self._shards.gather(rows.shard, rows.row, rows.length)))

    def gradient(self, most: int = NETWORK_MESSAGE) -> Gradient:
        """A step's reduction in float32, in messages of about `most` elements."""
        rest, vocabulary, width = self._elements
        every = (*rest, vocabulary * width) if vocabulary else rest
        return Gradient(
            dense=_messages(every, schedule.FUSION_GROUPS, most),
            without_words=_messages(rest, schedule.FUSION_GROUPS, most),
            vocabulary=vocabulary,
            width=width,
        )

    @cached_property
    def _elements(self) -> tuple[tuple[int, ...], int, int]:
        """Elements of each trainable tensor but the word embeddings; rows of these, 0 if they are
        frozen, and elements of a row."""
        model = self._config.model
        base = load_base(model.base, revision=model.revision)
        labels = len(self._dataset.manifest.labels)
        family = base.family
        shapes = family.encoder_shapes(base.config) | family.head_shapes(base.config, labels)
        lora = self._config.training.lora
        shapes |= adapter_shapes(base.config, model, lora)
        names = parameters.trainable_names(base.config, model, lora)
        words = family.word_embeddings
        rest = tuple(int(np.prod(shapes[name])) for name in names if name != words)
        vocabulary = base.config[family.keys.vocabulary] if words in names else 0
        return rest, vocabulary, base.config[family.keys.width]


def _messages(elements: Sequence[int], groups: int | None, most: int) -> tuple[int, ...]:
    sizes: dict[int, int] = {}
    for count, group in zip(elements, split_evenly(elements, groups, most=most), strict=True):
        sizes[group] = sizes.get(group, 0) + 4 * count
    return tuple(sizes.values())


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Measurements on this machine, and the predictions based on them."""

    sizes: Sizes
    threads: int
    compute: Compute
    gradient: Gradient
    loopback: Network
    steps: range
    """The steps of the first epoch that were measured."""
    measured: dict[int, float]
    """{number of ranks on this machine: seconds per step}."""
    beside: float
    """Factor by which a rank computes more slowly beside another rank on this machine."""
    coding: Mapping[str, float]
    """Seconds that a rank takes to code a number, by scaling.NUMBER_BYTES."""
    compression: str
    """`training.gradient_compression`."""

    def network(self, bits_per_second: float) -> Network:
        """The network between nodes; the slower of link and processor determines a byte's time."""
        return Network(
            byte_seconds=max(8 / bits_per_second / _PAYLOAD, self.loopback.byte_seconds),
            message_seconds=self.loopback.message_seconds,
            hop_seconds=_LINK_HOP,
        )

    def predict(
        self, workers: int, network: Network, *, compression: str | None = None
    ) -> Prediction:
        """The typical step among the first of the first epoch, with one rank per node.

        Args:
            compression: replaces the configuration's.
        """
        compression, steps = compression or self.compression, range(_SAMPLED_STEPS)
        if compression != "auto":
            return self._predict(workers, network, steps, self.compute, compression)
        each = {
            numbers: self._predict(workers, network, steps, self.compute, numbers)
            for numbers in scaling.NUMBER_BYTES
        }
        return each[scaling.what_pays({n: one.step_seconds for n, one in each.items()})]

    def predict_here(self, workers: int, network: Network) -> Prediction:
        """The typical step among the measured ones, with all ranks on this machine."""
        compute = self.compute if workers == 1 else self.compute.times(self.beside)
        numbers = "none" if self.compression == "auto" else self.compression
        return self._predict(workers, network, self.steps, compute, numbers)

    def _predict(
        self, workers: int, network: Network, steps: range, compute: Compute, numbers: str
    ) -> Prediction:
        overlapped = network is not self.loopback
        gradient = self.sizes.gradient(network_message(workers)) if overlapped else self.gradient
        return scaling.predict(
            workers,
            work=self.sizes.work(workers, steps),
            alone=self.sizes.work(1),
            micro=self.sizes.micro,
            compute=compute,
            gradient=gradient.sent(numbers, self.coding[numbers]),
            network=network,
            overlapped=overlapped,
        )

    def compared(self) -> list[dict]:
        """Predicted and measured seconds per step for the worlds that ran on this machine."""
        rows = []
        for ranks, measured in self.measured.items():
            predicted = self.predict_here(ranks, self.loopback).step_seconds
            rows.append(
                {
                    "workers": ranks,
                    "predicted_seconds": round(predicted, 4),
                    "measured_seconds": round(measured, 4),
                    "error": round(predicted / measured - 1, 4),
                }
            )
        return rows


def measure(config: Config, progress: Progress) -> Calibration:
    """Measure on this machine, which takes a few minutes and all cores.

    Raises:
        DataError: an epoch has too few steps.
        TrainingError: a run ended before its steps were done; `got` has the end of its output.
    """
    sizes = Sizes(config)
    gradient = sizes.gradient()
    # Two ranks share the machine later, so a single rank gets the threads that each will have.
    threads = config.training.threads_per_rank or max(1, machine.cores() // 2)
    batch = config.training.global_batch_size
    half = max(1, batch // 2)
    most = sizes.planner(batch).steps_per_epoch
    if most <= short_runs.WARM_UP:
        raise DataError(
            "too few rows to measure steps",
            where=config.data.dataset,
            expected=f"{short_runs.WARM_UP + 1} batches of {batch} rows in the train split",
            got=f"{most}",
            remedy="lower training.global_batch_size, or add data",
        )
    with tempfile.TemporaryDirectory(prefix="howdah-plan-") as directory:

        def short(name: str, size: int) -> Config:
            return short_runs.short(config, os.path.join(directory, name), size, threads)

        progress(f"one rank, steps of {batch} rows ...")
        full = short_runs.steps(short("alone", batch), 1, most=most)
        steps = range(short_runs.WARM_UP, short_runs.WARM_UP + len(full))
        measured, beside = {1: statistics.median(full)}, 1.0
        tokens, seconds = sizes.tokens(batch, steps), full
        progress("two ranks, only the network ...")
        probe = short_runs.probe(config.training.framework, gradient.dense, directory)
        if batch > 1:
            progress(f"one rank, {steps.stop} steps of {half} rows ...")
            halves = short_runs.steps(short("half", half), 1, steps.stop)
            tokens, seconds = tokens + sizes.tokens(half, steps), seconds + halves
            progress("the same on two independent ranks at once ...")
            pair = [short(name, half) for name in ("half-1", "half-2")]
            both = short_runs.steps_at_once(pair, 1, steps.stop)
            ratios = [b / a for other in both for a, b in zip(halves, other, strict=True)]
            beside = max(1.0, statistics.median(ratios))  # a factor below 1 is only noise
            progress(f"two ranks, {steps.stop} steps of {batch} rows ...")
            measured[2] = statistics.median(short_runs.steps(short("pair", batch), 2, steps.stop))
    return Calibration(
        sizes=sizes,
        threads=threads,
        compute=scaling.fit(tokens, seconds),
        gradient=gradient,
        loopback=_loopback(gradient, probe),
        steps=steps,
        measured=measured,
        beside=beside,
        coding=probe["coding_seconds"],
        compression=config.training.gradient_compression,
    )


def _loopback(gradient: Gradient, probe: Mapping[str, float]) -> Network:
    """Cost of a message and of a byte between two ranks on this machine, without a link."""
    total = sum(gradient.dense)
    whole = probe["reduction_seconds"] - len(gradient.dense) * probe["message_seconds"]
    return Network(
        byte_seconds=max(whole, 0.0) / total,  # 2 (N - 1) / N is 1 for two ranks
        message_seconds=max(probe["message_seconds"] - 2 * _LOOPBACK_HOP, 0.0),
        hop_seconds=_LOOPBACK_HOP,
    )


def _with(config: Config, global_batch_size: int) -> Config:
    training = config.training.model_copy(update={"global_batch_size": global_batch_size})
    return config.model_copy(update={"training": training})
