"""A training process that mpirun's daemon starts, with the interface of one that an agent starts.

The daemon (orted) is the agent's child and dies with it; the rank (jobs/mpi/rank.py) is the
daemon's child, and connects to the agent over a socket (jobs/mpi/local_socket.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

from howdah.core import threads
from howdah.errors import ClusterError
from howdah.jobs.mpi import local_socket
from howdah.jobs.mpi import rank as mpi_rank
from howdah.jobs.training_process import messages
from howdah.process import isolation

_POLL_SECONDS = 0.2


def free_ports(ports: range, count: int, address: str) -> list[int]:
    """Ports of the range that are free now, in random order since this host's jobs share it.

    Raises:
        ClusterError: fewer than `count` are free.
    """
    free: list[int] = []
    for port in random.sample(ports, len(ports)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((address, port))
            free.append(port)
        if len(free) == count:
            return free
    raise ClusterError(
        f"MPI needs {count} free ports, and {len(free)} are free",
        where=f"job.ports {ports.start}-{ports.stop - 1}, address {address}",
        remedy="give a larger range",
    )


def mpi_environment(interface: str, ports: range | None, address: str) -> dict[str, str]:
    """Open MPI's settings for the listeners on one host: mpirun, or a daemon with its rank.

    Args:
        interface: the interface for all connections.
        ports: the ports to listen on; None: any.
        address: the interface's address.
    """
    env = {
        "OMPI_MCA_oob_tcp_if_include": interface,
        "OMPI_MCA_btl_tcp_if_include": interface,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",  # the cluster chooses a container's user
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    if ports is not None:
        # A daemon takes every port of its list, so that a long one would starve other daemons.
        few = ",".join(map(str, free_ports(ports, 2, address)))
        env["OMPI_MCA_oob_tcp_dynamic_ipv4_ports"] = few
        env["OMPI_MCA_btl_tcp_port_min_v4"] = str(ports.start)
        env["OMPI_MCA_btl_tcp_port_range_v4"] = str(len(ports))
    return env


class OrtedProcess:
    """A TrainingProcess (jobs/training_process.py) below a daemon; made in the main thread as well.

    Args:
        number: 1 for the agent's first process.
        daemon: the daemon's argument list, from mpirun.
        argv: the training process's argument list.
        env: the environment of both.
        directory: directory for their output, training.<number>.log.
        on_message: called with each message of the training process.
        on_end: called with its exit code (negative: the signal) after its last message.
    """

    def __init__(
        self,
        number: int,
        daemon: Sequence[str],
        argv: Sequence[str],
        env: dict[str, str],
        directory: str,
        *,
        on_message: Callable[[int, dict[str, Any]], None],
        on_end: Callable[[int, int], None],
    ) -> None:
        if os.path.basename(daemon[0]) != "orted":
            raise ClusterError("mpirun requested a program that is not its daemon", got=daemon[0])
        self.number = number
        self.log = os.path.join(directory, f"training.{number}.log")
        self.stacks_path = env["HOWDAH_STACKS"]
        self.failure: dict[str, Any] | None = None
        self._listener, name = local_socket.listen(1)
        self._listener.settimeout(_POLL_SECONDS)
        rank_env = {
            mpi_rank.LINK: name,
            mpi_rank.COMMAND: json.dumps(list(argv)),
            mpi_rank.LOG: os.path.abspath(self.log),
        }
        with open(self.log, "ab") as log:
            self._daemon = subprocess.Popen(
                isolation.module("howdah.jobs.mpi.rank", *daemon),
                env={**env, **rank_env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.pid = self._daemon.pid
        self._rank: int | None = None
        self._code: int | None = None
        self._channel: socket.socket | None = None
        self._on_message, self._on_end = on_message, on_end
        threads.start(self._listen, name=f"channel-{number}", failed=self._listener_failed)

    @property
    def alive(self) -> bool:
        """True until the rank has ended."""
        return self._code is None and self._daemon.poll() is None

    def send(self, message: dict[str, Any]) -> None:
        """Send the rank a message."""
        with contextlib.suppress(OSError, AttributeError):
            self._channel.sendall(json.dumps(message).encode() + b"\n")

    def terminate(self) -> None:
        """Send SIGTERM to the rank, or to the daemon if the rank has not started yet."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the rank; the daemon reports that to mpirun, which ends all others."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._rank is not None and self._code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._rank, number)
        elif self._daemon.poll() is None:
            self._daemon.send_signal(number)

    def wait(self, seconds: float) -> None:
        """Wait for the daemon's end, and kill it after that time."""
        try:
            self._daemon.wait(seconds)
        except subprocess.TimeoutExpired:
            self._daemon.kill()
            self._daemon.wait()

    def _listener_failed(self, error: Exception) -> None:
        """Kill rank and daemon and report the end: without its listener the rank runs unchecked."""
        self.kill()
        self._daemon.kill()
        self._on_end(self.number, self._code or self._daemon.wait() or 1)

    def _listen(self) -> None:
        while self._channel is None and self._daemon.poll() is None:
            with contextlib.suppress(TimeoutError):
                self._channel = local_socket.accept(self._listener)
        self._listener.close()
        for message in messages(self._channel) if self._channel is not None else ():
            if message["type"] == "mpi-pid":
                self.pid = self._rank = message["pid"]
                self._on_message(self.number, {"type": "started", "pid": self.pid})
            elif message["type"] == "mpi-exit":
                self._code = message["exit_code"]
            else:
                if message["type"] == "failed":
                    self.failure = message
                self._on_message(self.number, message)
        if self._code is None:  # the rank ended without a message, or never connected
            self._code = self._daemon.wait() or 1
        self._on_end(self.number, self._code)
