"""Predicts a step's time on more ranks with a model of the loops' compute and communication. Pure.

The loops accumulate a step's micro-batches, reduce the gradient, then update:

    step = fixed + tokens of the rank * seconds per token + what is exposed of the reduction

Between nodes a message begins when the backward pass of the last micro-batch, two thirds of its
time, has computed it: parameters from the last to the first, the word embeddings at the end. What
lasts longer than that pass is exposed. Within a node all of it is.

The reduction is a ring: each message of S bytes costs 2 (N - 1) hops and moves 2 (N - 1) / N * S
bytes through each rank (Patarasuk and Yuan, 2009). The slower of the link and of the processor that
copies and adds determines the time of a byte. The word embeddings' gradient is reduced dense with
the others, or gathered from all ranks as the rows that a batch touches. With
`training.gradient_compression` there are fewer bytes, and what it takes to code them is added to
the step, since processors that code do not compute.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from howdah.errors import UsageError
from howdah.training.comm.base import BLOCK, wire_bytes

_ROW_ID_BYTES = 8
BACKWARD = 2 / 3
"""Share of the backward pass in the products of a micro-batch."""
NUMBER_BYTES = {"none": 4.0, "bf16": 2.0, "int8": wire_bytes(BLOCK) / BLOCK}
"""Bytes of a number on the network by `training.gradient_compression`, from the least rounding to
the most; int8 with the scales of its blocks."""
_GOAL = 0.9
_PAYS = 0.05
"""Share of a step that a compression has to save, for what it rounds off."""


@dataclass(frozen=True, kw_only=True)
class Compute:
    """The part of a step that a rank computes by itself."""

    fixed_seconds: float
    """Seconds independent of the batch: optimizer, norm, agreement."""
    token_seconds: float
    """Seconds of the forward and backward pass per token, padding included."""

    def seconds(self, tokens: float) -> float:
        """Compute seconds of a step with this number of tokens on the rank."""
        return self.fixed_seconds + self.token_seconds * tokens

    def times(self, factor: float) -> Compute:
        """The same on a processor that is slower by a factor."""
        return Compute(
            fixed_seconds=factor * self.fixed_seconds, token_seconds=factor * self.token_seconds
        )


@dataclass(frozen=True, kw_only=True)
class Network:
    """Costs of the network between ranks."""

    byte_seconds: float
    """Seconds per byte in and out of a rank: the slower of link and processor."""
    message_seconds: float
    """Fixed cost of a message: Horovod's cycle and negotiation."""
    hop_seconds: float
    """Latency from one rank to the next, of link and operating system."""

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

    dense: tuple[float, ...]
    """Bytes of each message, all parameters dense."""
    without_words: tuple[float, ...]
    """Bytes of each message without the word embeddings."""
    vocabulary: int
    """Number of rows of the word embeddings; 0 if they are frozen."""
    width: int
    """Number of elements of a row of the word embeddings."""
    number_bytes: float = NUMBER_BYTES["none"]
    """Bytes of a number on the network."""
    coding_seconds: float = 0.0
    """Seconds that a rank takes to code a number, once, and to read it twice."""

    @property
    def row_bytes(self) -> float:
        """Bytes of a row of the word embeddings, which has bf16 beside int8."""
        none, bf16 = NUMBER_BYTES["none"], NUMBER_BYTES["bf16"]
        return self.width * (none if self.number_bytes == none else bf16)

    def sent(self, numbers: str, coding_seconds: float) -> Gradient:
        """The same in other numbers (`NUMBER_BYTES`)."""
        factor = NUMBER_BYTES[numbers] / self.number_bytes
        return replace(
            self,
            dense=tuple(factor * size for size in self.dense),
            without_words=tuple(factor * size for size in self.without_words),
            number_bytes=NUMBER_BYTES[numbers],
            coding_seconds=coding_seconds,
        )

    def sparse(self, rows: float, ranks: int) -> bool:
        """True if the word embeddings are sent as rows, by the rule of training/preparation/job.py.

        Args:
            rows: number of rows that a rank's step touches.
        """
        if ranks == 1 or not self.vocabulary:
            return False
        return ranks * rows < 2 * self.vocabulary

    def seconds(self, network: Network, rows: float, ranks: int, *, backward: float = 0.0) -> float:
        """Seconds that the reduction over `ranks` lasts longer than the backward pass.

        Args:
            rows: number of rows of the word embeddings that a rank's step touches.
            backward: seconds of the backward pass during which messages are sent; 0: they are sent
                after it.
        """
        if ranks == 1:
            return 0.0
        agreement = network.allreduce(64, ranks)  # the step's small sum
        gathered = 0.0
        if self.sparse(rows, ranks):
            gathered = network.allgather(rows * (self.row_bytes + _ROW_ID_BYTES), ranks)
            sizes = self.without_words[::-1]
        else:  # the word embeddings are in the last message, and complete at the end
            sizes = (*self.dense[-2::-1], self.dense[-1])
        coding = self.coding_seconds * sum(sizes) / self.number_bytes
        return agreement + _exposed(sizes, network, ranks, backward) + gathered + coding


