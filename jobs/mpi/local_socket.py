"""Sockets with abstract names between the processes of one user on one machine.

The paths of a container's directories are too long for a unix socket (107 bytes). Abstract names
have no permissions, so that the user of each connecting process is checked instead.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct


def listen(backlog: int) -> tuple[socket.socket, str]:
    """A listening socket, and its name, which is passed on in the environment."""
    name = f"howdah-mpi-{secrets.token_hex(16)}"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("\0" + name)
    listener.listen(backlog)
    return listener, name


def connect(name: str) -> socket.socket:
    """A connection to the socket with this name."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect("\0" + name)
    return connection


def accept(listener: socket.socket) -> socket.socket:
    """The next connection from a process of our own user; those of other users are closed.

    Raises:
        OSError: socket.accept failed.
    """
    while True:
        connection, _ = listener.accept()
        peer = connection.getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
        )  # pid, uid, gid: unix(7)
        if struct.unpack("3i", peer)[1] == os.getuid():
            return connection
        connection.close()
