"""uvicorn's HTTP connection with limits that it lacks: a time for a request's head, a number of
connections, and refusals in the server's own JSON."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from training.deployment.requests import BadRequest, refusal_body

__all__ = ["connection_class"]


def connection_class(*, head_seconds: float, most: int, opened: Any) -> type[H11Protocol]:
    """The class for uvicorn's `http`.

    h11 is taken, not httptools: it bounds a request's head, at 64 KiB.

    Args:
        head_seconds: how long a request's head may take, also its first byte.
        most: connections; more are closed with 503.
        opened: takes the number of open connections.
    """

    class Connection(H11Protocol):
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            opened(len(self.connections))
            if len(self.connections) > most:
                transport.write(_refusal(503, "the server has too many connections", most))
                transport.close()
                return
            self._begin()

        def connection_lost(self, exc: Exception | None) -> None:
            self._cancel()
            super().connection_lost(exc)
            opened(len(self.connections))

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return
            super().data_received(data)
            if self.conn.their_state is h11.IDLE and self.timeout_keep_alive_task is None:
                self._begin()  # a part of a head
            elif self.conn.their_state is not h11.IDLE:
                self._cancel()

        def send_400_response(self, msg: str) -> None:
            self._cancel()
            self.transport.write(_refusal(400, "this is not an HTTP request", 64 * 1024))
            self.transport.close()

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
                self.transport.write(_refusal(408, "the request did not arrive in time", 0))
                self.transport.close()

    return Connection


_EXPECTED = {
    400: "HTTP/1.1, with a head of at most {:,} bytes",
    408: "a request's head, soon after the connection",
    503: "at most {:,}",
}
_REASONS = {400: "Bad Request", 408: "Request Timeout", 503: "Service Unavailable"}


def _refusal(status: int, what: str, limit: int) -> bytes:
    body = refusal_body(BadRequest(what, expected=_EXPECTED[status].format(limit)))
    data = json.dumps(body).encode()
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("ascii") + data
