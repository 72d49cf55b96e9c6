"""A listening socket on an open network, with bounds on the resources that strangers can use.

One thread accepts connections and reads the heads of their first requests, without waiting for any
of them. Only a request that its service has admitted gets a thread, which then reads the body.
Until then a connection is *unverified*: it costs a descriptor and at most a head's bytes, has a
short deadline, and counts towards a limit. At the limit, the oldest connection of the host with the
most is closed, not the new one: strangers who fill the limit lose connections to each other, and a
request of the job itself, whose head follows its connection at once, gets through. Admitted
connections do not count towards that limit.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import random
import resource
import selectors
import socket
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from howdah.core import threads
from howdah.errors import ClusterError
from howdah.jobs.net.http_connection import (
    HEAD_LIMIT,
    LINGER_SECONDS,
    BadMessage,
    Connection,
    RequestHead,
    RequestRefused,
)
from howdah.jobs.net.refusals import Refusals

UNVERIFIED = 2048
"""Most unverified connections; fewer where a process may have few open files. All agents of a large
job may connect in one moment; with a head of HEAD_LIMIT bytes each, this many take 16 MiB."""
HEAD_SECONDS = 10.0
"""How long an unverified connection may take to send its request's head."""
_LINGER_BYTES = 2 * HEAD_LIMIT
_BACKLOG = 2048
"""Connections that the kernel holds until they are accepted; further ones are slow or fail."""
_ACCEPTED_AT_ONCE = 64
_FULL_PAUSE_SECONDS = 0.5
"""How long to accept no connections after the process has run out of descriptors."""
_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_WAIT_SECONDS = 1.0
_STOP_SECONDS = 10.0

Serve = Callable[[Connection], None]
"""Function that answers the requests of one connection, in a separate thread."""


class Lane:
    """Admitted connections of one purpose, `most` at a time.

    Args:
        public: strangers are admitted too.
    """

    def __init__(self, name: str, most: int, *, public: bool = False) -> None:
        self.name, self.public, self._most = name, public, most
        self._lock = threading.Lock()
        self._count = 0

    def enter(self) -> bool:
        """Count a new connection; False if the lane is full."""
        with self._lock:
            free = self._count < self._most
            self._count += free
            return free

    def leave(self) -> None:
        """Subtract a connection that has ended."""
        with self._lock:
            self._count -= 1


@dataclass
class _Unverified:
    connection: Connection
    address: str
    host: str
    deadline: float
    refused: bool = False
    """True once it was refused: what it still sends is discarded."""
    budget: int = _LINGER_BYTES
    """Number of bytes that are still read after a refusal."""
    watched: bool = False
    """True while it is registered with the selector."""


