"""What a run resumes from: the content of a checkpoint, and of an elastic job's memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from howdah.training.checkpoint.elastic_state import ElasticState
from howdah.training.checkpoint.read import MODEL
from howdah.training.checkpoint.snapshots import Arrays, Snapshots
from howdah.training.checkpoint.state import TrainState


class ResumableState:
    """A loop's state between two steps: counters, tensors, and the evaluation still to be done.

    Args:
        state: the counters.
        memory: where an elastic job keeps states besides.
        snapshots: where copies of tensors are made.
        evaluation_due: the run was stopped before the evaluation of this step.
        weights: all weights by Hugging Face's torch names, perhaps the model's own memory. Called
            on rank 0 alone, and for `memory`.
        moments: AdamW's moments, `adam_m/<name>` and `adam_v/<name>`. Likewise.
        collect: where moments are divided among the ranks, in place of `moments`: gives rank 0 the
            tensors of a checkpoint from their weights; every rank enters.
        collect_weights: where weights are divided too: gives rank 0 all of them from what
            `weights` gives here; every rank enters.
    """

    def __init__(
        self,
        state: TrainState,
        memory: ElasticState,
        snapshots: Snapshots,
        *,
        evaluation_due: bool,
        weights: Callable[[], Arrays],
        moments: Callable[[], Arrays] | None,
        collect: Callable[[Arrays], dict[str, np.ndarray] | None] | None = None,
        collect_weights: Callable[[Arrays], dict[str, np.ndarray] | None] | None = None,
    ) -> None:
        self.state = state
        self.evaluation_due = evaluation_due
        """An evaluation of this step is due and not done."""
        self.weights = weights
        self._moments, self._memory, self._snapshots = moments, memory, snapshots
        self._collect, self._collect_weights = collect, collect_weights

    @property
    def steps_in_epoch(self) -> int:
        """Steps done since the present epoch began; 0 at an epoch's end."""
        return int(self.state.plan["step"])

    @property
    def in_memory(self) -> bool:
        """The job is elastic: every rank commits its state to memory."""
        return self._memory.on

    @property
    def divided(self) -> bool:
        """No rank has the whole state: every rank enters `tensors`."""
        return self._collect is not None

    def whole_weights(self) -> Callable[[], dict[str, np.ndarray]]:
        """What gives all weights by their plain names, on rank 0. Every rank enters where they are
        divided among the ranks."""
        if self._collect_weights is None:
            return lambda: dict(self.weights())
        stored = self._collect_weights(self.weights())
        return lambda: {name: np.asarray(array) for name, array in stored.items()}

    def meta(self) -> dict[str, Any]:
        """The state without its tensors, as plain JSON."""
        return self.state.to_meta() | {"evaluation_due": self.evaluation_due}

    def warm(self) -> None:
        """Allocate the memory of the first snapshot in the background."""
        if not self.divided:
            self._snapshots.warm(self._arrays())

    def tensors(self) -> dict[str, np.ndarray] | None:
        """Copies of all tensors, or those in memory where they are of this step.

        Where the state is divided every rank enters, and rank 0 alone gets them.

        Raises:
            StorageError: where it is divided, on rank 0: its local disk does not hold them.
        """
        if self._collect is not None:
            return self._collect((MODEL + name, array) for name, array in self.weights())
        if self._memory.step == self.state.step:
            return self._memory.tensors
        return self._snapshots.take(self._arrays())

    def commit(self) -> None:
        """Keep this state in memory, on every rank of an elastic job at the same steps, or on some
        of them: a new world takes the newest. No collective. Nothing in other jobs."""
        self._memory.commit(self.meta(), self.tensors)

    def _arrays(self) -> Arrays:
        """All tensors of a checkpoint, as they are now."""
        for name, array in self.weights():
            yield MODEL + name, array
        yield from self._moments()
