"""Ranks of a Gloo world started by hand: a rendezvous of a few lines, and each rank's variables."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psutil


class Rendezvous:
    """Horovod's key-value server: keys stay until it is closed.

    Args:
        on_put: called with the path of each key before it is there for others.
        address: to listen on.
        interface: of the ranks.
        one_host: all ranks are on one host; else each has one of its own.
    """

    def __init__(
        self,
        on_put: Callable[[str], None] = lambda path: None,
        *,
        address: str = "127.0.0.1",
        interface: str = "lo",
        one_host: bool = True,
    ) -> None:
        self._interface, self._one_host = interface, one_host
        keys: dict[str, bytes] = {}

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                on_put(self.path)
                keys[self.path] = body
                self._answer(200)

            def do_GET(self) -> None:
                value = keys.get(self.path)
                self._answer(200 if value is not None else 404, value or b"")

            def do_DELETE(self) -> None:
                self._answer(200)

            def _answer(self, status: int, body: bytes = b"") -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_) -> None:
                pass

        self._server = ThreadingHTTPServer((address, 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def variables(self, rank: int, size: int) -> dict[str, str]:
        """What a rank's environment says of the world."""
        address, port = self._server.server_address[:2]
        local, cross = ((rank, size), (0, 1)) if self._one_host else ((0, 1), (rank, size))
        return {
            "HOROVOD_RANK": str(rank), "HOROVOD_SIZE": str(size),
            "HOROVOD_LOCAL_RANK": str(local[0]), "HOROVOD_LOCAL_SIZE": str(local[1]),
            "HOROVOD_CROSS_RANK": str(cross[0]), "HOROVOD_CROSS_SIZE": str(cross[1]),
            "HOROVOD_HOSTNAME": "localhost" if self._one_host else f"host-{rank}",
            "HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_IFACE": self._interface,
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
            "HOROVOD_GLOO_TIMEOUT_SECONDS": "60",
        }  # fmt: skip

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


def run(
    argvs: Sequence[Sequence[str]],
    env: Mapping[str, str],
    rendezvous: Rendezvous,
    *,
    started: Callable[[list[subprocess.Popen]], None] = lambda ranks: None,
    timeout: float = 240.0,
) -> list[tuple[int, str]]:
    """Run ranks; (exit code, output) of each. They are gone when this returns.

    Args:
        argvs: the program of each rank.
        env: its variables, besides those of the world.
        started: gets the processes.
        timeout: seconds that only a hang takes.
    """
    ranks = [
        subprocess.Popen(
            argv, env={**env, **rendezvous.variables(rank, len(argvs))}, text=True, cwd="/",
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for rank, argv in enumerate(argvs)
    ]  # fmt: skip
    try:
        started(ranks)
        texts = [process.communicate(timeout=timeout)[0] for process in ranks]
        return [(process.returncode, text) for process, text in zip(ranks, texts, strict=True)]
    finally:
        for process in ranks:
            process.kill()
            process.wait()


def listening(processes: Sequence[subprocess.Popen]) -> set[int]:
    """TCP ports that these processes listen on now."""
    return {
        connection.laddr.port
        for process in processes
        for connection in psutil.Process(process.pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