class Listener(ABC):
    """Listens on one address, on any free port or on one of a range.

    Args:
        address: IP address to listen on, never the wildcard.
        ports: the ports to choose from, at random; None: the kernel's choice.
        refused: logs refusals, at most a line a minute.
    Raises:
        ClusterError: all ports of the range are in use, or the address is not this machine's.
    """

    def __init__(self, address: str, ports: range | None, refused: Callable[[str], None]) -> None:
        self._refusals = Refusals(refused)
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        unlimited = files == resource.RLIM_INFINITY
        self._most = UNVERIFIED if unlimited else max(8, min(UNVERIFIED, files // 4))
        self._socket = _listening(address, ports)
        self.port: int = self._socket.getsockname()[1]
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._waiting: dict[int, _Unverified] = {}
        """Unverified connections by file descriptor, the oldest first."""
        self._refused: dict[int, _Unverified] = {}
        """Refused connections, the oldest first."""
        self._by_host: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._served: set[Connection] = set()
        self._stopped = False
        self._resume = 0.0
        """Time when connections are accepted again; 0: they are accepted now."""
        self._thread: threading.Thread | None = None

    def welcome(self, end: socket.socket, peer: tuple[Any, ...]) -> None:  # noqa: B027
        """Check a new connection before any byte of it is read.

        Raises:
            RequestRefused: the connection is refused.
        """

    @abstractmethod
    def admit(self, request: RequestHead) -> tuple[Lane, Serve]:
        """Check the head of a connection's first request, in the listener's thread.

        Raises:
            RequestRefused: the request is refused.
        """

    def start(self) -> None:
        """Start a thread that accepts connections."""
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threads.start(self._run, name="http", failed=threads.RESTART)

    def stop(self) -> None:
        """Stop listening, and end all connections."""
        if self._stopped:
            return
        self._stopped = True
        if self._thread is not None:
            self._wake.send(b"x")
            self._thread.join(_STOP_SECONDS)
        else:
            self._close()
        self._wake.close()
        self._woken.close()
        with self._lock:
            served = list(self._served)
        for connection in served:
            _shut(connection)

    # ------------------------------------------------------------------- the listener's thread
    def _run(self) -> None:
        while not self._stopped:
            ready = self._selector.select(self._pause())
            began, refused = time.monotonic(), False
            accept = False
            for key, _ in ready:
                if key.fileobj is self._socket:
                    accept = True  # after this loop, since reading the others may make room
                elif key.fileobj is not self._woken:
                    refused |= self._read(key.fd)
            if accept:
                refused |= self._accept()
            refused |= self._expire()
            if refused:
                # Strangers can use at most half a core; other threads serve the job's connections
                # meanwhile.
                time.sleep(min(0.1, time.monotonic() - began))
        self._close()

    def _close(self) -> None:
        for entry in [*self._waiting.values(), *self._refused.values()]:
            self._drop(entry)
        self._selector.close()
        self._socket.close()

    def _pause(self) -> float:
        until = time.monotonic() + _WAIT_SECONDS
        for entries in (self._waiting, self._refused):
            if entries:  # the first one's deadline is the earliest
                until = min(until, next(iter(entries.values())).deadline)
        if self._resume:
            until = min(until, self._resume)
        return max(0.0, until - time.monotonic())

    def _accept(self) -> bool:
        refused = False
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                end, peer = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                if error.errno not in _FULL:
                    continue  # only this connection has failed
                self._full(error)
                return True
            refused |= self._welcome(end, peer)
        return refused

    def _full(self, error: OSError) -> None:
        """Stop accepting for a while: without a free descriptor select() would return at once."""
        self._refusals.add(f"cannot accept connections: {error.strerror}")
        entries = [*self._refused.values(), *self._waiting.values()]
        for entry in entries[: len(entries) // 4 + 1]:
            self._drop(entry)
        self._selector.unregister(self._socket)
        self._resume = time.monotonic() + _FULL_PAUSE_SECONDS

    def _welcome(self, end: socket.socket, peer: tuple[Any, ...]) -> bool:
        """Take a new connection; True if one was refused."""
        refused = len(self._waiting) + len(self._refused) >= self._most
        if refused:
            self._make_room()
        deadline = time.monotonic() + HEAD_SECONDS
        entry = _Unverified(Connection(end), peer[0], _host(peer[0]), deadline)
        descriptor = end.fileno()
        self._waiting[descriptor] = entry
        self._by_host[entry.host] += 1
        try:
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.welcome(end, peer)
        except RequestRefused as refusal:
            self._refuse(entry, refusal)
            refused = True
        except OSError:
            self._drop(entry)
        except Exception as error:  # noqa: BLE001 - see _fault
            self._fault(entry, error)
            return True
        else:
            # A request of the job itself has usually arrived together with its connection.
            refused |= self._read(descriptor)
        if self._waiting.get(descriptor) is entry or self._refused.get(descriptor) is entry:
            try:
                self._selector.register(end, selectors.EVENT_READ)
                entry.watched = True
            except OSError:
                self._drop(entry)
        return refused

    def _make_room(self) -> None:
        if self._refused:
            self._drop(next(iter(self._refused.values())))
            return
        host, _ = self._by_host.most_common(1)[0]
        descriptor, oldest = next(item for item in self._waiting.items() if item[1].host == host)
        self._read(descriptor)  # its request may have arrived meanwhile
        if self._waiting.get(descriptor) is oldest:
            self._refusals.add(
                f"closed a connection from {oldest.address}: it had sent no request yet, and"
                f" {self._most} such connections are the limit"
            )
            self._drop(oldest)

    def _read(self, descriptor: int) -> bool:
        """Read what a connection has sent; True if it belongs to a stranger."""
        entry = self._waiting.get(descriptor) or self._refused.get(descriptor)
        if entry is None:
            return False  # it was just dropped to make room
        request = None
        try:
            more = entry.connection.receive_now()
            if entry.refused:
                entry.budget -= entry.connection.drop_received()
                if not more or entry.budget <= 0:
                    self._drop(entry)
                return True
            request = entry.connection.take_request()
            if request is None:
                if not more:
                    self._drop(entry)
                return False
            lane, serve = self.admit(request)
            self._admit(entry, lane, serve)
            return lane.public
        except BlockingIOError:
            return False
        except BadMessage as error:
            self._refuse(entry, RequestRefused(400, "malformed request", str(error)))
            return True
        except RequestRefused as refusal:
            self._refuse(entry, refusal, request)
            return True
        except OSError:
            self._drop(entry)
        except Exception as error:  # noqa: BLE001 - see _fault
            self._fault(entry, error)
            return True
        return False

    def _fault(self, entry: _Unverified, error: Exception) -> None:
        """Drop the connection that met a defect, so that the thread survives: one
        request must not block all others."""
        if self._refusals.add(f"closed a connection from {entry.address}: {error!r}"):
            traceback.print_exception(error, file=sys.stderr)
        self._drop(entry)

    def _admit(self, entry: _Unverified, lane: Lane, serve: Serve) -> None:
        if not lane.enter():
            raise RequestRefused(503, "too many at once", f"too many connections ({lane.name})")
        self._forget(entry)
        with self._lock:
            self._served.add(entry.connection)
        try:
            threads.start(
                self._serve, entry, lane, serve, name=f"http-{lane.name}", failed=threads.REPORT
            )
        except RuntimeError as error:  # the system cannot start another thread
            self._done(entry, lane)
            self._refusals.add(f"closed a connection from {entry.address}: {error}")

    def _refuse(
        self, entry: _Unverified, refusal: RequestRefused, request: RequestHead | None = None
    ) -> None:
        self._refusals.add(_refusal_line(entry.address, request, refusal.why))
        descriptor = entry.connection.end.fileno()
        self._refused[descriptor] = self._waiting.pop(descriptor)
        self._count_out(entry)
        entry.refused, entry.deadline = True, time.monotonic() + LINGER_SECONDS
        try:
            entry.connection.end.send(refusal.answer())  # does not block: it fits into the buffer
            entry.connection.end.shutdown(socket.SHUT_WR)
        except OSError:
            self._drop(entry)

    def _expire(self) -> bool:
        """Close late connections, and resume accepting when it is due; True if any was closed."""
        now = time.monotonic()
        if self._resume and now >= self._resume:
            self._resume = 0.0
            self._selector.register(self._socket, selectors.EVENT_READ)
        late = []
        for entries in (self._waiting, self._refused):
            for entry in entries.values():
                if entry.deadline > now:
                    break  # the others' deadlines are later
                late.append(entry)
        for entry in late:
            if not entry.refused:
                self._refusals.add(
                    f"closed a connection from {entry.address}: no complete request in"
                    f" {HEAD_SECONDS:.0f} s"
                )
            self._drop(entry)
        self._refusals.write_due()
        return bool(late)

    def _drop(self, entry: _Unverified) -> None:
        self._forget(entry)
        entry.connection.close()

    def _forget(self, entry: _Unverified) -> None:
        """Remove a connection from the unverified ones."""
        descriptor = entry.connection.end.fileno()
        if self._waiting.pop(descriptor, None) is not None:
            self._count_out(entry)
        else:
            self._refused.pop(descriptor, None)
        if entry.watched:
            entry.watched = False
            self._selector.unregister(entry.connection.end)

    def _count_out(self, entry: _Unverified) -> None:
        self._by_host[entry.host] -= 1
        if not self._by_host[entry.host]:
            del self._by_host[entry.host]

    # ------------------------------------------------------------------- a connection's thread
    def _serve(self, entry: _Unverified, lane: Lane, serve: Serve) -> None:
        connection = entry.connection
        try:
            serve(connection)
        except RequestRefused as refusal:
            self._refusals.add(_refusal_line(entry.address, None, refusal.why))
            with contextlib.suppress(OSError):
                connection.refuse(refusal)
        except (OSError, BadMessage):
            pass  # the peer has gone away; if it is an agent, it makes its request again
        finally:
            self._done(entry, lane)

    def _done(self, entry: _Unverified, lane: Lane) -> None:
        with self._lock:
            self._served.discard(entry.connection)
        entry.connection.close()
        lane.leave()


def _listening(address: str, ports: range | None) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    choices = [0] if ports is None else random.sample(ports, len(ports))
    error: OSError | None = None
    for port in choices:
        one = socket.socket(family, socket.SOCK_STREAM)
        try:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind((address, port))
            one.listen(_BACKLOG)
        except OSError as caught:
            one.close()
            error = caught
            continue
        one.setblocking(False)
        return one
    in_use = error is not None and error.errno == errno.EADDRINUSE
    raise ClusterError(
        "cannot listen on any port",
        where=address if ports is None else f"{address}:{ports.start}-{ports.stop - 1}",
        got=str(error),
        remedy="give job.ports a wider range, or leave it out" if ports and in_use else None,
    )


def _host(address: str) -> str:
    """The host that an address belongs to: the address itself, or the /64 of an IPv6 address."""
    if ":" not in address:
        return address
    plain = address.partition("%")[0]
    return str(ipaddress.ip_network(f"{plain}/64", strict=False))


def _refusal_line(address: str, request: RequestHead | None, why: str) -> str:
    line = "a request" if request is None else f"{request.method} {request.path[:80]!r}"
    return f"refused {line} from {address}: {why}"


def _shut(connection: Connection) -> None:
    """Wake the thread that waits for the connection, so that it closes the connection."""
    with contextlib.suppress(OSError):
        connection.end.shutdown(socket.SHUT_RDWR)
