"""A web server of this process that keeps what is posted to it."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Receiver:
    """What came, and how to answer."""

    url: str = ""
    alerts: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    code: int = 204
    headers: dict[str, str] = field(default_factory=dict)
    held: threading.Event | None = None
    """Answers wait for it; None: they do not wait."""
    came: threading.Condition = field(default_factory=threading.Condition)

    def wait(self, count: int = 1, seconds: float = 60) -> list[dict[str, Any]]:
        """The alerts, once there are so many."""
        with self.came:
            assert self.came.wait_for(lambda: len(self.alerts) >= count, seconds), self.alerts
            return list(self.alerts)


@contextlib.contextmanager
def receiving() -> Iterator[Receiver]:
    """A server on loopback."""
    receiver = Receiver()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with receiver.came:
                receiver.paths.append(self.path)
                receiver.alerts.append(json.loads(body))
                receiver.came.notify_all()
            if receiver.held is not None:
                receiver.held.wait(60)
            with contextlib.suppress(OSError):  # the sender may have given up
                self.send_response(receiver.code)
                for name, value in receiver.headers.items():
                    self.send_header(name, value)
                self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    receiver.url = f"http://127.0.0.1:{server.server_port}/hook/s3cr3t-path"
    try:
        yield receiver
    finally:
        if receiver.held is not None:
            receiver.held.set()
        server.shutdown()
        server.server_close()
        thread.join()
