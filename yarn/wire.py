"""How agents and their driver talk: HTTP with a signature of the job's key on every message.

A request carries HMAC-SHA256 over method, path, session, counter and body; its answer over the
request's signature, status and body. So a stranger on the network can neither order nor answer
anything, and what was overheard cannot be sent again: a counter counts once. Clocks are not asked.
Bodies are bounded; what is in them is JSON or opaque bytes, never anything that is executed or
unpickled. Nothing is encrypted: the network may read along, it may not write.

Pages for people (`/page/...`) are the one thing that is served unsigned, and only to be read.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import random
import secrets
import socket
import socketserver
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from howdah.errors import ClusterError

__all__ = ["BODY_LIMIT", "Answer", "BoundServer", "Client", "Refused", "Server", "new_key"]

BODY_LIMIT = 2**20
"""Bytes of a request's body; the greatest is a batch of an agent's events."""
_READ_SECONDS = 30.0
"""A connection that is silent for so long is closed; an agent's is never."""
_KEPT_CONNECTIONS = 4
"""Of a client, while no request uses them: an agent asks for orders, reports, and relays."""
_WINDOW = 1024
"""Requests of a session that may overtake each other."""

Answer = tuple[int, str, bytes]
"""Status, content type, body."""


class Refused(ClusterError):
    """The other side said no: a wrong signature, a request it does not know."""


def new_key() -> str:
    """A key for one driver's life: 256 random bits, hexadecimal."""
    return secrets.token_hex(32)


def _sign(key: str, *parts: str | bytes) -> str:
    text = b"\n".join(part.encode() if isinstance(part, str) else part for part in parts)
    return hmac.new(bytes.fromhex(key), text, hashlib.sha256).hexdigest()


def _request_signature(
    key: str, method: str, path: str, session: str, counter: int, body: bytes
) -> str:
    digest = hashlib.sha256(body).hexdigest()
    return _sign(key, "howdah-request", method, path, session, str(counter), digest)


def _answer_signature(key: str, request: str, status: int, body: bytes) -> str:
    return _sign(key, "howdah-answer", request, str(status), hashlib.sha256(body).hexdigest())


class _Sessions:
    """Which counters have been used. Only who has the key gets as far as this."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[int, set[int]]] = {}

    def take(self, session: str, counter: int) -> bool:
        """Use a counter; False if it was used, or is too old to be told."""
        with self._lock:
            highest, seen = self._seen.get(session, (0, set()))
            if counter in seen or counter <= highest - _WINDOW:
                return False
            seen.add(counter)
            highest = max(highest, counter)
            if len(seen) > 2 * _WINDOW:
                seen = {one for one in seen if one > highest - _WINDOW}
            self._seen[session] = (highest, seen)
            return True


class BoundServer(socketserver.ThreadingMixIn, HTTPServer):
    """An HTTP server on one address, on any free port or on one of a range.

    Args:
        address: IP address to listen on; never all of them.
        ports: the ports to choose from, at random; None: the kernel's choice.
    Raises:
        ClusterError: all of the range is taken, or the address is not this machine's.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 512

    def __init__(
        self, address: str, ports: range | None, handler: type[BaseHTTPRequestHandler]
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        choices = [0] if ports is None else random.sample(ports, len(ports))
        error: OSError | None = None
        for port in choices:
            try:
                super().__init__((address, port), handler)
            except OSError as caught:
                error = caught
                continue
            self.port: int = self.server_address[1]
            return
        raise ClusterError(
            "no port to listen on",
            where=address if ports is None else f"{address}:{ports.start}-{ports.stop - 1}",
            got=str(error),
            remedy="give yarn.ports a wider range, or none",
        )

    def server_bind(self) -> None:
        """Without HTTPServer's look-up of a name for the address: it can take seconds."""
        socketserver.TCPServer.server_bind(self)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A peer that went away in the middle is not worth a traceback; its agent tells."""

    def start(self) -> None:
        """Serve from a thread of its own."""
        threading.Thread(target=self.serve_forever, args=(0.1,), name="http", daemon=True).start()

    def stop(self) -> None:
        """Listen no more."""
        self.shutdown()
        self.server_close()


def read_body(handler: BaseHTTPRequestHandler, limit: int) -> bytes | None:
    """A request's body; None (and the refusal sent) where its length is missing or too great."""
    text = handler.headers.get("Content-Length")
    if text is None and handler.command in ("GET", "DELETE"):
        return b""
    if handler.headers.get("Transfer-Encoding") or text is None or not text.isdecimal():
        send(handler, 411, "text/plain", b"a length is needed\n", close=True)
        return None
    if int(text) > limit:
        send(handler, 413, "text/plain", f"more than {limit} bytes\n".encode(), close=True)
        return None
    return handler.rfile.read(int(text))


def send(
    handler: BaseHTTPRequestHandler,
    status: int,
    content_type: str,
    body: bytes,
    *,
    headers: dict[str, str] | None = None,
    close: bool = False,
) -> None:
    """Answer a request whole: head and body are one packet where they fit into one."""
    lines = [
        f"HTTP/1.1 {status} {http.client.responses.get(status, '')}",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}",
        *(f"{name}: {value}" for name, value in (headers or {}).items()),
    ]
    if close:
        lines.append("Connection: close")
        handler.close_connection = True
    handler.wfile.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)


