"""The state that a run resumes from: the content of a checkpoint and of an elastic job's memory."""

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
        evaluation_due: the run was stopped before the evaluation of this step.
        weights: returns all weights by Hugging Face's torch names, possibly in the model's memory.
            Called only on rank 0, and for `memory`.
        moments: returns AdamW's moments, `adam_m/<name>` and `adam_v/<name>`; called like
            `weights`.
        collect: replaces `moments` if they are divided among the ranks: every rank enters with its
            weights, and rank 0 gets the tensors of a checkpoint.
        of_base: names of the weights that a checkpoint leaves out, since they are frozen and those
            of the base model, which every reader of a checkpoint has or can read.
        collect_weights: needed if weights are divided too: every rank enters with the result of
            `weights`, and rank 0 gets all weights.
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
        of_base: frozenset[str] = frozenset(),
        collect: Callable[[Arrays], dict[str, np.ndarray] | None] | None = None,
        collect_weights: Callable[[Arrays], dict[str, np.ndarray] | None] | None = None,
    ) -> None:
        self.state = state
        self.evaluation_due = evaluation_due
        """True if an evaluation of this step is due and not done."""
        self.weights, self.of_base = weights, of_base
        self._moments, self._memory, self._snapshots = moments, memory, snapshots
        self._collect, self._collect_weights = collect, collect_weights

    @property
    def steps_in_epoch(self) -> int:
        """Steps done since the current epoch began; 0 at an epoch's end."""
        return int(self.state.plan["step"])

    @property
    def in_memory(self) -> bool:
        """True if the job is elastic, and every rank commits its state to memory."""
        return self._memory.on

    @property
    def divided(self) -> bool:
        """True if no rank has the whole state, and every rank enters `tensors`."""
        return self._collect is not None

    def whole_weights(self) -> Callable[[], dict[str, np.ndarray]]:
        """A function that returns all weights by their plain names, on rank 0. Every rank enters if
        they are divided among the ranks."""
        if self._collect_weights is None:
            return lambda: dict(self.weights())
        stored = self._collect_weights(self.weights())
        return lambda: {name: np.asarray(array) for name, array in stored.items()}

    def meta(self) -> dict[str, Any]:
        """The state without its tensors, as plain JSON."""
        due = {"evaluation_due": self.evaluation_due}
        return self.state.to_meta() | due | {"of_base": sorted(self.of_base)}

    def warm(self) -> None:
        """Allocate the memory of the first snapshot in the background."""
        if not self.divided:
            arrays = self._arrays()
            self._snapshots.warm(arrays if self.in_memory else self._without_base(arrays))

    def tensors(self) -> dict[str, np.ndarray] | None:
        """Copies of a checkpoint's tensors, or the committed ones if they belong to this step.

        If the state is divided, every rank enters, and only rank 0 gets them.

        Raises:
            StorageError: the state is divided, and rank 0's local disk has no space for it.
        """
        if self._collect is not None:
            collected = self._collect((MODEL + name, array) for name, array in self.weights())
            return collected and dict(self._without_base(collected.items()))
        if self._memory.step == self.state.step:
            return dict(self._without_base(self._memory.tensors.items()))
        return self._snapshots.take(self._without_base(self._arrays()))

    def commit(self) -> None:
        """Keep this state in memory. All ranks of an elastic job do it at the same steps, some of
        them more often: a new world uses the newest state. It has no collective, and does nothing
        in other jobs."""
        self._memory.commit(self.meta(), lambda: self._snapshots.take(self._arrays()))

    def _arrays(self) -> Arrays:
        """All current tensors by their names in a checkpoint."""
        for name, array in self.weights():
            yield MODEL + name, array
        yield from self._moments()

    def _without_base(self, arrays: Arrays) -> Arrays:
        left_out = {MODEL + name for name in self.of_base}
        return ((name, array) for name, array in arrays if name not in left_out)
