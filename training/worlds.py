"""The worlds of ranks that a process trains in: one, or of an elastic job one after another.

    for comm in worlds:
        with worlds.survived():
            ...                       # everything that enters a collective

A lost rank, or a change of worlds, ends the block; the next world begins it anew, in the same
process and with what `worlds.memory` holds. Without an agent
(training/elastic/control_channel.py) there is one world, the launcher's, and its errors are
raised.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from howdah.core import threads
from howdah.process.env import rank_env
from howdah.training.checkpoint.elastic_state import ElasticState
from howdah.training.comm import backends
from howdah.training.comm.base import Comm, Waits, WorldChanged, rank_lost
from howdah.training.comm.connections import Connections
from howdah.training.elastic.control_channel import ControlChannel
from howdah.training.run.collective_limit import COLLECTIVE_SECONDS, CollectiveLimit
from howdah.training.run.run import Run

_PATIENCE_SECONDS = 5.0
"""How long a collective may still wait after a member of its world is known to be gone: usually the
kernel has ended the wait by then."""
_AGAIN_SECONDS = 1.0
"""After so long the connections are shut again, until the world is left: Horovod may be making new
ones."""


class Worlds:
    """The worlds of this process, to be iterated over once.

    Args:
        framework: "tensorflow" or "torch".
        run: this rank's side of the run.
        channel: to the agent; None: the launcher's world is the only one.
        waits: counts the time in collectives.
    """

    def __init__(
        self,
        framework: str,
        run: Run,
        channel: ControlChannel | None = None,
        waits: Waits | None = None,
    ) -> None:
        self._framework, self._run, self._channel = framework, run, channel
        self._waits = waits or Waits()
        self._elastic = False
        self._over = self._limited = False
        self._comm: Comm | None = None
        self._connections: Connections | None = None
        """To the others of the world that this process is in, joins or leaves."""
        self._placed: set[str] = set()
        """Environment variables that the last world has set."""
        self.memory = ElasticState(
            run.config.job.commit_every,
            committed=lambda step: run.heartbeat.send("commit", step=step),
        )

    def __iter__(self) -> Iterator[Comm]:
        while not self._over:
            try:
                self._join()
            except BaseException as error:  # noqa: BLE001 - `_leave` raises what is not survived
                self._leave(error)
                continue
            self._over = True
            yield self._comm

    @contextmanager
    def survived(self) -> Iterator[None]:
        """Inside is all that a world does. Its end by a lost rank, or for another one, is no error
        in an elastic job: this process leaves it, and the iteration goes on with the next.
        """
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - `_leave` raises what is not survived
            self._over = False
            self._leave(error)

    @property
    def change_wanted(self) -> bool:
        """The agent has asked this rank to leave this world for another one."""
        return self._elastic and self._channel.change_wanted

    def close(self) -> None:
        """Shut the last world down. Every rank enters: the others wait for it."""
        self._comm.shutdown()

    # ------------------------------------------------------------------------------- joining
    def _join(self) -> None:
        run, channel = self._run, self._channel
        self._comm = None
        run.heartbeat.enter("join")
        if channel is None:
            training = run.config.training
            self._comm = backends.init(
                self._framework,
                self._waits,
                choice=training.comm,
                limit=COLLECTIVE_SECONDS,
            )
            self._limit_collectives()
            run.heartbeat.enter("prepare")
            run.share(self._comm)
            return
        world = channel.next_world()
        for name in self._placed - world.env.keys():
            os.environ.pop(name, None)
        os.environ.update(world.env)
        self._placed = set(world.env)
        self._elastic = run.elastic = self.memory.on = world.elastic
        self._connections, run.loss_known = Connections(), False
        self._comm = backends.init(
            self._framework, self._waits, self._connections, choice=run.config.training.comm
        )
        channel.send("joined", generation=world.generation, rank=self._comm.rank)
        self._limit_collectives()
        run.heartbeat.enter("prepare")
        run.enter(rank_env(), world.generation)
        run.share(self._comm)
        if world.elastic:
            self.memory.meet(self._comm, world.generation)

    def _limit_collectives(self) -> None:
        """From now on a collective that never comes back ends this process, where nothing else
        would: NCCL and MPI wait for ever for a rank that is stopped or cut off."""
        if self._limited or self._comm.size == 1:
            return
        if self._run.gpu or self._comm.waits_for_ever:
            CollectiveLimit(self._run, self._waits, COLLECTIVE_SECONDS).start()
            self._limited = True

    # ------------------------------------------------------------------------------- leaving
    def _leave(self, error: BaseException) -> None:
        """Leave this world for the next one; raises the error where there is no next one."""
        changed = isinstance(error, WorldChanged)
        if not self._elastic or not (changed or rank_lost(error)) or self._run.stops.alone:
            raise error
        if self._run.stops.requested():  # no other rank is left to agree on a step with
            self._run.last_save.save()
            raise self._run.stop_error()
        self._run.heartbeat.enter("join")
        self._run.end_steps()
        if not changed:
            where = "nothing yet" if self.memory.step is None else f"step {self.memory.step}"
            self._run.say(f"a rank was lost; in memory: {where}; waiting for the others")
        if self._comm is not None:
            self._comm.shutdown()
        if self._connections is not None:
            self._connections.over()
            self._connections = None
        self._channel.send(
            "left",
            generation=self._channel.generation,
            reason="changed" if changed else "lost",
            step=self.memory.step,
        )

    def lost(self) -> None:
        """The agent knows that a member of this world is gone (in a thread of the link's).

        Connections to the other ranks are shut until this world is left, whatever the main thread
        does: it may compute now and enter a collective later, or be forming or leaving the world.
        Shutting them early does no harm: the next collective can only fail.
        """
        connections = self._connections
        if connections is not None:
            self._run.loss_known = True
            threads.start(
                connections.shut_until_over,
                _PATIENCE_SECONDS,
                _AGAIN_SECONDS,
                name="shut",
                failed=threads.RESTART,
            )
