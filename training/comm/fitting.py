"""Micro-batches that become smaller where memory does not suffice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from howdah.errors import TrainingError
from howdah.training.comm.base import Comm
from howdah.training.data.readers import Batch, BatchSource

_KEY = "training.per_device_max_tokens"


class FittingSource:
    """A rank's micro-batches of training. A step for which a rank lacks memory begins again on all
    ranks, in smaller micro-batches, and so do all later steps. The global batch stays.

    Args:
        open_source: makes the source of the run's position, given the most tokens of a micro-batch.
        max_tokens: the most to begin with.
        least: tokens of the widest row: no micro-batch can be smaller.
        halves: False if a rank that lacks memory cannot tell the others.
        out_of_memory: True if an error of the framework means that memory does not suffice.
        say: shows a line to the user.
    """

    def __init__(
        self,
        open_source: Callable[[int], BatchSource],
        *,
        max_tokens: int,
        least: int,
        halves: bool,
        out_of_memory: Callable[[BaseException], bool],
        say: Callable[[str], None],
    ) -> None:
        self._open, self._least, self._halves = open_source, least, halves
        self._out_of_memory, self._say = out_of_memory, say
        self.max_tokens = max_tokens
        self.short = False
        """True if memory did not suffice for a micro-batch of this step: no further one of the step
        is to be computed."""
        self._failed = 0
        self._again = True
        self._waited = 0.0
        self._source: BatchSource | None = None

    @property
    def waited(self) -> float:
        """Seconds that the consumer has waited for batches."""
        return self._waited + (0.0 if self._source is None else self._source.waited)

    def __iter__(self) -> Iterator[Batch]:
        while self._again:
            self._again, self.short = False, False
            self._waited = self.waited
            self._source = self._open(self.max_tokens)
            for batch in self._source:
                yield batch
                if self._again:
                    break

    @contextmanager
    def fits(self, batch: Batch) -> Iterator[None]:
        """Compute a micro-batch inside. If memory does not suffice, `short` is set.

        The error is gone when this returns, and with it the frames that keep activations alive.
        Source: PyTorch, "Frequently Asked Questions", My out of memory exception handler can't
        allocate memory.

        Raises:
            TrainingError: memory does not suffice, and the step cannot begin again.
        """
        try:
            yield
        except Exception as error:
            if not self._out_of_memory(error):
                raise
            self._failed = batch.padded_tokens
            if not self._halves:
                raise self._error(str(error)) from error
            self.short = True

    def narrow(self, comm: Comm, step: int) -> None:
        """Begin the step again with the micro-batches that the rank with the least memory can have.
        Every rank enters; the next batch is the step's first one.

        Raises:
            TrainingError: micro-batches cannot become smaller; on all ranks alike.
        """
        half = self._failed // 2 if self.short else self.max_tokens
        half = int(comm.gather(np.array([half])).min())
        if half < self._least:
            raise self._error(f"a micro-batch of {2 * half:,} tokens does not fit")
        self._say(
            f"out of memory with a micro-batch of {2 * half:,} tokens: step {step} is done again"
            f" with at most {half:,}, and so are all later steps ({_KEY}: {half} begins with it)"
        )
        self.max_tokens, self._again = half, True

    def _error(self, got: str) -> TrainingError:
        remedies = f"lower {_KEY}" if not self._halves else "set training.gradient_checkpointing"
        return TrainingError(
            "there is not enough memory for a micro-batch",
            where=_KEY,
            got=got.splitlines()[0],
            remedy=f"{remedies}, or use a device with more memory",
        )
