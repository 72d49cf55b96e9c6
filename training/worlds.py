"""The worlds of ranks that a process trains in: one or, in an elastic job, one after another.

    for comm in worlds:
        with worlds.survived():
            ...                       # everything that enters a collective

A lost rank, or a change of worlds, ends the block. The next world begins it again in the same
process, with the state in `worlds.memory`. Without an agent (training/elastic/control_channel.py)
there is only the launcher's world, and its errors are raised.
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
from howdah.training.elastic.control_channel import ControlChannel, World
from howdah.training.run.collective_limit import COLLECTIVE_SECONDS, CollectiveLimit
from howdah.training.run.run import Run

_PATIENCE_SECONDS = 5.0
"""Time that a collective may still wait after a member of its world is lost; usually the kernel has
ended the wait by then."""
_AGAIN_SECONDS = 1.0
"""Pause after which the connections are shut again, until the world is left: Horovod may open new
ones."""


class ProcessWorlds:
    """The worlds of this process, to be iterated over once.

    Args:
        channel: the channel to the agent; None: the launcher's world is the only one.
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
        """Connections to the other ranks of the world that this process is in, joins or leaves."""
        self._placed: set[str] = set()
        """Names of the environment variables that the last world has set."""
        self.memory = ElasticState(
            run.config.job.commit_every,
            committed=lambda step: run.heartbeat.send("commit", step=step),
        )

    def __iter__(self) -> Iterator[Comm]:
        while not self._over:
            try:
                self._join()
            except BaseException as error:  # noqa: BLE001 - `_leave` raises errors to end with
                self._leave(error)
                continue
            self._over = True
            yield self._comm

    @contextmanager
    def survived(self) -> Iterator[None]:
        """Guard all that a world does. In an elastic job its end because of a lost rank, or for
        another world, is not an error: this process leaves it, and the iteration continues with the
        next one."""
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - `_leave` raises errors to end with
            self._over = False
            self._leave(error)

    @property
    def change_pending(self) -> bool:
        """True if the agent has requested that this rank leave this world for another one."""
        return self._elastic and self._channel.change_pending

    def close(self) -> None:
        """Shut the last world down. Every rank enters, since the others wait for it."""
        self._comm.shutdown()

    # ------------------------------------------------------------------------------- joining
    def _join(self) -> None:
        run, channel = self._run, self._channel
        self._comm = None
        run.heartbeat.enter("join")
        world = None if channel is None else self._next(channel)
        self._comm = backends.init(
            self._framework,
            self._waits,
            self._connections,
            choice=run.config.training.comm,
            limit=COLLECTIVE_SECONDS if world is None else None,  # a job's driver has limits
        )
        if world is not None:
            channel.send("joined", generation=world.generation, rank=self._comm.rank)
        self._limit_collectives()
        run.heartbeat.enter("prepare", "reading the dataset and the base model")
        if world is not None:
            run.enter(rank_env(), world.generation)
        run.share(self._comm)
        if self._elastic:
            self.memory.meet(self._comm, world.generation)

    def _next(self, channel: ControlChannel) -> World:
        """The next world that the agent assigns, whose variables are set here."""
        world = channel.next_world()
        for name in self._placed - world.env.keys():
            os.environ.pop(name, None)
        os.environ.update(world.env)
        self._placed = set(world.env)
        self._elastic = self._run.elastic = self.memory.on = world.elastic
        self._connections, self._run.loss_reported = Connections(), False
        return world

    def _limit_collectives(self) -> None:
        """End this process if a collective does not return, in worlds without a time limit: NCCL
        and MPI wait forever for a rank that is stopped or disconnected."""
        if self._limited or self._comm.size == 1:
            return
        if self._run.gpu or self._comm.waits_for_ever:
            CollectiveLimit(self._run, self._waits, COLLECTIVE_SECONDS).start()
            self._limited = True

    # ------------------------------------------------------------------------------- leaving
    def _leave(self, error: BaseException) -> None:
        """Leave this world for the next one; raise the error if there is no next one."""
        changed = isinstance(error, WorldChanged)
        if not self._elastic or not (changed or rank_lost(error)) or self._run.stops.alone:
            raise error
        if self._run.stops.requested():  # there is no world in which to agree on a step
            self._run.last_save.save()
            raise self._run.stop_error()
        self._run.heartbeat.enter("join")
        self._run.end_steps()
        if not changed:
            where = "no step" if self.memory.step is None else f"step {self.memory.step}"
            self._run.say(f"a rank was lost; {where} is in memory; waiting for the others")
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
        """Shut the connections to the other ranks, because a member of this world is gone; called
        in the control channel's thread.

        They are shut again until this world is left: the main thread may compute now and enter a
        collective later, or be forming or leaving the world. Shutting them early is harmless, since
        the next collective can only fail.
        """
        connections = self._connections
        if connections is not None:
            self._run.loss_reported = True
            threads.start(
                connections.shut_until_over,
                _PATIENCE_SECONDS,
                _AGAIN_SECONDS,
                name="shut",
                failed=threads.RESTART,
            )
