"""The machine's resources for the mini cluster: a Java, and free ports."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping

from howdah.doctor.checks import java_major
from howdah.errors import ClusterError
from tools.minicluster.plan import HOST

JAVA_MINIMUM = 17  # Hadoop 3.5's
# Below the kernel's ports for outgoing connections (ip_local_port_range), so a port stays free
# while its daemon restarts.
PORTS = range(20000, 32000)
TRIES = 1000


def find_java() -> str:
    """JAVA_HOME of a Java that Hadoop runs on: $JAVA_HOME, or that of `java` on PATH.

    Raises:
        ClusterError: Java is missing or too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    version, output = None, "no java on PATH"
    if java:
        try:
            done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
            output = done.stderr.strip()  # several lines: with JAVA_TOOL_OPTIONS these come first
            version = java_major(output)
        except OSError as error:
            output = str(error)
    if version is None or version < JAVA_MINIMUM:
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
    names: Iterable[str], fixed: Mapping[str, int], before: Mapping[str, int]
) -> Iterator[dict[str, int]]:
    """A loopback port for each name: the fixed one, or that of an earlier start, or any free one.

    Until the context ends no other process can reserve them (two clusters may start at once),
    while a daemon can already listen there.

    Raises:
        ClusterError: a fixed port is taken.
    """
    chosen: dict[str, int] = {}
    with contextlib.ExitStack() as held:
        # Fixed ports first, so that none of them goes to another name.
        for name in sorted(names, key=lambda name: (name not in fixed, name not in before)):
            port = fixed.get(name, before.get(name))
            reserved = None if port is None else _reserve(port)
            if reserved is None and name in fixed:
                raise ClusterError(f"the port for {name} is taken", where=f"{HOST}:{port}")
            for _ in range(TRIES):
                if reserved is not None:
                    break
                reserved = _reserve(random.choice(PORTS))
            if reserved is None:
                raise ClusterError(f"no port in {PORTS.start}-{PORTS.stop - 1} is free")
            held.enter_context(reserved)
            chosen[name] = reserved.getsockname()[1]
        yield chosen


def _reserve(port: int) -> socket.socket | None:
    """A socket that is bound to a loopback port and does not listen; None: the port is taken.

    It is bound without SO_REUSEADDR, so it conflicts with every other socket at that port. It sets
    the option afterwards, so a listener with SO_REUSEADDR (Java's, the KDC's) can bind, but not
    another `_reserve`.
    """
    holder = socket.socket()
    try:
        if _only_closing(port):  # in the minute after a stop the port can be reused
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
    """Whether all sockets that the kernel lists at a port belong to ended connections."""
    states = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(FileNotFoundError), open(table, encoding="ascii") as file:
            for line in file.readlines()[1:]:
                fields = line.split()
                if int(fields[1].rpartition(":")[2], 16) == port:
                    states.add(fields[3])
    return bool(states) and states <= CLOSING
