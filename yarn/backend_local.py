"""Containers that are processes of this machine: for tests and trials of driver and agents.

    python -m yarn.backend_local driver DIRECTORY CONFIG [--nodes a,b] [--attempt 2]

Everything but the cluster is as on YARN. A container is a session of its own, and ends as a whole;
its files are DIRECTORY/containers/<id>/. What a cluster does to a job is asked for with files:
DIRECTORY/capacity holds how many containers there may be, DIRECTORY/preempt/<id> takes one back.
With --namespaces the nodes are network namespaces of those names (root only), and --address is the
driver's own in the one it runs in.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from howdah import storage
from howdah.config import Config
from howdah.config import load as load_config
from howdah.errors import ClusterError, HowdahError, render
from yarn.backend import AgentBackend, Container, DriverAddress, DriverBackend, Reason

__all__ = ["LocalAgent", "LocalDriver", "main"]

_TERM_SECONDS = 0.25
"""Between SIGTERM and SIGKILL, as YARN's NodeManager has it."""


@dataclass
class _Running:
    process: subprocess.Popen[bytes]
    node: str
    reason: Reason | None = None


class LocalDriver(DriverBackend):
    """Starts agents as processes.

    Args:
        directory: of this job, of its own.
        config_path: what agents are started with.
        application: its id, the same for all attempts.
        nodes: names of the machines that this one stands for; containers take turns.
        address: to listen on.
        namespaces: nodes are network namespaces.
        attempt: which driver of the job this is.
    """

    def __init__(
        self,
        directory: str,
        config_path: str,
        *,
        application: str,
        nodes: Sequence[str],
        address: str = "127.0.0.1",
        namespaces: bool = False,
        attempt: int = 1,
    ) -> None:
        self.application = application
        self.attempt = attempt
        self._directory, self._config_path = os.path.abspath(directory), config_path
        self._nodes, self._address, self._namespaces = list(nodes), address, namespaces
        self._lock = threading.Lock()
        self._count = 0
        self._started = 0
        self._running: dict[str, _Running] = {}
        self._driver_file = os.path.join(self._directory, "driver.json")
        with contextlib.suppress(FileNotFoundError):
            os.remove(self._driver_file)

    def listen_address(self) -> str:
        return self._address

    def publish(self, driver: DriverAddress) -> None:
        os.makedirs(self._directory, exist_ok=True)
        part = self._driver_file + ".part"
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w") as file:
            json.dump(driver.to_dict(), file)
        os.replace(part, self._driver_file)

    def containers(self) -> list[Container]:
        with self._lock:
            self._preempt()
            self._fill()
            found = []
            for name, one in self._running.items():
                code = one.process.poll()
                if code is None:
                    found.append(Container(name, one.node, "running"))
                else:
                    reason = one.reason or ("failed" if code else None)
                    found.append(Container(name, one.node, "ended", code, reason))
            live = sum(one.state == "running" for one in found)
            asked = range(max(0, self._count - live))
            return found + [Container(f"asked-{n}", "", "requested") for n in asked]

    def keep(self, count: int) -> None:
        with self._lock:
            self._count = count
            self._fill()

    def release(self, container: str) -> None:
        with self._lock:
            self._end(container, "killed")

    def progress(self, fraction: float) -> None:
        with open(os.path.join(self._directory, "progress"), "w", encoding="ascii") as file:
            file.write(f"{fraction:.3f}")

    def add_page(self, url: str) -> str | None:
        return None

    def finish(self, status: Literal["SUCCEEDED", "FAILED", "KILLED"], diagnostics: str) -> None:
        self.end_all()
        verdict = {"status": status, "diagnostics": diagnostics}
        path = os.path.join(self._directory, "finish.json")
        storage.write_whole(path, json.dumps(verdict).encode())

    def end_all(self) -> None:
        """End every container."""
        with self._lock:
            self._count = 0
            for name in self._running:
                self._end(name, "killed")

    def _capacity(self) -> int:
        try:
            with open(os.path.join(self._directory, "capacity"), encoding="ascii") as file:
                return int(file.read())
        except (FileNotFoundError, ValueError):
            return sys.maxsize

    def _preempt(self) -> None:
        folder = os.path.join(self._directory, "preempt")
        for name in os.listdir(folder) if os.path.isdir(folder) else []:
            self._end(name, "preempted")
            os.remove(os.path.join(folder, name))

    def _fill(self) -> None:
        wanted = min(self._count, self._capacity())
        live = sum(one.process.poll() is None for one in self._running.values())
        for _ in range(wanted - live):
            self._start()

    def _start(self) -> None:
        self._started += 1
        name = f"container_{self.attempt:02}_{self._started:06}"
        node = self._nodes[(self._started - 1) % len(self._nodes)]
        home = os.path.join(self._directory, "containers", name)
        os.makedirs(home)
        words = [sys.executable, "-m", "yarn.backend_local", "agent", self._directory,
                 self._config_path, "--container", name, "--nodes", node]  # fmt: skip
        if self._namespaces:
            words = ["ip", "netns", "exec", node, *words]  # becomes the agent: no process between
        with open(os.path.join(home, "agent.log"), "wb") as log:
            process = subprocess.Popen(
                words,
                cwd=home,
                env={**os.environ, "LOG_DIRS": home},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._running[name] = _Running(process, node)

    def _end(self, name: str, reason: Reason) -> None:
        one = self._running.get(name)
        if one is None or one.process.poll() is not None:
            return
        one.reason = one.reason or reason
        with contextlib.suppress(ProcessLookupError):
            os.killpg(one.process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            one.process.wait(_TERM_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(one.process.pid, signal.SIGKILL)
        one.process.wait()


class LocalAgent(AgentBackend):
    """An agent that LocalDriver has started."""

    def __init__(self, directory: str, container: str, node: str) -> None:
        self.container_id, self.node = container, node
        self._driver_file = os.path.join(directory, "driver.json")

    def find_driver(self, timeout: float) -> DriverAddress:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            try:
                with open(self._driver_file, encoding="ascii") as file:
                    return DriverAddress.from_dict(json.load(file))
            except FileNotFoundError:
                time.sleep(0.1)
        raise ClusterError("the job's driver is not there", where=self._driver_file)


def main(argv: Sequence[str] | None = None) -> int:
    """Be a driver, or one of its agents."""
    parser = argparse.ArgumentParser(prog="python -m yarn.backend_local")
    parser.add_argument("role", choices=("driver", "agent"))
    parser.add_argument("directory")
    parser.add_argument("config")
    parser.add_argument("--application", default=f"local-{os.getpid()}")
    parser.add_argument("--nodes", default="localhost")
    parser.add_argument("--address", default="127.0.0.1")
    parser.add_argument("--namespaces", action="store_true")
    parser.add_argument("--attempt", type=int, default=1)
    parser.add_argument("--container")
    args = parser.parse_args(argv)
    try:
        config = load_config(args.config, [])
    except HowdahError as error:
        print(render(error), file=sys.stderr, flush=True)
        return error.exit_code
    storage.configure(retry_seconds=config.run.storage_retry_seconds)
    path = os.path.abspath(args.config)
    if args.role == "agent":
        return _agent(config, path, LocalAgent(args.directory, args.container, args.nodes))
    backend = LocalDriver(
        args.directory,
        path,
        application=args.application,
        nodes=args.nodes.split(","),
        address=args.address,
        namespaces=args.namespaces,
        attempt=args.attempt,
    )
    from yarn.driver import run

    try:
        return run(config, path, backend)
    finally:
        backend.end_all()


def _agent(config: Config, path: str, backend: LocalAgent) -> int:
    from yarn.agent import run

    return run(config, path, backend)


if __name__ == "__main__":
    sys.exit(main())