class Server:
    """The driver's end.

    Args:
        address, ports: where to listen.
        key: the job's key.
        signed: (method, path, body) -> Answer of a request of the job's own; called in many
            threads at once.
        page: path -> Answer of a page, without a signature.
        refused: told of every refusal, a line each.
    """

    def __init__(
        self,
        address: str,
        ports: range | None,
        key: str,
        *,
        signed: Callable[[str, str, bytes], Answer],
        page: Callable[[str], Answer],
        refused: Callable[[str], None],
    ) -> None:
        sessions = _Sessions()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = _READ_SECONDS
            disable_nagle_algorithm = True
            server_version, sys_version = "howdah", ""

            def do_GET(self) -> None:
                if self.path.startswith("/page/"):
                    # YARN's proxy hands on the query in which one says who asks (user.name).
                    send(self, *page(self.path.partition("?")[0]))
                else:
                    self._answer()

            def do_PUT(self) -> None:
                self._answer()

            do_POST = do_DELETE = do_PUT

            def _answer(self) -> None:
                body = read_body(self, BODY_LIMIT)
                if body is None:
                    refused(f"{self._who()}: a body too great or without length")
                    return
                signature = self._checked(body)
                if signature is None:
                    send(self, 403, "text/plain", b"not signed with the job's key\n", close=True)
                    return
                status, kind, answer = signed(self.command, self.path, body)
                stamp = _answer_signature(key, signature, status, answer)
                send(self, status, kind, answer, headers={"X-Howdah-Signature": stamp})

            def _checked(self, body: bytes) -> str | None:
                session = self.headers.get("X-Howdah-Session", "")
                counter = self.headers.get("X-Howdah-Counter", "")
                given = self.headers.get("X-Howdah-Signature", "")
                if not counter.isdecimal() or len(counter) > 18 or not given.isascii():
                    refused(f"{self._who()}: no signature")
                    return None
                right = _request_signature(
                    key, self.command, self.path, session, int(counter), body
                )
                if not hmac.compare_digest(right, given):
                    refused(f"{self._who()}: a wrong signature")
                    return None
                if not sessions.take(session, int(counter)):
                    refused(f"{self._who()}: a request sent again")
                    return None
                return given

            def _who(self) -> str:
                return f"refused {self.command} {self.path[:80]!r} from {self.client_address[0]}"

            def log_message(self, format: str, *args: Any) -> None:
                """Agents ask several times a second: nothing of it is worth a line."""

        self._server = BoundServer(address, ports, Handler)
        self.port = self._server.port

    def start(self) -> None:
        """Answer from now on."""
        self._server.start()

    def stop(self) -> None:
        """Listen no more."""
        self._server.stop()


class Client:
    """An agent's end; any thread may use it. Connections are kept, and shared by all threads."""

    def __init__(self, address: str, port: int, key: str) -> None:
        self._where = (address, port)
        self._key = key
        self._session = secrets.token_hex(16)
        self._counter = 0
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []

    def request(self, method: str, path: str, body: bytes, timeout: float) -> tuple[int, bytes]:
        """Status and body of an answer that the job's own driver has given.

        Args:
            timeout: seconds for each wait on the network.
        Raises:
            ClusterError: the driver cannot be reached.
            Refused: it does not take our signature, or the answer is not signed as its own.
        """
        for last in (False, True):
            with self._lock:
                self._counter += 1
                counter = self._counter
            stamp = _request_signature(self._key, method, path, self._session, counter, body)
            headers = {
                "X-Howdah-Session": self._session,
                "X-Howdah-Counter": str(counter),
                "X-Howdah-Signature": stamp,
            }
            connection, fresh = self._connection(timeout)
            try:
                if fresh:
                    connection.connect()
                    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.request(method, path, body, headers)
                response = connection.getresponse()
                answer = response.read()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                self.close()
                if last or fresh:  # a kept connection may have been closed by the other side
                    raise ClusterError(
                        "the job's driver cannot be reached",
                        where=f"{self._where[0]}:{self._where[1]}",
                        got=str(error) or type(error).__name__,
                    ) from error
                continue
            right = _answer_signature(self._key, stamp, response.status, answer)
            if not hmac.compare_digest(right, response.headers.get("X-Howdah-Signature", "")):
                connection.close()
                raise Refused(
                    "the job's driver does not take our key, or it is not the job's driver",
                    where=f"{self._where[0]}:{self._where[1]}",
                    got=f"{response.status} {answer[:80].decode(errors='replace')}",
                )
            self._keep(connection)
            return response.status, answer
        raise AssertionError("unreachable")

    def call(self, path: str, message: Any, timeout: float) -> Any:
        """POST a JSON value; the JSON value that comes back.

        Raises:
            ClusterError: as `request`, or the driver does not know the request (Refused).
        """
        status, answer = self.request("POST", path, json.dumps(message).encode(), timeout)
        if status != 200:
            raise Refused(
                "the job's driver refused a message",
                where=path,
                got=f"{status} {answer[:200].decode(errors='replace')}",
            )
        return json.loads(answer)

    def close(self) -> None:
        """End the connections that no request is using."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _connection(self, timeout: float) -> tuple[http.client.HTTPConnection, bool]:
        """A connection for one request, and whether it is a new one."""
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        if connection is None or connection.sock is None:
            return http.client.HTTPConnection(*self._where, timeout=timeout), True
        connection.sock.settimeout(timeout)
        return connection, False

    def _keep(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            keep = connection.sock is not None and len(self._idle) < _KEPT_CONNECTIONS
            if keep:
                self._idle.append(connection)
        if not keep:
            connection.close()
