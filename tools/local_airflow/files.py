"""Plain file servers beside an Airflow: reports of runs for browsers, on loopback."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from howdah import storage
from tools.local_airflow.servers import HOST, Server, free_port, is_free

_ROOT = Path(__file__).resolve().parents[2]


class FileServers:
    """The servers by their names, each on the port that it had at an earlier start if it can.

    Args:
        home: AIRFLOW_HOME; the ports are kept there.
        log_of: gives the file for a server's output.
    """

    def __init__(self, home: Path, log_of: Callable[[str], Path]) -> None:
        self._kept = home / "ports.json"
        self._log_of = log_of
        self._started: dict[str, tuple[str, int]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._started

    def url(self, name: str) -> str:
        """The URL of a server."""
        return f"http://{HOST}:{self._started[name][1]}"

    def start(self, name: str, root: str, env: Mapping[str, str]) -> Server:
        """Serve `root`, a directory of any storage."""
        self._started[name] = root, self.kept_port(name)
        return self.start_again(name, env)

    def start_again(self, name: str, env: Mapping[str, str]) -> Server:
        """Restart a server that has ended, on its port."""
        root, port = self._started[name]
        # A program of this repository, found from its root.
        argv = [sys.executable, "-m", "tools.local_airflow.file_pages", root, "--port", str(port)]
        return Server(name, argv, log=self._log_of(name), env=env, cwd=_ROOT)

    def kept_port(self, name: str) -> int:
        """The port of an earlier start, if it is free: links in Airflow's database lead there."""
        kept = json.loads(self._kept.read_text()) if self._kept.is_file() else {}
        port = kept.get(name)
        if port is None or not is_free(port):
            port = free_port()
            storage.write_whole(str(self._kept), json.dumps({**kept, name: port}).encode() + b"\n")
        return port
