"""What mpirun takes for ssh: `python -m yarn.mpi_rsh HOST COMMAND...` (its plm_rsh_agent).

Nothing logs in anywhere: the command, that of mpirun's daemon (orted) for a host, is handed to the
driver over a socket that only its own user can reach; the agent of that container starts it. This
process stays for as long as the daemon does, as ssh would.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence

from howdah.processes import die_with_parent
from yarn import mpi_socket

__all__ = ["SOCKET", "main"]

SOCKET = "HOWDAH_MPI_SOCKET"


def main(argv: Sequence[str]) -> int:
    """Hand over and stay until mpirun ends this process; 1 where the driver refuses or is gone."""
    die_with_parent()
    host, *command = argv
    # mpirun writes what a shell would read; none reads it here
    words = shlex.split(" ".join(command))
    with mpi_socket.connect(os.environ[SOCKET]) as desk:
        desk.sendall(json.dumps({"host": host, "argv": words}).encode() + b"\n")
        desk.recv(1)  # ends with the driver, or its "no"
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
