"""The training process of an agent: how it is started, spoken to, and ended.

It is started before it has a rank: it imports its framework, says that it is ready, and is given a
world over its link (docs/architecture.md, "The link"): a socket pair of which it holds one end,
one JSON object a line both ways. The agent's death closes the other end, and the process ends.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["TrainingProcess", "command", "environment", "parse_message"]

_LINE_LIMIT = 2**20
"""Bytes of one message; more is no message of ours."""


def command(config_path: str) -> list[str]:
    """The argument list of a training process that waits for a rank."""
    return [sys.executable, "-m", "training", "--config", config_path, "--standby"]


def environment(
    base: Mapping[str, str],
    extra: Mapping[str, str],
    *,
    application: str,
    threads: int,
    gpus: list[str] | None,
    ports: str | None,
    stacks_path: str,
) -> dict[str, str]:
    """What the process must have in its environment before it imports anything.

    Args:
        base: the agent's own environment.
        extra: yarn.env.
        application: its id: later attempts of the same one go on from its own checkpoints.
        threads: compute threads of a rank: the container's cores.
        gpus: devices that are its own; None: it is not a job on GPUs.
        ports: "first-last" for Gloo's listeners (Howdah's Horovod reads it); None: any.
        stacks_path: where it shall write its stacks when it is asked.
    """
    env = {name: value for name, value in base.items() if not name.startswith("HOROVOD_")}
    env.update(extra)
    env["HOWDAH_STARTED"] = repr(time.time())
    env["HOWDAH_APPLICATION"] = application
    env["HOWDAH_THREADS"] = str(threads)
    env["HOWDAH_STACKS"] = stacks_path
    env["CUDA_VISIBLE_DEVICES"] = ",".join(gpus or [])
    env["HOWDAH_GPUS"] = str(len(gpus or []))  # training/devices.py refuses to do without them
    env["PYTHONUNBUFFERED"] = "1"
    if ports is not None:
        env["HOWDAH_PORT_RANGE"] = ports
    return env


class TrainingProcess:
    """One training process. To be made in the agent's MAIN thread: the kernel's signal that ends it
    with its parent (PR_SET_PDEATHSIG, which it asks for itself) is tied to the thread that made it.

    Args:
        number: 1 for the agent's first process.
        argv, env: how it is started.
        directory: where its output goes: training.<number>.log.
        heard: called with each of its messages, from a thread of this object.
        ended: called with its exit code (negative: the signal) after its last message.
    """

    def __init__(
        self,
        number: int,
        argv: list[str],
        env: dict[str, str],
        directory: str,
        *,
        heard: Callable[[int, dict[str, Any]], None],
        ended: Callable[[int, int], None],
    ) -> None:
        self.number = number
        self.log = os.path.join(directory, f"training.{number}.log")
        self.stacks_path = env["HOWDAH_STACKS"]
        ours, theirs = socket.socketpair()
        self._link = ours
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
        """Its own word why it ended badly."""
        self._heard, self._ended = heard, ended
        threading.Thread(target=self._listen, name=f"link-{number}", daemon=True).start()

    @property
    def alive(self) -> bool:
        """It has not ended."""
        return self._process.poll() is None

    def tell(self, message: dict[str, Any]) -> None:
        """Send it a message; one that has ended hears nothing, and its end is told elsewhere."""
        try:
            self._link.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            pass

    def terminate(self) -> None:
        """SIGTERM: no collective can be finished any more."""
        if self.alive:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, also for one that is stopped."""
        if self.alive:
            self._process.send_signal(signal.SIGKILL)

    def wait(self, seconds: float) -> bool:
        """Wait for its end; whether it has come."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _listen(self) -> None:
        with self._link.makefile("rb") as lines:
            while True:
                try:
                    line = lines.readline(_LINE_LIMIT)
                except OSError:
                    break
                if not line:
                    break
                message = parse_message(line)
                if message is None:
                    continue
                if message["type"] == "failed":
                    self.failure = message
                self._heard(self.number, message)
        code = self._process.wait()
        self._ended(self.number, code)


def parse_message(line: bytes) -> dict[str, Any] | None:
    """A message; None for what is none (the link is the process's own, but its libraries' too)."""
    try:
        message = json.loads(line)
    except ValueError:
        return None
    known = isinstance(message, dict) and isinstance(message.get("type"), str)
    return message if known else None
