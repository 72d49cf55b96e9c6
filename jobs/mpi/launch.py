"""An MPI job's start: mpirun beside the driver, its daemons in the workers' containers.

mpirun starts a daemon on each host by a remote shell. Its remote shell is jobs/mpi/rsh.py, which
passes the daemon's command to the driver; the agent of that container starts it. This needs no ssh,
and daemons end with their container. The number of workers is fixed: MPI cannot replace a rank.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from howdah.core import threads
from howdah.errors import ClusterError, HowdahError
from howdah.jobs.mpi import local_socket
from howdah.jobs.mpi import rsh as mpi_rsh
from howdah.jobs.mpi.node import mpi_environment
from howdah.process import isolation

_END_SECONDS = 5.0


def command(ranks: int, python: str, grace_seconds: float) -> list[str]:
    """mpirun's argument list, with an invented host name for each rank, in the order of the ranks.

    Args:
        grace_seconds: how long rank 0 has to save its last step when another rank has ended. The
            driver orders the save at once; mpirun waits this long before its SIGTERM, and again
            before its SIGKILL.
    """
    hosts = ",".join(host_name(rank) for rank in range(ranks))
    settings = {
        "plm": "rsh",
        "plm_rsh_agent": " ".join(isolation.module("howdah.jobs.mpi.rsh", python=python)),
        "plm_rsh_no_tree_spawn": "1",  # every daemon is started from here
        "plm_rsh_pass_environ_mca_params": "0",  # each host has its own interface and ports
        "routed": "direct",
        "odls_base_sigkill_timeout": str(math.ceil(grace_seconds)),
    }
    # The bare name, since mpirun called by a path wraps the daemons' commands into a shell's.
    argv = ["mpirun", "-np", str(ranks), "-H", hosts, "--bind-to", "none"]
    argv += ["--leave-session-attached"]  # a daemon that detaches itself would outlive its agent
    for name, value in settings.items():
        argv += ["--mca", name, value]
    return [*argv, *isolation.module("howdah.jobs.mpi.rank", python=python)]


def host_name(rank: int) -> str:
    """The host name of a rank for mpirun, which differs even for ranks that share a node."""
    return f"w{rank}"


class Mpirun:
    """Starts all training processes of a try together with mpirun.

    Args:
        members: () -> names of the workers of the next world, in the order of their ranks; []: not
            all of them have come.
        send: gives an agent an order.
        failed: called with mpirun's error, unless mpirun ended because a rank has.
        say: logs an event of the job.
        interface, address: where mpirun listens.
        ports: the ports to listen on; None: any.
        grace_seconds: the argument of `command`.
    """

    def __init__(
        self,
        *,
        members: Callable[[], Sequence[str]],
        send: Callable[[str, dict[str, Any]], None],
        failed: Callable[[HowdahError], None],
        say: Callable[[str], None],
        interface: str,
        address: str,
        ports: range | None,
        grace_seconds: float,
    ) -> None:
        self._members, self._send, self._failed, self._say = members, send, failed, say
        self._interface, self._address, self._ports = interface, address, ports
        self._grace_seconds = grace_seconds
        self._lock = threading.Lock()
        self._waiting: dict[str, dict[str, Any]] = {}
        self._process: subprocess.Popen | None = None

    def start(self, member: str, order: dict[str, Any]) -> None:
        """Order a worker's process; mpirun starts all of them once the last one is ordered."""
        with self._lock:
            self._waiting[member] = order
            ranks = self._members()
            if not ranks or not set(ranks) <= set(self._waiting):
                return
            orders = {host_name(n): (name, self._waiting[name]) for n, name in enumerate(ranks)}
            self._waiting = {}
        threads.start(self._run, orders, name="mpirun", failed=self._thread_failed, say=self._say)

    def close(self) -> None:
        """End mpirun, and its daemons with it."""
        self._end(self._process)

    @staticmethod
    def _end(process: subprocess.Popen | None) -> None:
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _thread_failed(self, error: Exception) -> None:
        """Fail the job: without the thread, ranks do not start and mpirun's output is not read."""
        self._end(self._process)
        self._failed(
            ClusterError("the ranks could not be started", got=f"{type(error).__name__}: {error}")
        )

    def _run(self, orders: Mapping[str, tuple[str, dict[str, Any]]]) -> None:
        """Run mpirun from its start to its end, once."""
        self._end(self._process)
        try:
            self._try(orders)
        except HowdahError as error:
            self._failed(error)
        except OSError as error:
            self._failed(ClusterError("mpirun could not be started", got=str(error)))

    def _try(self, orders: Mapping[str, tuple[str, dict[str, Any]]]) -> None:
        if shutil.which("mpirun") is None:
            raise ClusterError(
                "mpirun is not installed on the node of the driver",
                where=f"PATH={os.environ.get('PATH', '')}",
                remedy="install Open MPI on every node, or use job.controller: gloo",
            )
        listener, name = local_socket.listen(len(orders))
        env = {
            **isolation.environment(),
            **mpi_environment(self._interface, self._ports, self._address),
            mpi_rsh.SOCKET: name,
        }
        argv = command(len(orders), sys.executable, self._grace_seconds)
        with listener:
            serving = threads.start(
                _serve, listener, self._answer(orders), name="mpi-rsh", failed=self._thread_failed,
                say=self._say,
            )  # fmt: skip
            self._say(f"starting {len(orders)} ranks by {' '.join(argv[:5])}")
            self._process = process = subprocess.Popen(
                argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, errors="replace",
            )  # fmt: skip
            lines = [line.rstrip() for line in process.stdout]
            code = process.wait()
            listener.shutdown(socket.SHUT_RDWR)
            serving.join()
        if code != 0:
            for line in lines[-20:]:
                self._say(f"mpirun: {line}")

    def _answer(
        self, orders: Mapping[str, tuple[str, dict[str, Any]]]
    ) -> Callable[[dict[str, Any]], bool]:
        def answer(request: dict[str, Any]) -> bool:
            if request["host"] not in orders:
                return False
            member, order = orders[request["host"]]
            self._send(member, {**order, "argv": request["argv"]})
            return True

        return answer


def _serve(listener: socket.socket, answer: Callable[[dict[str, Any]], bool]) -> None:
    """Take the remote shells' requests, and keep their connections open until mpirun ends."""
    with contextlib.ExitStack() as connections:
        while True:
            try:
                connection = connections.enter_context(local_socket.accept(listener))
            except OSError:  # shut down
                return
            with connection.makefile("rb") as lines:
                line = lines.readline(2**20)  # empty: the shell ended before it sent its request
                if not line or not answer(json.loads(line)):
                    connection.close()
