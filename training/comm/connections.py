"""Finds the TCP connections that a library has opened in this process, and shuts them down.

If a peer's machine vanishes without closing its connections, Gloo waits for minutes, until its
timeout. Shutting the connection down on this side ends the wait at once, with the same error as the
death of a peer. It is specific to Linux: descriptors are listed in /proc.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading

_CLOSED, _LISTENS = 7, 10  # of the kernel's TCP states (tcp_states.h)


class Connections:
    """Connections opened inside `with` blocks by any thread of this process.

    They can also be shut inside a block: all that were opened so far, including those that are
    still being established because the other machine does not answer.
    """

    def __init__(self) -> None:
        self._before: dict[int, str] | None = _connected()
        """Sockets from before the block; None outside, once it has ended."""
        self._opened: dict[int, str] = {}
        """Sockets opened inside blocks that have ended."""
        self._over = threading.Event()

    def __enter__(self) -> Connections:
        self._before = _connected()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened, self._before = self._so_far(), None

    def shut(self) -> int:
        """Shut down the connections that are still open, in both directions. Returns their
        number."""
        now = _connected()
        still_open = [fd for fd, name in self._so_far().items() if now.get(fd) == name]
        for fd in still_open:
            # Closing a duplicate of the descriptor does not close the library's.
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as copy:
                copy.shutdown(socket.SHUT_RDWR)
        return len(still_open)

    def shut_until_over(self, first: float, again: float) -> None:
        """Shut them after `first` seconds and then every `again` seconds until `over` is called.

        It runs in a separate thread, and also shuts connections that the library opens later inside
        the block.
        """
        pause = first
        while not self._over.wait(pause):
            self.shut()
            pause = again

    def over(self) -> None:
        """End `shut_until_over`: the library does not use the connections any more."""
        self._over.set()

    def _so_far(self) -> dict[int, str]:
        before = self._before
        if before is None:
            return self._opened
        now = {fd: name for fd, name in _connected().items() if before.get(fd) != name}
        return self._opened | now


def _connected() -> dict[int, str]:
    """{descriptor: the kernel's name} of the TCP sockets that are connected or connecting."""
    sockets = {}
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            name = os.readlink(f"/proc/self/fd/{entry}")
            if not name.startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry))) as copy:
                inet = copy.family in (socket.AF_INET, socket.AF_INET6)
                if inet and copy.type == socket.SOCK_STREAM:
                    state = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
                    if state not in (_CLOSED, _LISTENS):
                        sockets[int(entry)] = name
    return sockets
