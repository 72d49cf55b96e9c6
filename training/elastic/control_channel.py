"""The control channel between a training process and its agent: commands down, reports up.

An agent (jobs/agent/agent.py) starts the process before it has a rank, with one end of a socket
pair, whose number is in HOWDAH_LINK_FD. Messages are JSON objects, one per line, both ways. When
the other end is closed the agent is gone, and the process ends at once, since no other process
could stop it any more.

    world       generation, env                 join this world; env has the rank in it
    change      generation, lost                another world will replace this one: leave at the
                                                end of a step that all ranks agree on; lost: a
                                                member is gone
    stop        save                            end (exit code 143); save first if `save` is true

    ready       import_seconds                  it can join a world
    joined      generation, rank
    beat        phase, phase_seconds, step      every second
    step        rank, step, total_steps, epoch, loss, examples_per_second, step_seconds (this rank's
                work), wait_seconds (in collectives)   at most every second
    commit      step                            the state is kept in memory
    checkpoint  step, path                      it is complete on storage (rank 0)
    tracking    mlflow_run_id                   the run's id in MLflow (rank 0), when a world begins
    say         line                            a line of rank 0's console
    data        local_bytes, remote_bytes, fetches
    left        generation, reason, step        it has left that world ("lost", "changed") with that
                                                step in memory (null: none), and waits for another
    failed      exit_code, error, consequence,  why this process ends (error: failure.describe);
                step                            consequence: other processes failed first
    finished                                    it ends with exit code 0
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

from howdah.core import shorten, threads
from howdah.errors import UsageError

ENVIRONMENT = "HOWDAH_LINK_FD"
_LINE_BYTES = 2**18
"""Maximum size of a message; an agent accepts four times as much (jobs/training_process.py)."""
_AGENT_GONE = 143
"""Exit code of a process whose agent is gone."""


@dataclass(frozen=True)
class World:
    """A world for this process to join."""

    generation: int
    env: dict[str, str]
    """The variables that Horovod reads: HOROVOD_RANK, HOROVOD_SIZE and so on."""

    @property
    def elastic(self) -> bool:
        """True if a lost rank ends only this world, not the job."""
        return self.env.get("HOROVOD_ELASTIC") == "1"


class ControlChannel:
    """The training process's end of the channel. Any thread may send messages.

    Args:
        gone: called in a thread when the agent is gone.
    """

    def __init__(
        self, descriptor: int, gone: Callable[[], None] = lambda: os._exit(_AGENT_GONE)
    ) -> None:
        self._gone = gone
        self._socket = socket.socket(fileno=descriptor)
        self._sending = threading.Lock()
        self._worlds: queue.SimpleQueue[World] = queue.SimpleQueue()
        self._on_stop: Callable[[bool], None] = lambda save: os._exit(_AGENT_GONE)
        self._on_loss: Callable[[], None] = lambda: None
        self._newest = 0
        self.generation = 0
        """Generation of the world that this process is in; 0 before the first."""

    @classmethod
    def of_environment(cls) -> ControlChannel | None:
        """The channel that the agent has passed on; None if no agent started this process.

        Raises:
            UsageError: HOWDAH_LINK_FD does not name a socket.
        """
        number = os.environ.pop(ENVIRONMENT, None)  # children must not use the same channel
        if number is None:
            return None
        try:
            channel = cls(int(number))
        except (ValueError, OSError) as error:
            raise UsageError(
                "the control channel to the agent cannot be used",
                where=ENVIRONMENT,
                expected="the number of an open socket",
                got=f"{number!r}: {error}",
            ) from None
        channel._socket.set_inheritable(False)
        return channel

    # ------------------------------------------------------------------------------ upwards
    def send(self, kind: str, **fields: Any) -> None:
        """Send a message; texts that are too long lose their middle. Errors are ignored, since the
        reading thread notices when the agent is gone."""
        message = shorten.message({"type": kind, **fields}, _LINE_BYTES)
        data = json.dumps(message).encode() + b"\n"
        with self._sending, contextlib.suppress(OSError):
            self._socket.sendall(data)

    # ---------------------------------------------------------------------------- downwards
    def listen(self, *, on_stop: Callable[[bool], None], on_loss: Callable[[], None]) -> None:
        """Start a thread that reads commands.

        Args:
            on_stop: called in that thread to end the job; its argument: save first.
            on_loss: called in that thread when a member of this world is gone.
        """
        self._on_stop, self._on_loss = on_stop, on_loss
        # Without the channel this process must exit, since it could neither be stopped nor moved
        # to another world.
        threads.start(self._read, name="control channel", failed=lambda error: self._gone())

    def next_world(self) -> World:
        """Wait for the next world to join, which is the newest that the agent has sent."""
        world = self._worlds.get()
        while not self._worlds.empty():
            world = self._worlds.get()
        self.generation = world.generation
        return world

    @property
    def change_pending(self) -> bool:
        """True if another world will replace this one: leave it at the end of the step."""
        return self._newest > self.generation

    def _read(self) -> None:
        with contextlib.suppress(OSError), self._socket.makefile("rb") as lines:
            for line in lines:
                self._receive(json.loads(line))
        self._gone()

    def _receive(self, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind == "world":
            env = {str(name): str(value) for name, value in message["env"].items()}
            self._worlds.put(World(int(message["generation"]), env))
        elif kind == "change":
            self._newest = max(self._newest, int(message["generation"]))
            if message.get("lost"):
                self._on_loss()
        elif kind == "stop":
            self._on_stop(bool(message.get("save", True)))
        # Other types, which an agent of a later version may send, are ignored.


class ChannelConsole:
    """Rank 0's console under an agent: lines go over the channel, and `howdah submit` shows them.

    It has only the methods of a text stream that `Progress` needs.

    Args:
        terminal: the terminal of the command that waits for the job, which gets the lines and a
            progress bar instead.
    """

    def __init__(self, channel: ControlChannel, terminal: TextIO | None = None) -> None:
        self._channel, self._terminal = channel, terminal
        self._rest = ""

    def isatty(self) -> bool:
        """True if a bar can be shown, not only lines."""
        return self._terminal is not None

    def write(self, text: str) -> int:
        """Send every complete line."""
        if self._terminal is not None:
            return self._terminal.write(text)
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._channel.send("say", line=line)
        return len(text)

    def flush(self) -> None:
        """Flush the terminal; the channel has no buffer besides an unfinished line."""
        if self._terminal is not None:
            self._terminal.flush()
