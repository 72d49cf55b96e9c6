"""HTTP/1.1 on one socket: the part of it that driver, agents and Gloo's clients use.

The standard library's server and client limit the time of each read, but neither the time nor the
size of a whole message. Here a message has one deadline and a size limit. Anything that is not
plainly HTTP is an error: nothing is guessed.
"""

from __future__ import annotations

import http.client
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass

HEAD_LIMIT = 2**13
"""Most bytes of a message's first line and headers."""
_READ_BYTES = 2**16
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")
_PATH = re.compile(r"/[!-~]*")
_STATUS = re.compile(r"[1-9][0-9]{2}")
_LENGTH = re.compile(r"[0-9]{1,15}")
_LINGER_BYTES = 2**16
LINGER_SECONDS = 1.0
"""How long a refused connection is still read: closed with unread data it would lose the answer."""


class BadMessage(Exception):
    """The received message is not HTTP, or is longer than allowed."""


class RequestRefused(Exception):
    """The refusal of a request.

    Args:
        status: the answer's status.
        text: the answer's body, a line.
        why: the reason for the log.
    """

    def __init__(self, status: int, text: str, why: str) -> None:
        super().__init__(why)
        self.status, self.text, self.why = status, text, why

    def answer(self) -> bytes:
        """The answer to the other side, which closes the connection."""
        return answer_bytes(self.status, "text/plain", self.text.encode() + b"\n", close=True)


@dataclass(frozen=True)
class RequestHead:
    """The head of a request."""

    method: str
    path: str
    headers: Mapping[str, str]
    """{name in lower case: value}."""
    close: bool
    """True if the other side sends no second request on this connection."""

    def length(self, limit: int) -> int:
        """Length of the body in bytes.

        Raises:
            RequestRefused: the head does not give a length, or it exceeds the limit.
        """
        text, chunked = self.headers.get("content-length"), "transfer-encoding" in self.headers
        if text is None and self.method in ("GET", "DELETE") and not chunked:
            return 0
        if chunked or text is None or not _LENGTH.fullmatch(text):
            raise RequestRefused(411, "Content-Length is required", "a body without a length")
        if int(text) > limit:
            raise RequestRefused(413, f"more than {limit} bytes", f"a body of {text} bytes")
        return int(text)


def answer_bytes(
    status: int,
    content_type: str,
    body: bytes,
    *,
    headers: Mapping[str, str] | None = None,
    close: bool = False,
) -> bytes:
    """Head and body of an answer in one piece, so that they share a packet where they fit."""
    lines = [
        f"HTTP/1.1 {status} {http.client.responses.get(status, '')}",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}",
        *(f"{name}: {value}" for name, value in (headers or {}).items()),
    ]
    if close:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


