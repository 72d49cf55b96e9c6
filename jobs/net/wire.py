"""The protocol of agents and their driver: HTTP with a signature of the job's key on every message.

A request carries HMAC-SHA256 over method, path, session, counter and its body's digest; its answer
over the request's signature, status and body (jobs/net/signing.py). A stranger on the
network can neither give orders nor answer, and cannot replay a message: each counter counts once.
No clock is involved. A request's head proves its sender before its body is read. Messages are
bounded in size and time; they hold JSON or opaque bytes, never anything that is executed or
unpickled. Nothing is encrypted: the network can read messages, and cannot change them.

Only pages for users (`/page/...`) are served unsigned; they cannot change anything.

This is the agents' end; the driver's is jobs/net/wire_server.py.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
import time
from typing import Any

from howdah.errors import ClusterError
from howdah.jobs.net import signing
from howdah.jobs.net.http_connection import BadMessage, Connection
from howdah.jobs.net.signing import new_key
from howdah.jobs.net.wire_server import BODY_LIMIT, Answer, Server

__all__ = ["BODY_LIMIT", "Answer", "Client", "Refused", "Server", "TooLarge", "new_key"]

_KEPT_CONNECTIONS = 4
"""Of a client, while no request uses them: an agent asks for orders, reports, and relays."""
_ANSWER_LIMIT = 2**23
"""Bytes of an answer's body; the longest has the addresses of all ranks for one."""


class Refused(ClusterError):
    """A signed refusal of the job's own driver: it does not know the request or its sender."""


class TooLarge(Refused):
    """The job's own driver refuses a message of that size."""


class Client:
    """An agent's end; any thread may use it. Connections are kept, and shared by all threads."""

    def __init__(self, address: str, port: int, key: str) -> None:
        self._where = (address, port)
        self._key = key
        self._session = secrets.token_hex(16)
        self._counter = 0
        self._lock = threading.Lock()
        self._idle: list[Connection] = []

    def request(self, method: str, path: str, body: bytes, timeout: float) -> tuple[int, bytes]:
        """Status and body of an answer that the job's own driver has given.

        Args:
            timeout: seconds for all of it; a kept connection that has broken is tried before.
        Raises:
            ClusterError: the driver cannot be reached, or the answer is not signed with the job's
                key: such an answer does not count, even if it is an error.
        """
        for last in (False, True):
            with self._lock:
                self._counter += 1
                counter = self._counter
            headers = signing.request_headers(self._key, method, path, self._session, counter, body)
            stamp = headers[signing.SIGNATURE]
            deadline = time.monotonic() + timeout
            connection, fresh = self._kept(), False
            try:
                if connection is None:
                    connection, fresh = self._connect(timeout), True
                connection.send(self._head(method, path, headers, body) + body, deadline)
                status, given, answer = connection.answer(_ANSWER_LIMIT, deadline)
            except (OSError, BadMessage) as error:
                if connection is not None:
                    connection.close()
                self.close()
                if last or fresh:  # a kept connection may have been closed by the other side
                    raise ClusterError(
                        "the job's driver cannot be reached",
                        where=f"{self._where[0]}:{self._where[1]}",
                        got=str(error) or type(error).__name__,
                    ) from error
                continue
            right = signing.answer_signature(self._key, stamp, status, answer)
            if not signing.is_same(right, given.get(signing.SIGNATURE.lower(), "")):
                connection.close()
                raise ClusterError(
                    "the job's driver does not take our key, or it is not the job's driver",
                    where=f"{self._where[0]}:{self._where[1]}",
                    got=f"{status} {answer[:80].decode(errors='replace')}",
                )
            if given.get("connection", "").lower() == "close":
                connection.close()
            else:
                self._keep(connection)
            return status, answer
        raise AssertionError("unreachable")

    def call(self, path: str, message: Any, timeout: float) -> dict[str, Any]:
        """POST a JSON value; the JSON object that comes back.

        Raises:
            ClusterError: as `request`, or the driver failed at it.
            Refused: the driver does not know the request or its sender.
            TooLarge: it takes no message of that size.
        """
        status, answer = self.request("POST", path, json.dumps(message).encode(), timeout)
        text = f"{status} {answer[:200].decode(errors='replace')}"
        if status == 413:
            raise TooLarge("the job's driver refuses a message of this size", where=path, got=text)
        if 400 <= status < 500:
            raise Refused("the job's driver refused a message", where=path, got=text)
        try:
            found = json.loads(answer) if status == 200 else None
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ClusterError("the job's driver failed at a message", where=path, got=text)
        return found

    def close(self) -> None:
        """End the connections that no request is using."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _connect(self, timeout: float) -> Connection:
        end = socket.create_connection(self._where, timeout)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return Connection(end)

    def _head(self, method: str, path: str, headers: dict[str, str], body: bytes) -> bytes:
        host, port = self._where
        lines = [
            f"{method} {path} HTTP/1.1",
            f"Host: {f'[{host}]' if ':' in host else host}:{port}",
            f"Content-Length: {len(body)}",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        return "\r\n".join([*lines, "", ""]).encode("ascii")

    def _kept(self) -> Connection | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _keep(self, connection: Connection) -> None:
        with self._lock:
            keep = len(self._idle) < _KEPT_CONNECTIONS
            if keep:
                self._idle.append(connection)
        if not keep:
            connection.close()
