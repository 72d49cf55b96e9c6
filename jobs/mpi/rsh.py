"""The remote shell that mpirun uses in place of ssh (its plm_rsh_agent):
`python -m howdah.jobs.mpi.rsh HOST COMMAND...`

It does not log in anywhere: it passes the command of mpirun's daemon (orted) for a host to the
driver, over a socket that only its own user can reach; the agent of that container starts it. This
process stays as long as the daemon, as ssh would.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence

from howdah.core.processes import die_with_parent
from howdah.jobs.mpi import local_socket

SOCKET = "HOWDAH_MPI_SOCKET"


def main(argv: Sequence[str]) -> int:
    """Pass the command on and stay until mpirun ends this process; 1 if the driver refuses it."""
    die_with_parent()
    host, *command = argv
    # mpirun quotes the command for a remote shell, which does not take part here
    arguments = shlex.split(" ".join(command))
    with local_socket.connect(os.environ[SOCKET]) as driver:
        driver.sendall(json.dumps({"host": host, "argv": arguments}).encode() + b"\n")
        driver.recv(1)  # returns when the driver refuses or ends
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