def _exposed(sizes: Sequence[float], network: Network, ranks: int, backward: float) -> float:
    """Seconds that messages last longer than the backward pass that completes them in turn."""
    end, total = 0.0, sum(sizes)
    for size, computed in zip(sizes, itertools.accumulate(sizes), strict=True):
        end = max(end, backward * computed / total) + network.allreduce(size, ranks)
    return max(0.0, end - backward)


@dataclass(frozen=True, kw_only=True)
class Work:
    """A rank's slice of a step, averaged over some steps."""

    rows: float
    tokens: float
    """Tokens of the rank with the most, padding included, since the others wait for it."""
    unique_ids: float
    """Number of rows of the word embeddings that the slice touches."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The predicted step of a world of `workers` ranks."""

    workers: int
    global_batch_size: int
    compute_seconds: float
    network_seconds: float
    sparse_embeddings: bool
    compression: str
    """The numbers of NUMBER_BYTES."""
    efficiency: float
    """Rows per second, divided by `workers` times those of a single rank."""
    accumulation_for_90: int | None
    """Full micro-batches (per_device_max_tokens) per rank and step for an efficiency of 90 %; None
    if it cannot be reached."""
    global_batch_for_90: int | None
    """Global batch size with that number of micro-batches."""

    @property
    def step_seconds(self) -> float:
        return self.compute_seconds + self.network_seconds

    def as_dict(self) -> dict:
        """The entry in the output of --json."""
        return {
            "workers": self.workers,
            "global_batch_size": self.global_batch_size,
            "step_seconds": round(self.step_seconds, 4),
            "compute_seconds": round(self.compute_seconds, 4),
            "network_seconds": round(self.network_seconds, 4),
            "rows_per_second": round(self.global_batch_size / self.step_seconds, 2),
            "embeddings": "rows" if self.sparse_embeddings else "dense",
            "compression": self.compression,
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
    overlapped: bool = True,
) -> Prediction:
    """Predict the step of a world.

    Args:
        workers: number of ranks, one per node.
        work: a rank's slice in this world.
        alone: the step of a world of one rank.
        micro: a full micro-batch.
        overlapped: whether the reduction begins during the backward pass, as between nodes.
    """
    per_token = BACKWARD * compute.token_seconds if overlapped else 0.0
    compute_seconds = compute.seconds(work.tokens)
    backward = per_token * min(work.tokens, micro.tokens)
    reduction = gradient.seconds(network, work.unique_ids, workers, backward=backward)
    alone_rate = alone.rows / compute.seconds(alone.tokens)
    # More micro-batches touch more rows of the word embeddings, but at most `vocabulary`.
    most_rows = min(gradient.vocabulary, 2 * micro.unique_ids)
    full = gradient.seconds(network, most_rows, workers, backward=per_token * micro.tokens)
    count = _accumulation(micro, compute, full, alone_rate)
    return Prediction(
        workers=workers,
        global_batch_size=round(work.rows * workers),
        compute_seconds=compute_seconds,
        network_seconds=reduction,
        sparse_embeddings=gradient.sparse(work.unique_ids, workers),
        compression=next(n for n, b in NUMBER_BYTES.items() if b == gradient.number_bytes),
        efficiency=work.rows / (compute_seconds + reduction) / alone_rate,
        accumulation_for_90=count,
        global_batch_for_90=None if count is None else round(count * micro.rows * workers),
    )


