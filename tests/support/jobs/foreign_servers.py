"""Servers that have taken the place of a job's driver, and answer in their own ways."""

import contextlib
import itertools
import socket
import threading

_OK = b"HTTP/1.1 200 OK\r\n"
_NOT_ASCII = b"X-Howdah-Signature: " + b"\xe9" * 64 + b"\r\n"

FOREIGN = {
    "nothing": [b""],
    "garbage": [b"\xe9\xe9\r\n\r\n\x00"],
    "another protocol": [b"SSH-2.0-OpenSSH_9.6\r\n"],
    "a refusal": [b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno"],
    "too large": [b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno"],
    "no signature": [_OK + b"Content-Length: 2\r\n\r\n{}"],
    "a signature that is not ASCII": [_OK + _NOT_ASCII + b"Content-Length: 2\r\n\r\n{}"],
    "no JSON": [_OK + _NOT_ASCII + b"Content-Length: 4\r\n\r\n\xff\xfe{{"],
    "no length": [_OK + b"\r\n", itertools.repeat(b"x" * 4096)],
    "chunks": [_OK + b"Transfer-Encoding: chunked\r\n\r\n", itertools.repeat(b"1\r\nx\r\n")],
    "a length of a terabyte": [_OK + b"Content-Length: 1099511627776\r\n\r\n",
                               itertools.repeat(b"x" * 4096)],
    "headers without end": [_OK, itertools.repeat(b"A: b\r\n")],
    "a cut body": [_OK + b"Content-Length: 100\r\n\r\n{}"],
    "silence": [None],
    "a byte at a time": [_OK + b"Content-Length: 1000\r\n\r\n", "slowly"],
}  # fmt: skip


@contextlib.contextmanager
def foreign(kind):
    """Such a server on loopback: its port, and what it was sent."""
    over, requests = threading.Event(), []

    def answer(end):
        with contextlib.suppress(OSError), end:
            requests.append(end.recv(2**16))
            for part in FOREIGN[kind]:
                if part is None:
                    over.wait(60)
                elif part == "slowly":
                    while not over.wait(0.1):
                        end.sendall(b"x")
                else:
                    for data in [part] if isinstance(part, bytes) else part:
                        if over.is_set():
                            return
                        end.sendall(data)

    def accept(listener):
        with contextlib.suppress(OSError):
            while True:
                end, _ = listener.accept()
                threading.Thread(target=answer, args=(end,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        yield listener.getsockname()[1], requests
        over.set()
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
