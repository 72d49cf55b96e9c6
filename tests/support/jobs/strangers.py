"""Connections to a port from processes that have no business there, and keep it busy."""

import itertools
import socket
import threading
from pathlib import Path

_BODY = bytes(2**20 - 1)
WAYS = (
    b"",  # connected, and silent
    b"POST /report HTTP/1.1\r\nContent-Le",  # a head that does not end
    b"POST /report HTTP/1.1\r\nContent-Length: 1048576\r\n\r\n" + _BODY,  # a body that does not
    b"PUT /rendezvous/1/global/0 HTTP/1.1\r\nContent-Length: 1048576\r\nX-Howdah-Session: a\r\n"
    b"X-Howdah-Counter: 1\r\nX-Howdah-Signature: " + b"0" * 64 + b"\r\n\r\n" + _BODY,
    b"\x16\x03\x01\x02\x00\x01",  # another protocol
)


class Strangers:
    """`count` connections that are made anew when they are closed, by `count` threads.

    Each sends as much as is taken of one of WAYS and then a byte from time to time.
    """

    def __init__(self, port, count=300):
        self._where, self._over = ("127.0.0.1", port), threading.Event()
        self._numbers = itertools.count()
        self.connections = 0
        """How many have been made."""
        self._threads = [threading.Thread(target=self._keep, args=(WAYS[number % len(WAYS)],))
                         for number in range(count)]  # fmt: skip

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _keep(self, data):
        while not self._over.is_set():
            try:
                with socket.create_connection(self._where, 5) as end:
                    self.connections = next(self._numbers)
                    end.settimeout(5)
                    end.sendall(data)
                    while not self._over.wait(0.5):
                        end.sendall(b"x")
            except OSError:
                self._over.wait(0.1)


def resident_bytes(pid):
    """Resident memory of a process, bytes; VmHWM would count what was there before."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} has ended")
