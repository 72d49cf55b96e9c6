"""Predicts a step's time on more ranks by a model of the loops' compute and communication. Pure.

The loops accumulate a step's micro-batches, reduce the whole gradient, then update. The reduction
does not overlap the backward pass, so a step's parts add up:

    step = fixed + tokens of the rank * seconds per token + reduction over N ranks

The reduction is a ring's: each message of S bytes costs 2 (N - 1) hops and moves 2 (N - 1) / N * S
bytes through each rank (Patarasuk and Yuan, 2009). A byte takes the slower of the link and of the
processor that copies and adds. The word embeddings' gradient is reduced dense with the others, or
gathered from all ranks as the rows that a batch touches.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from howdah.errors import UsageError

_ROW_ID_BYTES = 8
_FLOAT_BYTES = 4
_GOAL = 0.9


@dataclass(frozen=True, kw_only=True)
class Compute:
    """A rank's own part of a step."""

    fixed_seconds: float
    """Independent of the batch: optimizer, norm, agreement."""
    token_seconds: float
    """Forward and backward of one token, padding included."""

    def seconds(self, tokens: float) -> float:
        """Compute seconds of a step with so many tokens on this rank."""
        return self.fixed_seconds + self.token_seconds * tokens

    def times(self, factor: float) -> Compute:
        """The same on a processor slower by a factor."""
        return Compute(
            fixed_seconds=factor * self.fixed_seconds, token_seconds=factor * self.token_seconds
        )


@dataclass(frozen=True, kw_only=True)
class Network:
    """Costs of the network between ranks."""

    byte_seconds: float
    """Of a byte in and out of a rank: the slower of link and processor."""
    message_seconds: float
    """Fixed cost of a message: Horovod's cycle and negotiation."""
    hop_seconds: float
    """Latency from one rank to the next: the link's and the operating system's."""

    def allreduce(self, size: float, ranks: int) -> float:
        """Seconds of a ring allreduce of a message of `size` bytes."""
        hops = 2 * (ranks - 1)
        return self.message_seconds + hops * (self.hop_seconds + size / ranks * self.byte_seconds)

    def allgather(self, size: float, ranks: int) -> float:
        """Seconds of a ring allgather of `size` bytes from each rank."""
        return self.message_seconds + (ranks - 1) * (self.hop_seconds + size * self.byte_seconds)


@dataclass(frozen=True, kw_only=True)
class Gradient:
    """The messages of a step."""

    dense: tuple[int, ...]
    """Bytes of each message, all parameters dense."""
    without_words: tuple[int, ...]
    """Bytes of each message without the word embeddings."""
    vocabulary: int
    """Rows of the word embeddings; 0: they are frozen."""
    width: int
    """Elements of such a row."""
    choice: str
    """training.sparse_embeddings: auto, dense or sparse."""

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of the word embeddings."""
        return self.width * _FLOAT_BYTES

    def sparse(self, rows: float, ranks: int) -> bool:
        """Whether the word embeddings are sent as rows, by the rule of training/preparation/job.py.

        Args:
            rows: rows that a rank's step touches.
        """
        if ranks == 1 or not self.vocabulary:
            return False
        if self.choice == "auto":
            return ranks * rows < 2 * self.vocabulary
        return {"dense": False, "sparse": True}[self.choice]

    def seconds(self, network: Network, rows: float, ranks: int) -> float:
        """Seconds of the whole reduction over `ranks`."""
        if ranks == 1:
            return 0.0
        agreement = network.allreduce(64, ranks)  # the step's one small sum
        if not self.sparse(rows, ranks):
            return agreement + sum(network.allreduce(size, ranks) for size in self.dense)
        gathered = network.allgather(rows * (self.row_bytes + _ROW_ID_BYTES), ranks)
        dense = sum(network.allreduce(size, ranks) for size in self.without_words)
        return agreement + dense + gathered


@dataclass(frozen=True, kw_only=True)
class Work:
    """A rank's slice of a step, averaged over some steps."""

    rows: float
    tokens: float
    """Padding included; of the rank with the most, since the others wait for it."""
    unique_ids: float
    """Rows of the word embeddings that the slice touches."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The predicted step of a world of `workers` ranks."""

    workers: int
    global_batch_size: int
    compute_seconds: float
    network_seconds: float
    sparse_embeddings: bool
    efficiency: float
    """Rows per second, divided by `workers` times those of one rank alone."""
    accumulation_for_90: int | None
    """Full micro-batches (per_device_max_tokens) per rank and step for an efficiency of 90%; None:
    it is not reached."""
    global_batch_for_90: int | None
    """The global batch size of that."""

    @property
    def step_seconds(self) -> float:
        """Seconds of one step."""
        return self.compute_seconds + self.network_seconds

    def as_dict(self) -> dict:
        """The JSON of --json."""
        return {
            "workers": self.workers,
            "global_batch_size": self.global_batch_size,
            "step_seconds": round(self.step_seconds, 4),
            "compute_seconds": round(self.compute_seconds, 4),
            "network_seconds": round(self.network_seconds, 4),
            "rows_per_second": round(self.global_batch_size / self.step_seconds, 2),
            "embeddings": "rows" if self.sparse_embeddings else "dense",
            "efficiency": round(self.efficiency, 4),
            "accumulation_for_90": self.accumulation_for_90,
            "global_batch_for_90": self.global_batch_for_90,
        }


