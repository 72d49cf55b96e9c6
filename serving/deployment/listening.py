"""The address on which a server listens, and the host names that it answers to."""

from __future__ import annotations

import socket

from howdah.core.machine import is_loopback
from howdah.errors import UsageError

_BACKLOG = 512


def listen(host: str, port: int, *, guarded: bool) -> socket.socket:
    """Return a socket that listens on this address; port 0: a free one.

    Args:
        guarded: requests need a token, or the user has said that they need none (`serve.open`).
    Raises:
        UsageError: the address is not usable, or other machines would reach it unguarded.
    """
    require_guarded(host, guarded=guarded)
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, OverflowError, UnicodeError) as error:
        raise UsageError(
            "cannot listen on this address",
            where="--host, --port",
            got=f"{host}:{port}: {getattr(error, 'strerror', None) or error}",
            remedy="port 0 takes a free one; `ss -ltnp` shows which process listens on a port",
        ) from None
    # Accepted connections inherit it. asyncio sets it only on sockets that it made itself; without
    # it a body waits for the acknowledgement of its head, which clients delay by 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def require_guarded(host: str, *, guarded: bool) -> None:
    """Refuse to listen on another address than loopback without a token.

    `listen` calls it for every server, so that no new server can forget the check.

    Raises:
        UsageError: other machines would reach the server without a token.
    """
    if guarded or is_loopback(host):
        return
    raise UsageError(
        "other machines could reach the server, and their requests would need no token",
        where="--host",
        expected="127.0.0.1, or serve.token_file, or serve.open",
        got=host,
        remedy="--set serve.token_file=FILE: requests need one of its tokens;"
        " --set serve.open=true: all who reach the port can classify",
    )


def host_names(host: str) -> list[str] | None:
    """Return the host names that requests to a server on loopback have; None elsewhere: any name.

    Another name comes from a web page whose name was bound to loopback (DNS rebinding).
    """
    return sorted({host, "localhost", "127.0.0.1", "::1"}) if is_loopback(host) else None


def reached_by_others(host: str, has_tokens: bool) -> str | None:
    """A line that says who can classify where other machines reach the server; None: none does."""
    if is_loopback(host):
        return None
    login = "with a token" if has_tokens else "without a token"
    return f"it listens on {host}: anyone who reaches it can classify {login}"


def shown(host: str) -> str:
    """Return the host as it is written in a URL."""
    return f"[{host}]" if ":" in host else host
