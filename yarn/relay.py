"""Gloo's rendezvous as the training process sees it: plain HTTP to its own agent on loopback.

Horovod's C++ client can sign nothing. So it talks to this relay, which takes requests from its own
user's processes only (by the kernel's account of each connection), and answers them for the
generation of the world that the process is in, by signed requests to the driver (yarn/meshes.py):
stock Horovod works, and neither a stranger nor a stale key comes between.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

from howdah.errors import ClusterError
from yarn import rendezvous, wire
from yarn.meshes import Meshes
from yarn.peer_socket import owner_of_peer

__all__ = ["Relay"]

HOST = "127.0.0.1"
_CALL_SECONDS = 10.0
"""Limit of a request to the driver, which holds one for a mesh until all ranks have come, and
answers after seconds that not all have: Gloo asks again every 10 ms."""
_PATH = re.compile(r"/([^/]+)/([^/]+)")


class Relay:
    """A listener on loopback for one agent.

    Args:
        client: the signed way to the driver.
        ports: which ports to choose from; None: any.
        place: () -> (generation, "rank,size,local rank,local size,cross rank,cross size") of the
            world that the process is in, or (0, "") for none.
        refused: told of every refusal, a line each.
    """

    def __init__(
        self,
        client: wire.Client,
        ports: range | None,
        *,
        place: Callable[[], tuple[int, str]],
        refused: Callable[[str], None],
    ) -> None:
        me = os.geteuid()

        def request(method: str, path: str, body: bytes) -> tuple[int, bytes]:
            return client.request(method, path, body, _CALL_SECONDS)

        meshes = Meshes(place, request)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 10.0
            disable_nagle_algorithm = True
            server_version, sys_version = "howdah", ""

            def do_GET(self) -> None:
                # Before anything is read of the request. A connection has one owner.
                owner = owner_of_peer(self.client_address, self.connection.getsockname())
                if owner != me:
                    self._refuse(403, "of no process" if owner is None else f"of user {owner}")
                    return
                body = wire.read_body(self, rendezvous.VALUE_LIMIT)
                if body is None:
                    return
                name = _PATH.fullmatch(self.path)
                if name and name[1] == "rank_and_size" and self.command == "GET":
                    wire.send(self, 200, "text/plain", place()[1].encode())
                elif not name or not rendezvous.valid_name(name[1], name[2]):
                    self._refuse(403, "not one of Gloo's names")
                else:
                    self._pass_on(name[1], name[2], body)

            do_PUT = do_DELETE = do_GET

            def _pass_on(self, scope: str, key: str, body: bytes) -> None:
                try:
                    status, answer = meshes.answer(self.command, scope, key, body)
                except ClusterError as error:
                    # Horovod asks again twice; the agent itself sees that the driver is away.
                    status, answer = 503, error.what.encode()
                wire.send(self, status, "application/octet-stream", answer)

            def _refuse(self, status: int, why: str) -> None:
                refused(f"refused {self.command} {self.path[:80]!r} on loopback: {why}")
                wire.send(self, status, "text/plain", b"refused\n", close=True)

            def log_message(self, format: str, *args: Any) -> None:
                """Gloo asks hundreds of times while a world forms."""

        self._server = wire.BoundServer(HOST, ports, Handler)
        self.port = self._server.port

    def start(self) -> None:
        """Answer from now on."""
        self._server.start()

    def stop(self) -> None:
        """Listen no more."""
        self._server.stop()