def predict(
    workers: int,
    *,
    work: Work,
    alone: Work,
    micro: Work,
    compute: Compute,
    gradient: Gradient,
    network: Network,
) -> Prediction:
    """Predict the step of a world.

    Args:
        workers: ranks, one per node.
        work: a rank's slice in this world.
        alone: the step of a world of one.
        micro: a full micro-batch.
        compute: a rank's measured compute.
        gradient: the messages of the reduction.
        network: between the ranks.
    """
    own = compute.seconds(work.tokens)
    reduction = gradient.seconds(network, work.unique_ids, workers)
    alone_rate = alone.rows / compute.seconds(alone.tokens)
    count = _accumulation(workers, micro, compute, gradient, network, alone_rate)
    return Prediction(
        workers=workers,
        global_batch_size=round(work.rows * workers),
        compute_seconds=own,
        network_seconds=reduction,
        sparse_embeddings=gradient.sparse(work.unique_ids, workers),
        efficiency=work.rows / (own + reduction) / alone_rate,
        accumulation_for_90=count,
        global_batch_for_90=None if count is None else round(count * micro.rows * workers),
    )


def _accumulation(
    workers: int,
    micro: Work,
    compute: Compute,
    gradient: Gradient,
    network: Network,
    alone_rate: float,
) -> int | None:
    # rate = k rows / (fixed + k micro + reduction) >= goal * alone_rate, for k.
    # More micro-batches touch more rows, of which there are `vocabulary` at most.
    reduction = gradient.seconds(network, min(gradient.vocabulary, 2 * micro.unique_ids), workers)
    gained = micro.rows / (_GOAL * alone_rate) - compute.token_seconds * micro.tokens
    if gained <= 0:
        return None
    return max(1, math.ceil((compute.fixed_seconds + reduction) / gained))


def fit(tokens: Sequence[float], seconds: Sequence[float]) -> Compute:
    """Fit a line through measured steps (Theil and Sen), which is robust to a few outliers.

    Args:
        tokens: of each step, padding included.
        seconds: of each step.

    >>> fit([100, 200, 400, 400], [1.5, 2.5, 4.5, 9.0])
    Compute(fixed_seconds=0.5, token_seconds=0.01)
    """
    points = list(zip(tokens, seconds, strict=True))
    slopes = [
        (two[1] - one[1]) / (two[0] - one[0])
        for one, two in itertools.combinations(points, 2)
        if abs(two[0] - one[0]) > 0.1 * max(one[0], two[0])
    ]
    if not slopes:  # all steps have about the same tokens: the fixed part is not known
        return Compute(
            fixed_seconds=0.0, token_seconds=float(np.median(seconds) / np.median(tokens))
        )
    slope = max(0.0, float(np.median(slopes)))
    fixed = float(np.median([own - slope * count for count, own in points]))
    if fixed < 0:
        return Compute(
            fixed_seconds=0.0,
            token_seconds=float(np.median([own / count for count, own in points])),
        )
    return Compute(fixed_seconds=fixed, token_seconds=slope)


def bits_per_second(text: str) -> float:
    """Parse a link's speed in bits per second: 25G, 400M, 1.5G (K, M, G, T).

    >>> bits_per_second("25G")
    25000000000.0
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT])(?:bit(?:/s)?|bps)?", text.strip(), re.I)
    if match is None or float(match[1]) == 0:
        raise UsageError(
            "not the speed of a network", where="--network", expected="25G, 400M, ...", got=text
        )
    return float(match[1]) * 1000.0 ** (1 + "KMGT".index(match[2].upper()))
