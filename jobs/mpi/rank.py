"""The process between the agent and the training process in a container of an MPI job.

    python -m howdah.jobs.mpi.rank orted ...     becomes mpirun's daemon, which dies with the agent
    python -m howdah.jobs.mpi.rank               is a rank, which that daemon starts

mpirun's daemon closes all inherited descriptors, so that a rank connects to the agent over a socket
in the container. This process stays beside the training process and reports its exit code to the
agent, since the daemon does not.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence

from howdah.core.processes import die_with_parent
from howdah.jobs.mpi import local_socket

LINK = "HOWDAH_MPI_LINK"
"""Name of the agent's socket (jobs/mpi/local_socket.py)."""
COMMAND = "HOWDAH_MPI_COMMAND"
"""The training process's argument list as JSON."""
LOG = "HOWDAH_MPI_LOG"
"""File for its output, which the daemon would send to mpirun, away from the container's logs."""


def main(argv: Sequence[str]) -> int:
    """Become the daemon, or run the training process, and return its exit code."""
    die_with_parent()
    if argv:
        os.execvp(argv[0], list(argv))
    path = os.environ.pop(LOG)
    with local_socket.connect(os.environ.pop(LINK)) as link, open(path, "ab") as log:
        command = json.loads(os.environ.pop(COMMAND))
        process = subprocess.Popen(
            command,
            env={**os.environ, "HOWDAH_LINK_FD": str(link.fileno()), "HOWDAH_LOG": path},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[link.fileno()],
        )
        _send(link, {"type": "mpi-pid", "pid": process.pid})
        # mpirun's SIGTERM reaches this process: pass it on, and let the training process decide
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        code = process.wait()
        _send(link, {"type": "mpi-exit", "exit_code": code})
    # the daemon ends the whole job for any code but 0
    return code if code >= 0 else 128 - code


def _send(link: socket.socket, message: dict) -> None:
    with contextlib.suppress(OSError):  # the agent is gone, and the training process with it
        link.sendall(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
