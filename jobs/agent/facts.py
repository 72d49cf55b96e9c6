"""What an agent reports about its machine and its training process, read from /proc.

These functions only read, except that `diagnose` signals a process for its Python stacks, and only
if the process handles that signal.
"""

from __future__ import annotations

import os
import platform
import signal
import socket
import struct
import time
from typing import Any

from howdah.core import machine
from howdah.core.gpus import Gpus, usable
from howdah.core.processes import stat_fields
from howdah.errors import ClusterError

STACKS_SIGNAL = signal.SIGRTMIN + 3
"""Signal on which a training process writes the stacks of its threads (faulthandler)."""
_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "waiting for a disk or a network file system",
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "Z": "ended",
}
_LINE_LIMIT = 1_000
"""Most characters of a log line that are reported."""
_TAIL_LINES, _TAIL_BYTES = 30, 32_768
_STACKS_SECONDS = 2.0
_TICKS = os.sysconf("SC_CLK_TCK")


def node_facts(
    driver_address: str, driver_port: int, interface: str | None, *, gpus: int = 0
) -> dict[str, Any]:
    """The facts of this machine that an agent registers with.

    Args:
        driver_address, driver_port: where the driver listens; the workers' interface leads there.
        interface: the configuration's interface; None: the one on the route to the driver.
        gpus: number of GPUs that the container requested; with 0 the machine is not searched.
    Raises:
        ClusterError: the driver is not routable from here, or the interface does not exist.
    """
    address = _source_address(driver_address, driver_port)
    if interface is not None:
        names = [name for _, name in socket.if_nameindex()]
        if interface not in names:
            raise ClusterError(
                f"this node has no network interface {interface}",
                where=f"job.network_interface on {socket.gethostname()}",
                expected=f"one of {', '.join(names)}",
            )
    present = Gpus((), "") if gpus == 0 else usable()
    return {
        "address": address,
        "interface": interface or interface_of(address),
        "cores": machine.cores(),
        "gpus": list(present.devices),
        "gpus_how": present.how,
        "python": platform.python_version(),
        "pid": os.getpid(),
    }


def _source_address(address: str, port: int) -> str:
    """The source address of this machine's packets to `address`; no packet is sent."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, port))
        except OSError as error:
            raise ClusterError(
                "this node has no route to the job's driver",
                where=f"{socket.gethostname()} to {address}:{port}",
                got=str(error),
            ) from error
        return probe.getsockname()[0]


def interface_of(address: str) -> str:
    """The interface with an address, not the one that routes to it: on the driver's node, packets
    to the driver use loopback but carry another interface's address.

    Raises:
        ClusterError: no interface has the address.
    """
    import psutil

    addresses = [
        (name, one.address)
        for name, of_interface in psutil.net_if_addrs().items()
        for one in of_interface
        if one.family in (socket.AF_INET, socket.AF_INET6)
    ]
    for name, value in addresses:
        if value == address:
            return name
    if address.startswith("127."):
        return "lo"  # all of 127/8 belongs to it, not only the address that it reports
    raise ClusterError(
        f"no network interface has {address}, the source address of packets to the driver",
        where=socket.gethostname(),
        got=", ".join(f"{name} {value}" for name, value in addresses),
        remedy="name the workers' interface in job.network_interface",
    )


def process_state(pid: int) -> dict[str, Any] | None:
    """State letter, CPU seconds and resident bytes of a process; None: it has ended."""
    fields = stat_fields(pid)
    if fields is None:
        return None
    return {
        "state": fields[0],
        "cpu_seconds": (int(fields[11]) + int(fields[12])) / _TICKS,
        "resident_bytes": int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
    }


def diagnose(pid: int, stacks_path: str) -> dict[str, Any]:
    """The state and stacks of a process that makes no progress."""
    state = process_state(pid)
    if state is None:
        return {"state": "gone", "stacks": []}
    try:
        with open(f"/proc/{pid}/wchan", encoding="ascii") as file:
            waits_in = file.read().strip("0\n")
    except OSError:
        waits_in = ""
    description = f"{state['state']} ({_STATES.get(state['state'], 'unknown')})"
    return {
        **state,
        "state": description,
        "waits_in": waits_in,
        "stuck_connections": _stuck_connections(pid),
        "stacks": _stacks(pid, stacks_path) if state["state"] in "RSD" else [],
    }


def _stacks(pid: int, path: str) -> list[str]:
    """The stacks that the process writes on STACKS_SIGNAL; [] if it has no handler for the signal
    or does not respond."""
    if not _catches(pid, STACKS_SIGNAL):
        return []
    before = _size(path)
    try:
        os.kill(pid, STACKS_SIGNAL)
    except ProcessLookupError:
        return []
    deadline, size = time.monotonic() + _STACKS_SECONDS, before
    while time.monotonic() < deadline:
        time.sleep(0.1)
        now = _size(path)
        if now > before and now == size:
            break  # the file has stopped growing: the stacks are complete
        size = now
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            file.seek(before)
            return file.read(20_000).splitlines()
    except OSError:  # the node's disk fails, or its logs were removed
        return []


def _catches(pid: int, number: int) -> bool:
    """True if the process handles the signal; without a handler the signal would end it."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            caught = next(line for line in file if line.startswith("SigCgt:"))
    except (OSError, StopIteration):
        return False
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def _stuck_connections(pid: int) -> list[str]:
    """Peers that have not acknowledged data that the process's kernel has retransmitted."""
    inodes = set()
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                target = os.readlink(f"/proc/{pid}/fd/{name}")
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
        with open(f"/proc/{pid}/net/tcp", encoding="ascii") as table:
            rows = [line.split() for line in table][1:]
    except OSError:
        return []
    # Field 3 is the state (01: established), field 6 the retransmissions of the last segment.
    mine = [row for row in rows if row[9] in inodes and row[3] == "01"]
    return [_dotted(row[2]) for row in mine if int(row[6], 16) > 2]


def _dotted(text: str) -> str:
    address, _, port = text.partition(":")
    return f"{socket.inet_ntoa(struct.pack('=I', int(address, 16)))}:{int(port, 16)}"


def tail(path: str) -> list[str]:
    """The last lines of a log, or those around the interpreter's last crash; [] without a log.

    A crash ends a log with the stacks of all threads, which would displace the lines before it.
    """
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - _TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    log = [line.rstrip()[:_LINE_LIMIT] for line in text.splitlines() if line.strip()]
    dumps = [n for n, line in enumerate(log) if line.startswith("Fatal Python error")]
    if dumps:
        return log[max(0, dumps[-1] - _TAIL_LINES // 3) :][:_TAIL_LINES]
    return log[-_TAIL_LINES:]
