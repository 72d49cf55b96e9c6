"""The protocol between agents and their driver: HTTP with every message signed by the job's key.

A request carries HMAC-SHA256 over method, path, session, counter and its body's digest; its answer
over the request's signature, status and body (jobs/net/signing.py). A stranger on the network can
neither give orders nor answer, and cannot replay a message, since each counter counts once. No
clock is involved. A request's head proves its sender before its body is read. Messages are bounded
in size and time; they hold JSON or opaque bytes, which are never executed or unpickled. Messages
are not encrypted: the network can read them, and cannot change them.

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

_IDLE_CONNECTIONS = 4
"""Most idle connections of a client: an agent polls for orders, reports, and relays."""
_ANSWER_LIMIT = 2**23
"""Most bytes of an answer's body; the longest has the addresses of all ranks for one."""


class Refused(ClusterError):
    """A signed refusal from the job's driver, which does not know the request or its sender."""


class TooLarge(Refused):
    """A signed refusal from the job's driver because of the message's size."""


class Client:
    """An agent's end, which any thread may use. All threads share its idle connections."""

    def __init__(self, address: str, port: int, key: str) -> None:
        self._where = (address, port)
        self._key = key
        self._session = secrets.token_hex(16)
        self._counter = 0
        self._lock = threading.Lock()
        self._idle: list[Connection] = []

    def request(self, method: str, path: str, body: bytes, timeout: float) -> tuple[int, bytes]:
        """Status and body of an answer that is proved to come from the job's driver.

        Args:
            timeout: seconds for the request and its answer, after a try on an idle connection.
        Raises:
            ClusterError: the driver cannot be reached, or the answer is not signed with the job's
                key and therefore does not count, even if it is an error.
        """
        with self._lock:
            idle = self._idle.pop() if self._idle else None
        if idle is not None:
            try:
                return self._exchange(idle, method, path, body, timeout)
            except (OSError, BadMessage):
                self.close()  # the other side may have closed all idle connections
        try:
            end = socket.create_connection(self._where, timeout)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return self._exchange(Connection(end), method, path, body, timeout)
        except (OSError, BadMessage) as error:
            raise ClusterError(
                "the job's driver cannot be reached",
                where=f"{self._where[0]}:{self._where[1]}",
                got=str(error) or type(error).__name__,
            ) from error

    def _exchange(
        self, connection: Connection, method: str, path: str, body: bytes, timeout: float
    ) -> tuple[int, bytes]:
        """Make a signed request on a connection, which is kept afterwards unless it fails."""
        with self._lock:
            self._counter += 1
            counter = self._counter
        headers = signing.request_headers(self._key, method, path, self._session, counter, body)
        deadline = time.monotonic() + timeout
        keep = False
        try:
            connection.send(self._head(method, path, headers, body) + body, deadline)
            status, received, answer = connection.answer(_ANSWER_LIMIT, deadline)
            stamp = headers[signing.SIGNATURE]
            right = signing.answer_signature(self._key, stamp, status, answer)
            if not signing.is_same(right, received.get(signing.SIGNATURE.lower(), "")):
                raise ClusterError(
                    "the job's driver rejects this process's key, or this is not the job's driver",
                    where=f"{self._where[0]}:{self._where[1]}",
                    got=f"{status} {answer[:80].decode(errors='replace')}",
                )
            keep = received.get("connection", "").lower() != "close"
            return status, answer
        finally:
            self._put_back(connection, keep)

    def call(self, path: str, message: Any, timeout: float) -> dict[str, Any]:
        """POST a JSON value; the JSON object in the answer.

        Raises:
            ClusterError: `request` failed, or the driver failed to handle the message.
            Refused: the driver does not know the request or its sender.
            TooLarge: the driver does not take messages of this size.
        """
        status, answer = self.request("POST", path, json.dumps(message).encode(), timeout)
        text = f"{status} {answer[:200].decode(errors='replace')}"
        if status == 413:
            raise TooLarge("the job's driver refuses a message of this size", where=path, got=text)
        if 400 <= status < 500:
            raise Refused("the job's driver refused a message", where=path, got=text)
        try:
            payload = json.loads(answer) if status == 200 else None
        except ValueError:
            payload = None
        if not isinstance(payload, dict):
            raise ClusterError("the job's driver failed to handle a message", where=path, got=text)
        return payload

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _head(self, method: str, path: str, headers: dict[str, str], body: bytes) -> bytes:
        host, port = self._where
        lines = [
            f"{method} {path} HTTP/1.1",
            f"Host: {f'[{host}]' if ':' in host else host}:{port}",
            f"Content-Length: {len(body)}",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        return "\r\n".join([*lines, "", ""]).encode("ascii")

    def _put_back(self, connection: Connection, keep: bool) -> None:
        with self._lock:
            keep = keep and len(self._idle) < _IDLE_CONNECTIONS
            if keep:
                self._idle.append(connection)
        if not keep:
            connection.close()
