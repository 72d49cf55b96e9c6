"""What a rank of an elastic job remembers: its state at the last commit, in its own memory.

When a rank is lost the others go on from here, in a world without it or with one in its place: no
storage is asked, and at most `yarn.commit_every` steps are done again. Every rank commits at the
same steps. In a new world the newest state that some rank remembers becomes everybody's. It crosses
the network as plain arrays and JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from training.comm import Comm

__all__ = ["Memory"]


class Memory:
    """The state at the last commit: arrays as in a checkpoint, and its meta.

    Args:
        every: steps between commits.
        told: called with the step of each commit.
    """

    def __init__(self, every: int, told: Callable[[int], None] = lambda step: None) -> None:
        self.on = False
        """The job is elastic: states are kept."""
        self.tensors: dict[str, np.ndarray] = {}
        self._meta: dict[str, Any] | None = None
        self._every, self._told = every, told
        self._lineage = 0
        self._world = 0
        self.holder: int | None = None
        """The rank of this world whose state all go on from; None: nobody remembers anything."""
        self._alike = False

    @property
    def step(self) -> int | None:
        """Of the commit; None: nothing is remembered."""
        return None if self._meta is None else int(self._meta["step"])

    def meet(self, comm: Comm, world: int) -> None:
        """A world begins: find out who remembers the newest state. Every rank enters.

        Args:
            world: its number; later worlds have greater ones.
        """
        # Two states of one step need not be the same bits: they may come from different worlds.
        mine = [-1, 0] if self.step is None else [self.step, self._lineage]
        known = comm.gather_json(mine)
        newest = max(step for step, _ in known)
        self.holder = None
        if newest >= 0:
            self.holder = next(rank for rank, (step, _) in enumerate(known) if step == newest)
        self._alike = all(one == known[0] for one in known)
        self._world = world

    def share(self, comm: Comm) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The state to go on from: the holder's, on every rank. Every rank enters.

        Returns:
            (meta, tensors), which nobody changes.
        """
        if not self._alike:
            meta = comm.broadcast_json(self._meta, root=self.holder)
            tensors = comm.broadcast(self.tensors, root=self.holder)
            self.hold(meta, tensors)
        self._lineage = self._world
        return self._meta, self.tensors

    def hold(self, meta: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> None:
        """Remember a state that is there already; nothing is copied.

        Args:
            meta: plain JSON with at least "step".
            tensors: name -> array that nobody changes from now on.
        """
        if self.on:
            self._meta, self.tensors = dict(meta), dict(tensors)
            self._lineage = self._world

    def due(self, step: int) -> bool:
        """A commit is due after this step."""
        return self.on and step % self._every == 0

    def commit(
        self, meta: Mapping[str, Any], snapshot: Callable[[], dict[str, np.ndarray]]
    ) -> None:
        """Remember this state in the place of the last one.

        Args:
            meta: plain JSON with at least "step".
            snapshot: gives copies of all tensors; not called where the step is the same. Nothing
                can fail between the old state and the new one: no collective lies between, so that
                memory for one is enough.
        """
        if not self.on:
            return
        if self.step != meta["step"]:
            self.tensors = {}
            self.tensors = snapshot()
        self.hold(meta, self.tensors)
        self._told(int(meta["step"]))