class Connection:
    """One end of a connection. Deadlines are times of time.monotonic().

    Args:
        end: its socket; each method sets the blocking mode that it needs.
    """

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self._received = bytearray()

    # ------------------------------------------------------------------------ without waiting
    def receive_now(self) -> bool:
        """Receive the bytes that have arrived, without waiting; False: the other side has closed.

        Raises:
            BlockingIOError: no bytes have arrived.
            OSError: the connection is broken.
        """
        self.end.settimeout(0)
        data = self.end.recv(HEAD_LIMIT)
        self._received += data
        return bool(data)

    def take_request(self) -> RequestHead | None:
        """The next request, once its whole head was received; None until then.

        Raises:
            BadMessage: the head is not HTTP, or too long.
        """
        head = self._take_head()
        return None if head is None else _request(*head)

    def drop_received(self) -> int:
        """Discard the received bytes, and return their number."""
        size = len(self._received)
        self._received.clear()
        return size

    # --------------------------------------------------------------------------- with a deadline
    def next_request(self, idle_seconds: float, seconds: float) -> RequestHead | None:
        """The next request's head; None: the other side has closed, or was idle for too long.

        Args:
            idle_seconds: limit until its first byte.
            seconds: limit from its first byte to the end of the head.
        """
        if not self._received:
            try:
                if not self._receive(time.monotonic() + idle_seconds):
                    return None
            except TimeoutError:
                return None
        deadline = time.monotonic() + seconds
        while (request := self.take_request()) is None:
            if not self._receive(deadline):
                return None
        return request

    def answer(self, limit: int, deadline: float) -> tuple[int, dict[str, str], bytes]:
        """An answer: its status, headers (names in lower case) and body.

        Raises:
            BadMessage: it is malformed, or its body is longer than `limit` bytes.
            OSError, TimeoutError: it does not arrive (in time).
        """
        while (head := self._take_head()) is None:
            if not self._receive(deadline):
                raise BadMessage("the connection was closed before an answer")
        first, headers = head
        parts = first.split(" ", 2)
        if not first.startswith("HTTP/1.") or len(parts) < 2 or not _STATUS.fullmatch(parts[1]):
            raise BadMessage(f"not an HTTP answer: {first[:80]!r}")
        length = headers.get("content-length", "")
        if not _LENGTH.fullmatch(length) or "transfer-encoding" in headers:
            raise BadMessage("an answer without a length")
        if int(length) > limit:
            raise BadMessage(f"an answer of {length} bytes; the limit is {limit}")
        return int(parts[1]), headers, self.read(int(length), deadline)

    def read(self, length: int, deadline: float) -> bytes:
        """Exactly `length` bytes; BadMessage if the connection ends before."""
        while len(self._received) < length:
            if not self._receive(deadline, length - len(self._received)):
                raise BadMessage("the connection was closed within a body")
        data = bytes(memoryview(self._received)[:length])
        del self._received[:length]
        return data

    def discard(self, length: int, deadline: float) -> None:
        """Read `length` bytes and discard them."""
        while length > 0:
            if not self._received and not self._receive(deadline):
                raise BadMessage("the connection was closed within a body")
            part = min(length, len(self._received))
            del self._received[:part]
            length -= part

    def send(self, data: bytes, deadline: float) -> None:
        """Send all data; TimeoutError if the other side does not receive it in time."""
        self._set_timeout(deadline)
        self.end.sendall(data)  # the socket's time limit applies to the whole of sendall

    def refuse(self, refusal: RequestRefused) -> None:
        """Answer with a refusal, and read a little of what still comes: closing a connection with
        unread data would discard the answer."""
        deadline = time.monotonic() + LINGER_SECONDS
        self.send(refusal.answer(), deadline)
        self.end.shutdown(socket.SHUT_WR)
        budget = _LINGER_BYTES
        while budget > 0 and self._receive(deadline):
            budget -= self.drop_received()

    def close(self) -> None:
        self.end.close()

    # ------------------------------------------------------------------------------- inside
    def _take_head(self) -> tuple[str, dict[str, str]] | None:
        end = self._received.find(b"\r\n\r\n", 0, HEAD_LIMIT)
        if end < 0:
            if len(self._received) >= HEAD_LIMIT:
                raise BadMessage(f"a head of more than {HEAD_LIMIT} bytes")
            return None
        lines = bytes(self._received[:end]).decode("latin-1").split("\r\n")
        del self._received[: end + 4]
        return lines[0], _headers(lines[1:])

    def _receive(self, deadline: float, most: int = _READ_BYTES) -> bool:
        self._set_timeout(deadline)
        data = self.end.recv(min(max(most, _READ_BYTES), 2**20))
        self._received += data
        return bool(data)

    def _set_timeout(self, deadline: float) -> None:
        seconds = deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError("the other side takes too long")
        self.end.settimeout(seconds)


def _headers(lines: list[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not _TOKEN.fullmatch(name):
            raise BadMessage("a malformed header")
        name = name.lower()
        if name in headers and (name.startswith("x-howdah-") or name == "content-length"):
            raise BadMessage(f"two headers {name}")
        headers[name] = value.strip(" \t")
    return headers


def _request(first: str, headers: dict[str, str]) -> RequestHead:
    parts = first.split(" ")
    if len(parts) != 3 or parts[2] not in ("HTTP/1.0", "HTTP/1.1"):
        raise BadMessage("not an HTTP request")
    method, path, version = parts
    if not _TOKEN.fullmatch(method) or not _PATH.fullmatch(path):
        raise BadMessage("not an HTTP request")
    options = headers.get("connection", "").lower()
    close = "close" in options or (version == "HTTP/1.0" and "keep-alive" not in options)
    return RequestHead(method, path, headers, close)
