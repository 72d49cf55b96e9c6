"""Batches for the loops: the planner's rows, gathered and padded, as numpy arrays.

Both loops use these arrays, so that both frameworks see the same ids in the same order.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from howdah.core import activity, threads
from howdah.core.activity import Activity
from howdah.data.splits.planner import (
    Planner,
    PlanState,
    Rows,
    check_world,
    micro_batches,
    padded_length,
)
from howdah.data.splits.prefetch import Prefetcher
from howdah.data.splits.shards import ShardSet

_BLOCK_ROWS = 512
"""Number of rows read at once: enough to make the fixed cost of a read small."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A micro-batch of this rank with B rows and T tokens.

    ids_BT, mask_BT: int32; for images ids_BT is uint8 [B, values], their pixels. labels_B: int32;
    for task multi_label float32 [B, C], 1 for each label of a row; for a regression float32 [B].
    weights_B: float32, the class's weight, 0 for a filler row. The step's loss is the sum of weight
    * loss over all ranks and micro-batches, divided by `global_weight`.
    """

    ids_BT: np.ndarray
    mask_BT: np.ndarray
    labels_B: np.ndarray
    weights_B: np.ndarray
    global_weight: float
    epoch: int
    step: int
    """Number of the step in the epoch."""
    micro: int
    micros: int
    """Number of the micro-batch, of `micros` in this rank's step."""
    real_tokens: int
    padded_tokens: int
    """B * T, which includes tokens of images."""
    rows: Rows = field(repr=False)
    shards: ShardSet = field(repr=False)

    @property
    def last_of_step(self) -> bool:
        """True if gradients are reduced after this micro-batch."""
        return self.micro + 1 == self.micros

    @cached_property
    def row_ids(self) -> list[bytes]:
        """The rows' keys (b"" for fillers), which predictions need; parsed at the first access."""
        return [
            self.shards.example(int(s), int(r)).id if s >= 0 else b""
            for s, r in zip(self.rows.shard, self.rows.row, strict=True)
        ]

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays that a framework gets."""
        return {
            "input_ids": self.ids_BT,
            "attention_mask": self.mask_BT,
            "labels": self.labels_B,
            "weights": self.weights_B,
        }


class BatchSource:
    """This rank's micro-batches in the plan's order, prepared ahead by a thread.

    Args:
        rank, world: the slice to read.
        max_tokens: maximum number of tokens of a micro-batch, padding included.
        pad_multiple: T is a multiple of it, up to `widest`.
        widest: positions of the model; None: no limit.
        class_weights: float[C]; None: all 1.
        start: position to begin at; None: the first step.
        stop_step: end, exclusive, in steps counted from epoch 0, step 0; None: the end of the epoch
            of `start`.
        prefetch: number of blocks of steps prepared ahead; 0: no thread.
        row_ids: parse the rows' keys while their shards are open; otherwise the first access parses
            them, which may fetch a remote shard again.
    """

    def __init__(
        self,
        shards: ShardSet,
        planner: Planner,
        *,
        rank: int,
        world: int,
        max_tokens: int,
        pad_multiple: int = 1,
        widest: int | None = None,
        pad_id: int = 0,
        class_weights: np.ndarray | None = None,
        start: PlanState | None = None,
        stop_step: int | None = None,
        prefetch: int = 2,
        row_ids: bool = False,
    ) -> None:
        self.shards = shards
        self.planner = planner
        self.rank, self.world = rank, world
        self._max_tokens = max_tokens
        self._pad_multiple, self._widest = pad_multiple, widest
        self._pad_id = pad_id
        self._class_weights = (
            None if class_weights is None else np.asarray(class_weights, dtype=np.float32)
        )
        start = start or planner.start()
        planner.check(start)
        check_world(planner.spec.global_batch_size, world)
        per_epoch = planner.steps_per_epoch
        self._first = start.epoch * per_epoch + start.step
        self._stop = (start.epoch + 1) * per_epoch if stop_step is None else stop_step
        self._block_steps = max(1, _BLOCK_ROWS * world // planner.spec.global_batch_size)
        self._prefetch = prefetch
        self._row_ids = row_ids
        self._urgent: Callable[[], bool] = lambda: True
        self._reached: Callable[[int], None] = lambda step: None
        self.waited = 0.0
        """Seconds that the consumer has waited for batches."""

    def __iter__(self) -> Iterator[Batch]:
        if self._prefetch:
            return self._ahead()
        return itertools.chain.from_iterable(map(self.block, range(self.block_count)))

    # -- making ------------------------------------------------------------------------------
    @property
    def block_count(self) -> int:
        return max(0, -(-(self._stop - self._first) // self._block_steps))

    def block(self, number: int) -> list[Batch]:
        """The micro-batches of consecutive steps, read together.

        Windows are read one after the other (a short epoch has several in a block), so that the
        cache only needs to hold the shards of one window.
        """
        first = self._first + number * self._block_steps
        stop = min(first + self._block_steps, self._stop)
        steps = [self.planner.at(step) for step in range(first, stop)]
        size, out, at = self.planner.window_batches, [], first
        for _, window in itertools.groupby(steps, lambda step: (step[0], step[1] // size)):
            inside = list(window)
            if at > first:
                self._reached(at)
            out += self._read(inside)
            at += len(inside)
        return out

    def _read(self, steps: list[tuple[int, int]]) -> list[Batch]:
        """The micro-batches of some steps (epoch, step) of one window.

        The N real rows of this rank in all these steps are gathered at once and then divided.
        """
        whole = [self.planner.batch(*step) for step in steps]
        mine = whole
        if self.world > 1:
            mine = [rows.take(slice(self.rank, None, self.world)) for rows in whole]
        real = Rows.joined([rows.without_fillers() for rows in mine])
        pixels = self.shards.layout.image is not None
        if pixels:
            ids = self.shards.gather_images(real.shard, real.row, self._urgent)
        else:  # [sum of lengths], one row after the other; int32[N]
            ids = self.shards.gather(real.shard, real.row, real.length, self._urgent)
        labels = self.shards.labels_of(real.shard, real.row)
        row_at = token_at = 0
        out = []
        for (epoch, step), batch, rows in zip(steps, whole, mine, strict=True):
            parts = micro_batches(rows, self._max_tokens, self._pad_multiple, self._widest)
            global_weight = self._global_weight(batch)
            for number, part in enumerate(parts):
                count = int(part.real.sum())  # fillers come last
                tokens = int(part.length[:count].sum())
                if pixels:  # uint8[B, values]; fillers are black
                    ids_BT = np.zeros((len(part), ids.shape[1]), np.uint8)
                    ids_BT[:count] = ids[row_at : row_at + count]
                    mask_BT = np.ones((len(part), int(part.length[0])), np.int32)
                else:
                    ids_BT, mask_BT = self._padded(part, count, ids[token_at : token_at + tokens])
                labels_B = np.zeros((len(part), *labels.shape[1:]), labels.dtype)
                labels_B[:count] = labels[row_at : row_at + count]
                row_at, token_at = row_at + count, token_at + tokens
                made_batch = Batch(
                    ids_BT=ids_BT,
                    mask_BT=mask_BT,
                    labels_B=labels_B,
                    weights_B=self._weights(labels_B, part.real),
                    global_weight=global_weight,
                    epoch=epoch,
                    step=step,
                    micro=number,
                    micros=len(parts),
                    real_tokens=tokens,
                    padded_tokens=mask_BT.size,
                    rows=part,
                    shards=self.shards,
                )
                if self._row_ids:
                    _ = made_batch.row_ids  # cached in the batch
                out.append(made_batch)
        return out

    def _padded(self, rows: Rows, count: int, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """ids_BT and mask_BT from the ids of the first `count` rows, concatenated.

        A filler row has one token in its mask: softmax over no token would be NaN.
        """
        width = padded_length(int(rows.length[0]), self._pad_multiple, self._widest)
        mask_BT = np.arange(width, dtype=np.int32) < rows.length[:, None]  # [T] < [B, 1]
        ids_BT = np.full((len(rows), width), self._pad_id, dtype=np.int32)
        ids_BT[:count][mask_BT[:count]] = ids  # in row-major order: row after row
        return ids_BT, mask_BT.astype(np.int32)

    def _weights(self, labels_B: np.ndarray, real: np.ndarray) -> np.ndarray:
        weights = real.astype(np.float32)
        return weights if self._class_weights is None else weights * self._class_weights[labels_B]

    def _global_weight(self, batch: Rows) -> float:
        """Sum of weights over the GLOBAL batch, which every rank computes without reading rows."""
        count = int(batch.real.sum())
        if self._class_weights is None:
            return float(count)
        labels = self.shards.labels_of(batch.shard[:count], batch.row[:count])
        return float(self._class_weights[labels].sum(dtype=np.float64))

    # -- ahead of time -------------------------------------------------------------------------
    def _ahead(self) -> Iterator[Batch]:
        """Batches from a thread that is some blocks ahead; the queue's items are whole blocks."""
        ready: queue.Queue = queue.Queue(maxsize=self._prefetch)
        closed = threading.Event()

        def put(item: object) -> bool:
            if ready.full():
                # Nothing is read until a block is consumed. Until then the cache may use this
                # rank's space for a rank that is behind, or for an evaluation.
                self.shards.release()
                if prefetcher:
                    prefetcher.reader_waits()
            while not closed.is_set():
                try:
                    ready.put(item, timeout=0.1)
                    return True
                except queue.Full:
                    continue
            return False

        reading = Activity("input")

        def work() -> None:
            reading.follow()
            try:
                for number in range(self.block_count):
                    if prefetcher:
                        prefetcher.reached(self._first + number * self._block_steps)
                    block = self.block(number)
                    reading.advanced()
                    if prefetcher and number + 1 < self.block_count:
                        # While this block waits to be consumed, lease the next one's shards.
                        prefetcher.reached(self._first + (number + 1) * self._block_steps)
                    elif prefetcher:
                        prefetcher.close()
                    if not put(block):
                        return
                self.shards.release()
                put(None)
            except BaseException as error:  # noqa: BLE001 - the consumer raises it
                put(error)

        def urgent() -> bool:
            if prefetcher:
                prefetcher.reader_waits()
            return ready.empty()

        def reached(step: int) -> None:
            if prefetcher:
                prefetcher.reached(step)

        self._urgent, self._reached = urgent, reached
        prefetcher = None
        if self.shards.files.cached and self.block_count:
            prefetcher = Prefetcher(
                self.shards.files,
                self.planner,
                first=self._first,
                stop=self._stop,
                rank=self.rank,
                world=self.world,
            )
        # `work` catches every exception, so that REPORT never applies.
        thread = threads.start(work, name="batches", failed=threads.REPORT)
        try:
            while True:
                begun = time.perf_counter()
                with activity.current().waiting_for(reading):
                    item = ready.get()
                self.waited += time.perf_counter() - begun
                if item is None:
                    return
                if isinstance(item, BaseException):
                    raise item
                yield from item
        finally:
            closed.set()
            if prefetcher:
                prefetcher.close()
            thread.join()
            self.shards.release()  # the consumer may have stopped before the end
