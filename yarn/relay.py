"""Gloo's rendezvous as the training process sees it: plain HTTP to its own agent on loopback.

Horovod's C++ client can sign nothing. So it talks to this relay, which takes requests from its own
user's processes only (by the kernel's table of connections), and hands them to the driver signed,
each with the generation of the world that the process is in: stock Horovod works, and no stranger
and no stale key comes between.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

from howdah.errors import ClusterError
from yarn import rendezvous, wire

__all__ = ["Relay", "owner_of_peer"]

HOST = "127.0.0.1"
_WAIT_SECONDS = 1.0
"""How long the driver holds the question for a key that is not there yet; Gloo asks every 10 ms."""
_CALL_SECONDS = 10.0
_PATH = re.compile(r"/([^/]+)/([^/]+)")


def owner_of_peer(peer: tuple[str, int], here: tuple[str, int]) -> int | None:
    """The user id of the process at the other end of a loopback connection of this machine.

    Args:
        peer: address and port of the other end.
        here: address and port of our end.
    Returns:
        None if the kernel lists no such connection.
    """
    end = tuple(_hex(*side) for side in (peer, here))
    with open("/proc/net/tcp", encoding="ascii") as table:
        next(table)
        for line in table:
            fields = line.split()
            if (fields[1], fields[2]) == end:
                return int(fields[7])
    # A process with an IPv6 socket reaches an IPv4 one by a mapped address.
    mapped = tuple("0000000000000000FFFF0000" + side for side in end)
    try:
        with open("/proc/net/tcp6", encoding="ascii") as table:
            next(table)
            for line in table:
                fields = line.split()
                if (fields[1], fields[2]) == mapped:
                    return int(fields[7])
    except FileNotFoundError:  # no IPv6 in this kernel
        pass
    return None


def _hex(address: str, port: int) -> str:
    (number,) = struct.unpack("=I", socket.inet_aton(address))
    return f"{number:08X}:{port:04X}"


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

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 10.0
            disable_nagle_algorithm = True
            server_version, sys_version = "howdah", ""

            def do_GET(self) -> None:
                body = wire.read_body(self, rendezvous.VALUE_LIMIT)
                if body is None:
                    return
                owner = owner_of_peer(self.client_address, self.connection.getsockname())
                name = _PATH.fullmatch(self.path)
                if owner != me:
                    self._refuse(403, f"of user {owner}")
                elif name and name[1] == "rank_and_size" and self.command == "GET":
                    wire.send(self, 200, "text/plain", place()[1].encode())
                elif not name or not rendezvous.valid_name(name[1], name[2]):
                    self._refuse(403, "not one of Gloo's names")
                else:
                    self._pass_on(body)

            do_PUT = do_DELETE = do_GET

            def _pass_on(self, body: bytes) -> None:
                generation, _ = place()
                path = f"/rendezvous/{generation}{self.path}"
                try:
                    status, answer = client.request(self.command, path, body, _CALL_SECONDS)
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
