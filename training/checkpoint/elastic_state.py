"""A rank's state at the last commit of an elastic job, kept in the rank's memory.

When a rank is lost, the others continue from this state in a new world, without the lost rank or
with a replacement: at most `job.commit_every` steps are repeated. All ranks commit at the same
steps; rank 0 also commits at each checkpoint, whose copy it has made already. A new world continues
from the newest state that any of its ranks has, which is sent to the others as plain arrays and
JSON, or from the newest checkpoint if that is newer still (training/resuming.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from howdah.training.comm.base import Comm


class ElasticState:
    """The state at the last commit: a checkpoint's arrays and meta.

    Args:
        every: steps between commits.
        committed: called with the step of each commit.
    """

    def __init__(self, every: int, committed: Callable[[int], None] = lambda step: None) -> None:
        self.on = False
        """True if states are kept: only elastic jobs do."""
        self.tensors: dict[str, np.ndarray] = {}
        self._meta: dict[str, Any] | None = None
        self._every, self._committed = every, committed
        self._lineage = 0
        """The world that the state comes from: equal steps of two worlds may differ in bits."""
        self._world = 0
        self.holder: int | None = None
        """The rank of this world whose state all ranks continue from; None: no rank has a state."""
        self.newest: int | None = None
        """Step of the holder's state."""
        self._alike = False
        """True if all ranks of this world already have the same state."""

    @property
    def step(self) -> int | None:
        """Step of the last commit; None if there was none."""
        return None if self._meta is None else int(self._meta["step"])

    def meet(self, comm: Comm, world: int) -> None:
        """Find the rank with the newest state when a world begins. Every rank enters.

        Args:
            world: the world's number; later worlds have greater ones.
        """
        mine = [-1, 0] if self.step is None else [self.step, self._lineage]
        states = comm.gather_json(mine)
        newest = max(step for step, _ in states)
        self.holder = self.newest = None
        if newest >= 0:
            self.newest = newest
            self.holder = next(rank for rank, (step, _) in enumerate(states) if step == newest)
        self._alike = all(one == states[0] for one in states)
        self._world = world

    def share(self, comm: Comm) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The holder's state, to continue from. Every rank enters.

        Returns:
            (meta, tensors), read-only.
        """
        if not self._alike:
            meta = comm.broadcast_json(self._meta, root=self.holder)
            tensors = comm.broadcast(self.tensors, root=self.holder)
            self.hold(meta, tensors)
        self._lineage = self._world
        return self._meta, self.tensors

    def hold(self, meta: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> None:
        """Keep a state without copying it.

        Args:
            meta: plain JSON with at least "step".
            tensors: name -> array that must not change any more.
        """
        if self.on:
            self._meta, self.tensors = dict(meta), dict(tensors)
            self._lineage = self._world

    def due(self, step: int) -> bool:
        """True if a commit is due after this step."""
        return self.on and step % self._every == 0

    def commit(
        self, meta: Mapping[str, Any], snapshot: Callable[[], dict[str, np.ndarray]]
    ) -> None:
        """Replace the last state with this one.

        Args:
            meta: plain JSON with at least "step".
            snapshot: returns copies of all tensors; not called if the step is the same. The old
                state is freed first, so that memory for one state is enough. It cannot be needed
                any more: no collective happens in between, in which another rank could be lost.
        """
        if not self.on:
            return
        if self.step != meta["step"]:
            self.tensors = {}
            self.tensors = snapshot()
        self.hold(meta, self.tensors)
        self._committed(int(meta["step"]))
