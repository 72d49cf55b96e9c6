"""The driver's end of the wire (jobs/net/wire.py): signed requests, and pages for users."""

from __future__ import annotations

import resource
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial

from howdah.jobs.net import signing
from howdah.jobs.net.http_connection import Connection, RequestHead, RequestRefused, answer_bytes
from howdah.jobs.net.listener import Lane, Listener, Serve

BODY_LIMIT = 2**20
"""Most bytes of a request's body; the longest are a rank's addresses and a batch of events."""
_IDLE_SECONDS = 30.0
"""A connection that is silent for this long is closed; an agent's never is silent for as long."""
_REQUEST_SECONDS = 20.0
"""Limit for one request from its first byte to its last, and for its answer."""
_PAGE_SECONDS = 10.0
_AGENT_CONNECTIONS = 2**14
"""Most connections of agents, which have several each; only a defect reaches this limit."""
_PAGE_CONNECTIONS = 8
"""Most connections for pages, which any client that knows their path may request."""
_PAGES = "/page/"
_DESCRIPTORS = 2**16

Answer = tuple[int, str, bytes]
"""Status, content type, body."""


class Server(Listener):
    """The driver's end.

    Args:
        address, ports: where to listen (jobs/net/listener.py).
        key: the job's key.
        signed: (method, path, body) -> Answer to a signed request; called in many threads at once.
        page: path -> Answer with a page, without a signature.
        refused: logs refusals, at most a line a minute.
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
        _allow_descriptors()  # first: the listener's own limit depends on it
        super().__init__(address, ports, refused)
        self._key, self._signed, self._page = key, signed, page
        self._sessions = signing.Sessions()
        self._agents = Lane("agents", _AGENT_CONNECTIONS)
        self._pages = Lane("pages", _PAGE_CONNECTIONS, public=True)

    # ------------------------------------------------------------------ in the listener's thread
    def admit(self, request: RequestHead) -> tuple[Lane, Serve]:
        """Admit requests with the job's signature, and those for a page."""
        if request.method == "GET" and request.path.startswith(_PAGES):
            return self._pages, partial(self._serve_page, request)
        signature = signing.verified(self._key, request, self._sessions)
        return self._agents, partial(self._serve_agent, request, signature)

    # ------------------------------------------------------------------------------ in threads
    def _serve_page(self, request: RequestHead, connection: Connection) -> None:
        # YARN's proxy forwards the query, which may name the user (user.name).
        page = partial(self._page, request.path.partition("?")[0])
        status, kind, body = self._answer(request, page)
        data = answer_bytes(status, kind, body, close=True)
        connection.send(data, time.monotonic() + _PAGE_SECONDS)

    def _serve_agent(self, request: RequestHead, signature: str, connection: Connection) -> None:
        while True:
            body = self._body(connection, request, time.monotonic() + _REQUEST_SECONDS)
            if body is None:
                status, kind, answer = 413, "text/plain", f"more than {BODY_LIMIT} bytes".encode()
            else:
                signed = partial(self._signed, request.method, request.path, body)
                status, kind, answer = self._answer(request, signed)
            close = request.close or body is None
            stamp = signing.answer_signature(self._key, signature, status, answer)
            headers = {signing.SIGNATURE: stamp}
            data = answer_bytes(status, kind, answer, headers=headers, close=close)
            connection.send(data, time.monotonic() + _REQUEST_SECONDS)
            if close:
                return
            following = connection.next_request(_IDLE_SECONDS, _REQUEST_SECONDS)
            if following is None:
                return
            request = following
            signature = signing.verified(self._key, request, self._sessions)

    def _body(self, connection: Connection, request: RequestHead, deadline: float) -> bytes | None:
        """The request's body; None if it is longer than BODY_LIMIT.

        Raises:
            RequestRefused: the body is not the one that was signed. This answer is not signed: a
                host that has changed the body could pass the answer on to the agent.
        """
        length = signing.body_length(request)
        if length > BODY_LIMIT:
            # Read it, since closing a connection with unread data would discard the answer.
            connection.discard(length, deadline)
            return None
        if request.length(BODY_LIMIT) == length:
            body = connection.read(length, deadline)
            if signing.check_body(request, body):
                return body
        raise RequestRefused(400, "not the body that was signed", "the body is not the signed one")

    def _answer(self, request: RequestHead, handler: Callable[[], Answer]) -> Answer:
        try:
            return handler()
        except Exception as error:  # noqa: BLE001 - reported; the agent repeats its request
            line = f"{request.method} {request.path[:80]!r} could not be answered: {error!r}"
            if self._refusals.add(line):
                traceback.print_exception(error, file=sys.stderr)
            return 500, "text/plain", b"the driver failed to answer\n"


def _allow_descriptors() -> None:
    """Raise the limit of open files if that is allowed: a large job uses some for each agent."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