def _accumulation(micro: Work, compute: Compute, reduction: float, alone_rate: float) -> int | None:
    # Solves rate = k rows / (fixed + k micro + reduction) >= goal * alone_rate for k.
    gained = micro.rows / (_GOAL * alone_rate) - compute.token_seconds * micro.tokens
    if gained <= 0:
        return None
    return max(1, math.ceil((compute.fixed_seconds + reduction) / gained))


def compressed_steps(
    computing: float,
    sums: float,
    *,
    backward: float,
    messages: int,
    coding: Mapping[str, float],
    crossing: float = 1.0,
) -> dict[str, float]:
    """Predict the seconds of a step in each of NUMBER_BYTES, from a measured one.

    Args:
        computing: seconds of a step without its sums.
        sums: seconds of the sums in float32, after the backward pass.
        backward: seconds of the backward pass that hides messages.
        messages: number of messages, which are taken as equal.
        coding: seconds that coding a step's gradient takes.
        crossing: `exchange_crossing` of the world.
    """
    network = Network(byte_seconds=1.0, message_seconds=0.0, hop_seconds=0.0)
    steps = {}
    for numbers, number_bytes in NUMBER_BYTES.items():
        message = sums / messages * number_bytes / NUMBER_BYTES["none"]  # seconds, as its size
        message *= 1.0 if numbers == "none" else crossing
        exposed = _exposed([message] * messages, network, 2, backward)  # each byte moves once
        steps[numbers] = computing + exposed + coding[numbers]
    return steps


def exchange_crossing(ranks: int, per_node: int) -> float:
    """Numbers that cross a node's link if all ranks exchange parts and gather sums, as compressed
    messages do, relative to a ring of the same ranks, whose neighbours are on one node.

    >>> exchange_crossing(8, 1), exchange_crossing(16, 8)
    (1.0, 2.6333333333333333)
    """
    return (per_node * (ranks - per_node) + ranks - 1) / (2 * (ranks - 1))


def what_pays(steps: Mapping[str, float]) -> str:
    """The compression that rounds least, unless one that rounds more saves a share of the step.

    Args:
        steps: seconds of a step by NUMBER_BYTES.

    >>> what_pays({"none": 1.0, "bf16": 0.7, "int8": 0.68})
    'bf16'
    """
    best = "none"
    for numbers in NUMBER_BYTES:
        if steps[numbers] < (1 - _PAYS) * steps[best]:
            best = numbers
    return best


def fit(tokens: Sequence[float], seconds: Sequence[float]) -> Compute:
    """Fit a line through measured steps (Theil and Sen), which is robust to a few outliers.

    Args:
        tokens: tokens of each step, padding included.
        seconds: seconds of each step.

    >>> fit([100, 200, 400, 400], [1.5, 2.5, 4.5, 9.0])
    Compute(fixed_seconds=0.5, token_seconds=0.01)
    """
    points = list(zip(tokens, seconds, strict=True))
    slopes = [
        (two[1] - one[1]) / (two[0] - one[0])
        for one, two in itertools.combinations(points, 2)
        if abs(two[0] - one[0]) > 0.1 * max(one[0], two[0])
    ]
    if not slopes:  # all steps have about the same tokens, so the fixed part is unknown
        return Compute(
            fixed_seconds=0.0, token_seconds=float(np.median(seconds) / np.median(tokens))
        )
    slope = max(0.0, float(np.median(slopes)))
    fixed = float(np.median([duration - slope * count for count, duration in points]))
    if fixed < 0:
        return Compute(
            fixed_seconds=0.0,
            token_seconds=float(np.median([duration / count for count, duration in points])),
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
