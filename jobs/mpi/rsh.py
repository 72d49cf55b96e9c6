"""The remote shell that mpirun uses in place of ssh (its plm_rsh_agent):
`python -m howdah.jobs.mpi.rsh HOST COMMAND...`

It logs in nowhere: it passes the command of mpirun's daemon (orted) for a host to the driver, over
a socket that only its own user can reach; the agent of that container starts it. This
process stays for as long as the daemon does, as ssh would.
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
    """Hand over and stay until mpirun ends this process; 1 where the driver refuses or is gone."""
    die_with_parent()
    host, *command = argv
    # mpirun quotes the command for a shell; there is none here
    arguments = shlex.split(" ".join(command))
    with local_socket.connect(os.environ[SOCKET]) as driver:
        driver.sendall(json.dumps({"host": host, "argv": arguments}).encode() + b"\n")
        driver.recv(1)  # returns when the driver refuses or ends
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
