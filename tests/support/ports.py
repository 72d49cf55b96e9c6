"""Ports of this machine."""

import socket


def free_port() -> int:
    """A port of the loopback interface on which nothing listens."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
