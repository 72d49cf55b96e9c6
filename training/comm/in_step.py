"""Gives all ranks the same number of batches, for a model whose passes every rank enters.

If parameters are divided among the ranks (training.parallel.shard: full), a forward or backward
pass is a collective. Rows have different lengths, so ranks have different numbers of micro-batches:
a rank that has no more of them computes fillers of weight 0 while the others continue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np

from howdah.config.training import ParallelSection
from howdah.training.comm.base import Comm
from howdah.training.data.readers import Batch


def steps_in_step(source: Iterable[Batch], comm: Comm) -> Iterator[Batch]:
    """The micro-batches of training; each step has as many as on the rank with the most. Every rank
    enters, once per step."""
    most = 0
    for batch in source:
        if batch.micro == 0:
            most = int(comm.gather(np.array([batch.micros])).max())
        yield replace(batch, micros=most)
        if batch.last_of_step:
            for number in range(batch.micros, most):
                yield replace(_filler(batch), micro=number, micros=most)


def passes_together(comm: Comm, parallel: ParallelSection) -> Comm | None:
    """The ranks that enter each forward and backward pass together; None if each computes
    separately."""
    return comm if parallel.shard == "full" and comm.size > 1 else None


class InStep:
    """The batches of an evaluation, then fillers until no rank has more. Every rank enters while it
    iterates.

    Args:
        stop: returns True if this rank was requested to stop; called before each batch.
    """

    def __init__(self, source: Iterable[Batch], comm: Comm, stop: Callable[[], bool]) -> None:
        self._source, self._comm, self._stop = source, comm, stop
        self.stopped = False
        """True if a rank was requested to stop; after the iteration it is equal on all ranks."""

    def __iter__(self) -> Iterator[Batch]:
        filler = None
        batches = iter(self._source)
        while True:
            batch = next(batches, None)
            going, stops = self._comm.sum(np.array([batch is not None, self._stop()], float))
            self.stopped = stops > 0
            if self.stopped or not going:
                return
            if batch is not None:
                filler = _filler(batch)
            yield batch or filler


def _filler(batch: Batch) -> Batch:
    """A batch with one row of weight 0: one token of a text, or all pixels of an image."""
    width = None if batch.ids_BT.dtype == np.uint8 else 1
    mask_BT = np.ones_like(batch.mask_BT[:1, :width])
    return replace(
        batch,
        ids_BT=batch.ids_BT[:1, :width],
        mask_BT=mask_BT,
        labels_B=batch.labels_B[:1],
        weights_B=np.zeros_like(batch.weights_B[:1]),
        real_tokens=0,
        padded_tokens=mask_BT.size,
        rows=batch.rows.take(slice(0, 0)),
    )
