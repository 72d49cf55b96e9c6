"""TCP connections that a library has opened in this process, to be broken when it waits in vain.

Gloo waits for a peer until its time-out, minutes, when the peer's machine has vanished without a
word. A connection that is shut down on this side ends the wait at once, with the same error as a
peer's death. Linux: descriptors are found by /proc.
"""

from __future__ import annotations

import contextlib
import os
import socket
from types import TracebackType

__all__ = ["Connections"]


class Connections:
    """Connections opened inside a `with` block, by any thread of this process."""

    def __init__(self) -> None:
        self._found: dict[int, str] = {}

    def __enter__(self) -> Connections:
        self._before = _connected()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._found = {
            fd: name for fd, name in _connected().items() if self._before.get(fd) != name
        }

    def shut(self) -> int:
        """Shut down those that are still open, both ways; how many there were."""
        now = _connected()
        there = [fd for fd, name in self._found.items() if now.get(fd) == name]
        for fd in there:
            # A copy of the descriptor: closing it leaves the library's own alone.
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as copy:
                copy.shutdown(socket.SHUT_RDWR)
        return len(there)


def _connected() -> dict[int, str]:
    """Descriptors of connected TCP sockets, with the kernel's name of each socket."""
    found = {}
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            name = os.readlink(f"/proc/self/fd/{entry}")
            if not name.startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry))) as copy:
                inet = copy.family in (socket.AF_INET, socket.AF_INET6)
                if inet and copy.type == socket.SOCK_STREAM:
                    copy.getpeername()  # a listening one has no peer: OSError
                    found[int(entry)] = name
    return found
