"""Measures what training/scaling.py needs, by running the configured training for a few steps.

Real ranks take real steps of the real dataset, in a directory of their own that is removed again:
alone with the configured batch and with half of it (what is fixed, and what a token costs), two
that only reduce (the network), two at once that know nothing of each other (what they take from
each other), then two that train: what the model says of them is held against what they took.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from howdah.config import Config
from howdah.errors import DataError
from howdah.manifest import load_dataset
from training import distilbert, env, parameters, scaling, shortruns
from training.basemodel import load_base
from training.comm import split_evenly
from training.devices import CPU
from training.planner import Planner, Rows, micro_batches, pad_multiple, padded_length
from training.prepare import precision_of, training_planner
from training.scaling import Compute, Gradient, Network, Prediction, Work
from training.shards import ShardSet, node_cache

__all__ = ["Calibration", "Sizes", "measure"]

_SAMPLED_STEPS = 20
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

    def tokens(self, global_batch_size: int, steps: range) -> list[int]:
        """Of each of these steps with another batch, on one rank, with padding."""
        planner = self.planner(global_batch_size)
        return [self.rank_tokens(planner.rank_rows(0, step, 0, 1)) for step in steps]

    def rank_tokens(self, rows: Rows) -> int:
        """Tokens of a rank's rows, with padding."""
        maximum = self._config.training.per_device_max_tokens
        multiple = pad_multiple(False, precision_of(self._config, CPU))
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
    steps: range
    """Those of the first epoch that short runs were judged by."""
    measured: dict[int, float]
    """Seconds a step, by ranks on this machine."""
    beside: float
    """By what a rank's compute takes longer while another one computes on this machine."""

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
        """The typical step of a world, one rank a node, among some of the first epoch."""
        return self._predict(workers, network, steps, self.compute)

    def predict_here(self, workers: int, network: Network) -> Prediction:
        """The typical one of the steps that were measured, two ranks sharing this machine."""
        own = self.compute if workers == 1 else self.compute.times(self.beside)
        return self._predict(workers, network, self.steps, own)

    def _predict(
        self, workers: int, network: Network, steps: range, compute: Compute
    ) -> Prediction:
        return scaling.predict(
            workers,
            work=self.sizes.work(workers, steps),
            alone=self.sizes.work(1),
            micro=self.sizes.micro(),
            compute=compute,
            gradient=self.gradient,
            network=network,
        )

    def held_against(self) -> list[dict]:
        """Predicted and measured seconds of the worlds that were run here."""
        found = []
        for ranks, measured in self.measured.items():
            predicted = self.predict_here(ranks, self.loopback).step_seconds
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
        DataError: an epoch has too few steps.
        TrainingError: a run ended before its steps were done; the end of its output is in it.
    """
    sizes = Sizes(config)
    gradient = sizes.gradient()
    # Two ranks share the machine in the end: one alone gets what each of them will have.
    threads = config.training.threads_per_rank or max(1, env.available_cores() // 2)
    batch = config.training.global_batch_size
    half = max(1, batch // 2)
    most = sizes.planner(batch).steps_per_epoch
    if most <= shortruns.WARM_UP:
        raise DataError(
            "too few rows to measure steps with",
            where=config.data.dataset,
            expected=f"{shortruns.WARM_UP + 1} batches of {batch} rows in the train split",
            got=f"{most}",
            remedy="a smaller training.global_batch_size, or more data",
        )
    with tempfile.TemporaryDirectory(prefix="howdah-plan-") as place:

        def short(name: str, size: int) -> Config:
            return shortruns.short(config, os.path.join(place, name), size, threads)

        progress(f"one rank, steps of {batch} rows ...")
        full = shortruns.steps(short("alone", batch), 1, most=most)
        steps = range(shortruns.WARM_UP, shortruns.WARM_UP + len(full))
        measured, beside = {1: statistics.median(full)}, 1.0
        tokens, seconds = sizes.tokens(batch, steps), full
        progress("two ranks, the network alone ...")
        loopback = _loopback(config.training.framework, gradient, place)
        if batch > 1:
            progress(f"one rank, {steps.stop} steps of {half} rows ...")
            halves = shortruns.steps(short("half", half), 1, steps.stop)
            tokens, seconds = tokens + sizes.tokens(half, steps), seconds + halves
            progress("the same by two ranks at once, on their own ...")
            pair = [short(name, half) for name in ("half-1", "half-2")]
            beside = _slowdown(halves, *shortruns.steps_at_once(pair, 1, steps.stop))
            progress(f"two ranks, {steps.stop} steps of {batch} rows ...")
            measured[2] = statistics.median(shortruns.steps(short("pair", batch), 2, steps.stop))
    return Calibration(
        sizes=sizes,
        threads=threads,
        compute=scaling.fit(tokens, seconds),
        gradient=gradient,
        loopback=loopback,
        steps=steps,
        measured=measured,
        beside=beside,
    )


def _slowdown(alone: Sequence[float], *others: Sequence[float]) -> float:
    """By what the same steps take longer; never shorter, which noise alone would say."""
    ratios = [b / a for other in others for a, b in zip(alone, other, strict=True)]
    return max(1.0, statistics.median(ratios))


def _loopback(framework: str, gradient: Gradient, place: str) -> Network:
    """Two ranks on this machine: what a message and a byte cost without a link between."""
    found = shortruns.probe(framework, gradient.dense, place)
    total = sum(gradient.dense)
    whole = found["reduction_seconds"] - len(gradient.dense) * found["message_seconds"]
    return Network(
        byte_seconds=max(whole, 0.0) / total,  # 2 (N - 1) / N = 1 for two
        message_seconds=max(found["message_seconds"] - 2 * _LOOPBACK_HOP, 0.0),
        hop_seconds=_LOOPBACK_HOP,
    )


def _with(config: Config, global_batch_size: int) -> Config:
    training = config.training.model_copy(update={"global_batch_size": global_batch_size})
    return config.model_copy(update={"training": training})
