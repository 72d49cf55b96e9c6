"""The link of a training process to its agent: orders come down, words about the training go up.

An agent (yarn/agent.py) starts the process before it has a rank, with one end of a socket pair,
whose number is in HOWDAH_LINK_FD. One JSON object a line, both ways. When the other end is closed
the agent is gone, and the process ends at once: nobody would know of it any more.

    world       generation, env                 join this world, with this place in it
    change      generation, lost                another world is wanted: leave at the step's end, by
                                                common consent; lost: a member of this one is gone
    stop        save                            end (exit code 143), saving first if asked

    ready       import_seconds                  a world may be told
    joined      generation, rank
    beat        phase, phase_seconds, step      every second
    step        rank, step, total_steps, epoch, loss, examples_per_second, step_seconds (own work),
                wait_seconds (in collectives)   at most every second
    commit      step                            the state is in memory
    checkpoint  step, path                      is whole on storage (rank 0)
    tracking    mlflow_run_id                   of the run in MLflow (rank 0), at a world's begin
    say         line                            rank 0's console
    data        local_bytes, remote_bytes, fetches
    left        generation, reason, step        out of that world ("lost", "changed"), remembering
                                                that step (null: none); waits for another
    failed      exit_code, error, consequence   why this process ends; consequence: others began it
    finished                                    and ends, with exit code 0
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from howdah.errors import UsageError

__all__ = ["ENVIRONMENT", "Link", "LinkConsole", "World"]

ENVIRONMENT = "HOWDAH_LINK_FD"
_AGENT_GONE = 143
"""Exit code of a process whose agent is gone."""


@dataclass(frozen=True)
class World:
    """A world that this process shall join."""

    generation: int
    env: dict[str, str]
    """Its place in it, as Horovod reads it (HOROVOD_RANK, HOROVOD_SIZE...)."""

    @property
    def elastic(self) -> bool:
        """A lost rank ends this world, not the job."""
        return self.env.get("HOROVOD_ELASTIC") == "1"


class Link:
    """This process's end of the link. Messages may be sent from any thread.

    Args:
        descriptor: number of the open socket.
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
        self._wanted = 0
        self.generation = 0
        """Of the world that this process is in; 0 before the first."""

    @classmethod
    def of_environment(cls) -> Link | None:
        """The link that the agent has given us; None where no agent started this process.

        Raises:
            UsageError: HOWDAH_LINK_FD names no socket.
        """
        number = os.environ.pop(ENVIRONMENT, None)  # not for children: it would be half theirs
        if number is None:
            return None
        try:
            link = cls(int(number))
        except (ValueError, OSError) as error:
            raise UsageError(
                "the link to the agent cannot be used",
                where=ENVIRONMENT,
                expected="the number of an open socket",
                got=f"{number!r}: {error}",
                remedy="leave it to `howdah submit` to start training on the cluster",
            ) from None
        link._socket.set_inheritable(False)
        return link

    # ------------------------------------------------------------------------------ upwards
    def send(self, kind: str, **fields: Any) -> None:
        """Send a message. An agent that is gone is noticed elsewhere."""
        data = json.dumps({"type": kind, **fields}).encode() + b"\n"
        with self._sending, contextlib.suppress(OSError):
            self._socket.sendall(data)

    # ---------------------------------------------------------------------------- downwards
    def listen(self, *, on_stop: Callable[[bool], None], on_loss: Callable[[], None]) -> None:
        """Hear orders from now on, in a thread.

        Args:
            on_stop: the job shall end, saving first or not; called in that thread.
            on_loss: a member of this world is known to be gone; likewise.
        """
        self._on_stop, self._on_loss = on_stop, on_loss
        threading.Thread(target=self._read, name="link", daemon=True).start()

    def next_world(self) -> World:
        """Wait for the world to join next: the newest that has been told."""
        world = self._worlds.get()
        while not self._worlds.empty():
            world = self._worlds.get()
        self.generation = world.generation
        return world

    @property
    def change_wanted(self) -> bool:
        """Another world shall take the place of this one: leave it at the step's end."""
        return self._wanted > self.generation

    def _read(self) -> None:
        try:
            with contextlib.suppress(OSError), self._socket.makefile("rb") as lines:
                for line in lines:
                    self._heard(json.loads(line))
        except BaseException:  # noqa: BLE001 - deaf to orders, this process may not live on
            traceback.print_exc()
        self._gone()

    def _heard(self, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind == "world":
            env = {str(name): str(value) for name, value in message["env"].items()}
            self._worlds.put(World(int(message["generation"]), env))
        elif kind == "change":
            self._wanted = max(self._wanted, int(message["generation"]))
            if message.get("lost"):
                self._on_loss()
        elif kind == "stop":
            self._on_stop(bool(message.get("save", True)))
        # What a later agent may say besides is no order that we would know how to follow.


class LinkConsole:
    """Rank 0's console where there is none: its lines go up the link, to whoever watches the job.

    As much of a text stream as `Progress` needs.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._rest = ""

    def isatty(self) -> bool:
        """No terminal: lines, not a bar."""
        return False

    def write(self, text: str) -> int:
        """Send every line that is whole."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._link.send("say", line=line)
        return len(text)

    def flush(self) -> None:
        """Nothing waits but an unfinished line."""
