"""What the mini cluster takes of this machine: a Java, and free ports."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping

from howdah.errors import ClusterError
from tools.minicluster.plan import HOST

JAVA_MINIMUM = 17  # Hadoop 3.5's
# Below what the kernel gives to outgoing connections (ip_local_port_range): a port stays free
# while its daemon is down for a restart.
PORTS = range(20000, 32000)
TRIES = 1000


def find_java() -> str:
    """JAVA_HOME of a Java that Hadoop runs on: $JAVA_HOME, else that of `java` on PATH.

    Raises:
        ClusterError: none, or too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    version, output = 0, "no java on PATH"
    if java:
        try:
            done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
            output = done.stderr.strip().partition("\n")[0]
            match = re.search(r'version "(\d+)', output)
            version = int(match.group(1)) if match else 0
        except OSError as error:
            output = str(error)
    if not java or version < JAVA_MINIMUM:
        raise ClusterError(
            "the mini cluster needs Java",
            where="JAVA_HOME" if home else "PATH",
            expected=f"Java {JAVA_MINIMUM} or later",
            got=output,
            remedy="apt-get install openjdk-17-jre-headless, or set JAVA_HOME",
        )
    return home or os.path.dirname(os.path.dirname(os.path.realpath(java)))


@contextlib.contextmanager
def reserve_ports(
    names: Iterable[str], given: Mapping[str, int], before: Mapping[str, int]
) -> Iterator[dict[str, int]]:
    """A loopback port for each name: the given one, the one it had before, else any free one.

    Until the context ends no other process can reserve them (two clusters may start at once),
    while a daemon can already listen there.

    Raises:
        ClusterError: a given port is taken.
    """
    chosen: dict[str, int] = {}
    with contextlib.ExitStack() as held:
        # Given ports first: none of them may go to another name.
        for name in sorted(names, key=lambda name: (name not in given, name not in before)):
            wanted = given.get(name, before.get(name))
            reserved = None if wanted is None else _reserve(wanted)
            if reserved is None and name in given:
                raise ClusterError(
                    "the port is taken",
                    where=f"{HOST}:{wanted}",
                    expected=f"a free port for {name}",
                    remedy="give another one, or none",
                )
            for _ in range(TRIES):
                if reserved is not None:
                    break
                reserved = _reserve(random.choice(PORTS))
            if reserved is None:
                raise ClusterError(
                    "there is no free port", expected=f"one in {PORTS.start}-{PORTS.stop - 1}"
                )
            held.enter_context(reserved)
            chosen[name] = reserved.getsockname()[1]
        yield chosen


def _reserve(port: int) -> socket.socket | None:
    """A socket that is bound to a loopback port and does not listen; None: the port is taken.

    Bound without SO_REUSEADDR, it conflicts with every other socket at that port; with it from
    then on, a listener with SO_REUSEADDR (Java's, the KDC's) may join, another `_reserve` not.
    """
    holder = socket.socket()
    try:
        if _only_closing(port):  # for a minute after a stop: no reason to give the port up
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", port))
    except OSError:
        holder.close()
        return None
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return holder


# FIN_WAIT1, FIN_WAIT2, TIME_WAIT, LAST_ACK, CLOSING: Linux include/net/tcp_states.h.
CLOSING = {"04", "05", "06", "09", "0B"}


def _only_closing(port: int) -> bool:
    """Whether all sockets that the kernel lists at a port are of connections that have ended."""
    states = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(FileNotFoundError), open(table, encoding="ascii") as file:
            for line in file.readlines()[1:]:
                fields = line.split()
                if int(fields[1].rpartition(":")[2], 16) == port:
                    states.add(fields[3])
    return bool(states) and states <= CLOSING
