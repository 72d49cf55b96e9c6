"""uvicorn's HTTP connection with limits that it lacks: a time for a request's head, a number of
connections in all and of one address, and refusals in the server's own JSON.

Anyone can hold connections without a request at no cost. So when there are too many connections,
the one that has been idle longest is closed, and the new one is served.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from howdah.serving.compute.refusals import BadRequest, refusal_body

_DRAIN_SECONDS = 1.0
_UNREAD_SECONDS = 30.0
_DRAIN_BYTES = 16 * 2**20
_FIRST_SECONDS = 1.0
"""Seconds for which a new connection does not count as idle, since its request is on the way."""
_REFUSED_AT_ONCE = 100
"""Refused connections beyond `most` that may still be sent their 503; others are reset."""


class _DrainedTransport:
    """A transport whose `close` lets the client read the last answer.

    A socket that is closed while the client's bytes are unread is reset, so that the client loses
    the answer. `close` therefore ends only this side and drops what still comes; the socket is
    closed when the client has ended its side, or after a second.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._is_draining = False
        self._dropped = 0
        self._timer: asyncio.TimerHandle | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """True once nothing more is read from the client."""
        return self._is_draining or self._transport.is_closing()

    def close(self) -> None:
        """End this side; the socket is closed later."""
        if self.is_closing():
            return
        self._is_draining = True
        try:
            self._transport.resume_reading()
            self._transport.write_eof()
        except (OSError, RuntimeError):  # the client is gone
            self._transport.close()
            return
        self._timer = self._loop.call_later(_DRAIN_SECONDS, self._finish)

    def _finish(self) -> None:
        """Close the socket once the answer is sent; reset it if the client reads nothing."""
        self._transport.close()
        self._timer = self._loop.call_later(_UNREAD_SECONDS, self._transport.abort)

    def close_now(self) -> None:
        """Close the socket at once, as the last answer has been sent."""
        self.forget()
        self._is_draining = True
        self._transport.abort()

    def drop(self, length: int) -> None:
        """Count bytes that came after the end."""
        self._dropped += length
        if self._dropped > _DRAIN_BYTES:
            self._transport.abort()

    def forget(self) -> None:
        """Stop the timer of an ended connection."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def connection_class(
    *, head_seconds: float, most: int, most_of_address: int, opened: Any
) -> type[H11Protocol]:
    """Make the class for uvicorn's `http`.

    It is based on h11, since httptools does not bound a request's head.

    Args:
        head_seconds: longest time for a request's head, from the connection or the last answer.
        most: largest number of connections. If none is idle, a new one is closed with 503.
        most_of_address: largest number of connections of one address, likewise.
        opened: takes the number of open connections.
    """
    by_address: defaultdict[str, set[Any]] = defaultdict(set)
    refused: set[Any] = set()

    class Connection(H11Protocol):
        _timer: asyncio.TimerHandle | None = None
        _address = ""
        _idle_since = 0.0

        def connection_made(self, transport: Any) -> None:
            super().connection_made(_DrainedTransport(transport, self.loop))
            self._idle_since = self.loop.time() + _FIRST_SECONDS
            self._address = self.client[0] if self.client else ""
            by_address[self._address].add(self)
            opened(len(self.connections))
            if not _has_room(self, by_address[self._address], most_of_address):
                limit = f"at most {most_of_address:,} of one address"
            elif not _has_room(self, self.connections, most):
                limit = f"at most {most:,}"
            else:
                self._begin()
                return
            if len(refused) >= _REFUSED_AT_ONCE:
                transport.abort()
            else:
                refused.add(self)
                self.transport.write(_refusal(503, "the server has too many connections", limit))
                self.transport.close()

        def connection_lost(self, exc: Exception | None) -> None:
            self._cancel()
            self.transport.forget()
            of_address = by_address[self._address]
            of_address.discard(self)
            refused.discard(self)
            if not of_address:
                del by_address[self._address]
            super().connection_lost(exc)
            opened(len(self.connections))

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                self.transport.drop(len(data))
                return
            super().data_received(data)
            if self.conn.their_state is h11.IDLE and self.timeout_keep_alive_task is None:
                self._begin()  # a part of a head
            elif self.conn.their_state is not h11.IDLE:
                self._cancel()

        def on_response_complete(self) -> None:
            self._idle_since = self.loop.time()
            super().on_response_complete()

        def send_400_response(self, msg: str) -> None:
            self._cancel()
            expected = f"HTTP/1.1, with a head of at most {64 * 1024:,} bytes"
            self.transport.write(_refusal(400, "this is not an HTTP request", expected))
            self.transport.close()

        def shutdown(self) -> None:
            if self.idle_since is None:
                super().shutdown()
            else:
                self.transport.close_now()

        def timeout_keep_alive_handler(self) -> None:
            self.transport.close_now()

        @property
        def idle_since(self) -> float | None:
            """Time since which no request is being read or answered; None: one is."""
            is_idle = self.cycle is None or self.cycle.response_complete
            return self._idle_since if is_idle else None

        def _begin(self) -> None:
            if self._timer is None:
                self._timer = self.loop.call_later(head_seconds, self._too_slow)

        def _cancel(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _too_slow(self) -> None:
            self._timer = None
            if not self.transport.is_closing():
                what = "the request did not arrive in time"
                self.transport.write(_refusal(408, what, "a head, soon after the connection"))
                self.transport.close()

    return Connection


def _has_room(new: Any, connections: set[Any], most: int) -> bool:
    """Close the connection that was idle longest if more than `most` are open.

    Returns:
        True if at most `most` remain.
    """
    if len(connections) <= most:
        return True
    is_open = [one for one in connections if not one.transport.is_closing()]
    if len(is_open) <= most:
        return True
    idle = [one for one in is_open if one is not new and one.idle_since is not None]
    if not idle:
        return False
    min(idle, key=lambda one: one.idle_since).transport.close_now()
    return True


def _refusal(status: int, what: str, expected: str) -> bytes:
    data = json.dumps(refusal_body(BadRequest(what, expected=expected))).encode()
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("ascii") + data
