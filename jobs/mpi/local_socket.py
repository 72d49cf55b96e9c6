"""Sockets between the processes of one user on one machine, by a name that no directory holds.

A container's own directories have paths too long for a unix socket's (107 bytes). Abstract names
have no permissions: the user of each connecting process is checked instead.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct


def listen(backlog: int) -> tuple[socket.socket, str]:
    """A socket that listens, and its name, to be handed on in the environment."""
    name = f"howdah-mpi-{secrets.token_hex(16)}"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("\0" + name)
    listener.listen(backlog)
    return listener, name


def connect(name: str) -> socket.socket:
    """A connection to it."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect("\0" + name)
    return connection


def accept(listener: socket.socket) -> socket.socket:
    """The next connection of a process of our own user; other users' are closed.

    Raises:
        OSError: as socket.accept.
    """
    while True:
        connection, _ = listener.accept()
        peer = connection.getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
        )  # pid, uid, gid: unix(7)
        if struct.unpack("3i", peer)[1] == os.getuid():
            return connection
        connection.close()
