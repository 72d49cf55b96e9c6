"""The training process of an agent: how it is started, sent messages, and ended.

The agent starts it before it has a rank. It imports its framework, reports that it is ready, and
receives its world over the control channel (training/elastic/control_channel.py), a socket pair
with one JSON object per line in both directions. When the agent dies, its end closes and the
process ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from howdah.attempts import Attempt
from howdah.core import threads
from howdah.process import isolation

_LINE_LIMIT = 2**20
"""Most bytes of one message; the rest of a longer line is ignored."""


def command(config_path: str) -> list[str]:
    """The argument list of a training process that waits for a rank."""
    return isolation.module("howdah.training", "--config", config_path, "--standby")


def environment(
    base: Mapping[str, str],
    extra: Mapping[str, str],
    secrets: Mapping[str, str],
    *,
    application: str,
    attempt: Attempt | None,
    threads: int,
    gpus: list[str] | None,
    ports: str | None,
    stacks_path: str,
) -> dict[str, str]:
    """The environment variables that the process needs before it imports anything.

    Args:
        base: the agent's own environment.
        extra: job.env.
        secrets: the values of job.secret_env.
        application: the application's id; its later attempts resume from its checkpoints.
        attempt: the application's attempt, which orders training's fences.
        threads: compute threads of a rank: the container's cores.
        gpus: the rank's devices; None: the job does not use GPUs.
        ports: "first-last" for Gloo's listeners (Howdah's Horovod reads it); None: any.
        stacks_path: the file that the process writes its stacks to on a signal.
    """
    env = isolation.environment(base)
    env = {name: value for name, value in env.items() if not name.startswith("HOROVOD_")}
    env.update(extra)
    if "PYTHONPATH" in extra:  # so that the rank's child processes import from it too
        env[isolation.VARIABLE] = extra["PYTHONPATH"]
    env.update(secrets)
    env["HOWDAH_STARTED"] = repr(time.time())
    env["HOWDAH_APPLICATION"] = application
    if attempt is not None:
        env.update(attempt.environment())
    env["HOWDAH_THREADS"] = str(threads)
    env["HOWDAH_STACKS"] = stacks_path
    env["CUDA_VISIBLE_DEVICES"] = ",".join(gpus or [])
    # howdah/process/devices.py refuses to train without them:
    env["HOWDAH_GPUS"] = str(len(gpus or []))
    env["PYTHONUNBUFFERED"] = "1"
    if ports is not None:
        env["HOWDAH_PORT_RANGE"] = ports
    return env


class TrainingProcess:
    """One training process, which only the agent's MAIN thread may make: the kernel ends the child
    when the thread that made it ends (PR_SET_PDEATHSIG, which the child sets itself).

    Args:
        number: 1 for the agent's first process.
        argv, env: the process's arguments and environment.
        directory: directory for its output, training.<number>.log.
        on_message: called with each of its messages, from a thread of this object.
        on_end: called with its exit code (negative: the signal) after its last message.
    """

    def __init__(
        self,
        number: int,
        argv: list[str],
        env: dict[str, str],
        directory: str,
        *,
        on_message: Callable[[int, dict[str, Any]], None],
        on_end: Callable[[int, int], None],
    ) -> None:
        self.number = number
        self.log = os.path.join(directory, f"training.{number}.log")
        self.stacks_path = env["HOWDAH_STACKS"]
        ours, theirs = socket.socketpair()
        self._channel = ours
        with open(self.log, "ab") as log, theirs:
            self._process = subprocess.Popen(
                argv,
                env={**env, "HOWDAH_LINK_FD": str(theirs.fileno()), "HOWDAH_LOG": self.log},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
            )
        self.pid = self._process.pid
        self.failure: dict[str, Any] | None = None
        """The process's message that says why it failed."""
        self._on_message, self._on_end = on_message, on_end
        threads.start(self._listen, name=f"channel-{number}", failed=self._listener_failed)

    @property
    def alive(self) -> bool:
        """True until the process has ended."""
        return self._process.poll() is None

    def send(self, message: dict[str, Any]) -> None:
        """Send the process a message; if it has ended, `on_end` reports that instead."""
        with contextlib.suppress(OSError):
            self._channel.sendall(json.dumps(message).encode() + b"\n")

    def terminate(self) -> None:
        """Send SIGTERM, since no collective can finish any more."""
        if self.alive:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, which ends a stopped process too."""
        if self.alive:
            self._process.send_signal(signal.SIGKILL)

    def wait(self, seconds: float) -> None:
        """Wait for the process's end, for at most `seconds`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def _listen(self) -> None:
        for message in messages(self._channel):
            if message["type"] == "failed":
                self.failure = message
            self._on_message(self.number, message)
        self._on_end(self.number, self._process.wait())

    def _listener_failed(self, error: Exception) -> None:
        """Kill the process and report its end: without its listener it cannot be controlled."""
        self.kill()
        self._on_end(self.number, self._process.wait())


def messages(channel: socket.socket) -> Iterator[dict[str, Any]]:
    """The messages of a training process, until its end of the channel is closed."""
    with channel.makefile("rb") as lines:
        while True:
            try:
                line = lines.readline(_LINE_LIMIT)
            except OSError:
                return
            if not line:
                return
            if (message := parse_message(line)) is not None:
                yield message


def parse_message(line: bytes) -> dict[str, Any] | None:
    """The message in a line; None for other lines, since libraries may write to the channel."""
    try:
        message = json.loads(line)
    except ValueError:
        return None
    valid = isinstance(message, dict) and isinstance(message.get("type"), str)
    return message if valid else None
