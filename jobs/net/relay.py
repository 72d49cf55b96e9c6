"""The rendezvous for a training process: plain HTTP to its agent on loopback.

Horovod's C++ client cannot sign requests, and ranks do not have the job's key; torch.distributed's
store (training/comm/store_torch.py) uses this relay too. The relay only accepts processes of its
own user (the kernel reports each connection's user before any byte is read), and answers for the
generation of the process's world with signed requests to the driver (jobs/net/meshes.py). So stock
Horovod works, and it sees neither a stranger's value nor a stale key.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from howdah.errors import ClusterError
from howdah.jobs.net import rendezvous, wire
from howdah.jobs.net.http_connection import Connection, RequestHead, RequestRefused, answer_bytes
from howdah.jobs.net.listener import Lane, Listener, Serve
from howdah.jobs.net.meshes import Meshes
from howdah.jobs.net.peer_socket import owner_of_peer
from howdah.jobs.net.wire_server import Answer

HOST = "127.0.0.1"
_CALL_SECONDS = 10.0
"""Limit of a request to the driver, which holds a mesh's request until all ranks have come, for
some seconds at most: Gloo repeats its request every 10 ms."""
_REQUEST_SECONDS = 10.0
"""Limit for one request from its first byte to its last, for its answer, and between requests."""
_CONNECTIONS = 64
"""Most connections of our own user's processes; Gloo makes one for each request."""
_PATH = re.compile(r"/([^/]+)/([^/]+)")


class Relay(Listener):
    """A listener on loopback for one agent.

    Args:
        client: makes signed requests to the driver.
        ports: the ports to choose from; None: any.
        assignment: () -> (generation, "rank,size,local rank,local size,cross rank,cross size") of
            the process's world, or (0, "") without one.
        refused: logs refusals, at most a line a minute.
    """

    def __init__(
        self,
        client: wire.Client,
        ports: range | None,
        *,
        assignment: Callable[[], tuple[int, str]],
        refused: Callable[[str], None],
    ) -> None:
        def request(method: str, path: str, body: bytes) -> tuple[int, bytes]:
            return client.request(method, path, body, _CALL_SECONDS)

        super().__init__(HOST, ports, refused)
        self._assignment, self._meshes = assignment, Meshes(assignment, request)
        self._user = os.geteuid()
        self._lane = Lane("the training process", _CONNECTIONS)

    # ------------------------------------------------------------------ in the listener's thread
    def welcome(self, end: socket.socket, peer: tuple[Any, ...]) -> None:
        """Accept only processes of our own user; the owner of a connection cannot change."""
        owner = owner_of_peer((peer[0], peer[1]), end.getsockname())
        if owner != self._user:
            why = "its process has ended" if owner is None else f"it belongs to user {owner}"
            raise RequestRefused(403, "refused", why)

    def admit(self, request: RequestHead) -> tuple[Lane, Serve]:
        """Admit all requests of an accepted process."""
        return self._lane, partial(self._serve_process, request)

    # ------------------------------------------------------------------------------ in threads
    def _serve_process(self, request: RequestHead, connection: Connection) -> None:
        while True:
            deadline = time.monotonic() + _REQUEST_SECONDS
            body = connection.read(request.length(rendezvous.VALUE_LIMIT), deadline)
            status, kind, answer = self._answer(request, body)
            data = answer_bytes(status, kind, answer, close=request.close)
            connection.send(data, time.monotonic() + _REQUEST_SECONDS)
            if request.close:
                return
            following = connection.next_request(_REQUEST_SECONDS, _REQUEST_SECONDS)
            if following is None:
                return
            request = following

    def _answer(self, request: RequestHead, body: bytes) -> Answer:
        name = _PATH.fullmatch(request.path)
        if name and name[1] == "rank_and_size" and request.method == "GET":
            return 200, "text/plain", self._assignment()[1].encode()
        valid = request.method in ("GET", "PUT", "DELETE")
        if not valid or not name or not rendezvous.valid_name(name[1], name[2]):
            why = f"{request.method} {request.path[:80]!r} is not a request of the rendezvous"
            raise RequestRefused(403, "refused", why)
        try:
            status, answer = self._meshes.answer(request.method, name[1], name[2], body)
        except ClusterError as error:
            # Horovod retries twice; the agent itself notices that the driver is unreachable.
            status, answer = 503, error.what.encode()
        return status, "application/octet-stream", answer
