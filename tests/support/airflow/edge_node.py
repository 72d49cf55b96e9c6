"""An edge node for tests: a real sshd on loopback, for the user who runs the tests, with a key."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

from howdah.core.processes import descendants
from tests.support.ports import free_port
from tests.support.waiting import wait_until

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")


class EdgeNode:
    """The daemon, its key pair, and what an Airflow Connection needs to log in.

    Args:
        directory: an empty one, for keys and settings.
        environment: variables of every session.
    """

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self.directory = directory
        self.user = getpass.getuser()
        for name in ("host", "user", "stranger"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / name)],
                check=True,
            )
        shutil.copy(directory / "user.pub", directory / "authorized_keys")
        self.port = free_port()
        self._log = directory / "log"
        variables = " ".join(f'{name}="{value}"' for name, value in environment.items())
        settings = directory / "sshd_config"
        settings.write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {directory}/host\n"
            f"AuthorizedKeysFile {directory}/authorized_keys\nStrictModes no\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nUsePAM no\n"
            f"PermitRootLogin prohibit-password\nPidFile none\nSetEnv {variables}\n"
        )
        if os.geteuid() == 0:
            os.makedirs("/run/sshd", exist_ok=True)  # its empty room, which init scripts make
        self._process = subprocess.Popen(
            [SSHD, "-D", "-f", str(settings), "-E", str(self._log)], stdin=subprocess.DEVNULL
        )
        wait_until(lambda: self._process.poll() is not None or self._answers(), 20)
        assert self._process.poll() is None, self._log.read_text()

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def connection(self, *, key: str = "user", host_key: str = "host", port: int = 0) -> dict:
        """An Airflow Connection of type ssh, as a dict."""
        public = (self.directory / f"{host_key}.pub").read_text().split()
        return {
            "conn_type": "ssh",
            "host": "127.0.0.1",
            "port": port or self.port,
            "login": self.user,
            "extra": {
                "key_file": str(self.directory / key),
                "host_key": f"{public[0]} {public[1]}",
                "no_host_key_check": False,
                "allow_host_key_change": False,
                "look_for_keys": False,
            },
        }

    def sessions(self) -> list[int]:
        """sshd's processes of connections that are open."""
        pids = []
        for pid in descendants(self._process.pid):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
                if words.startswith(b"sshd"):
                    pids.append(pid)
        return pids

    def lose_connections(self) -> None:
        """Kill sshd's processes of all connections, as a node's network does that goes away."""
        for pid in self.sessions():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """End the daemon and its connections."""
        self.lose_connections()
        self._process.terminate()
        self._process.wait(10)
