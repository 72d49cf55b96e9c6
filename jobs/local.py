"""The backend whose containers are processes of this machine: `job.on: local`, and tests.

    python -m howdah.jobs.local driver DIRECTORY CONFIG [--nodes a,b] [--attempt 2]

Everything but the cluster is as on one. A container is a session of its own, and ends as a whole;
its files are DIRECTORY/containers/<id>/. Files take the place of the cluster's decisions:
DIRECTORY/capacity holds how many containers there may be, DIRECTORY/preempt/<id> preempts one.
What lies in DIRECTORY/nodes/<node>/, where that is there, is the disk of that node's containers.
With --namespaces the nodes are network namespaces of those names (root only), and --address is the
driver's own in the one it runs in.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from howdah import storage
from howdah.config.loader import Config
from howdah.config.loader import load as load_config
from howdah.core.child import Child
from howdah.errors import ClusterError, HowdahError, render
from howdah.jobs import secret_file
from howdah.jobs.backend import AgentBackend, Container, DriverAddress, DriverBackend, Reason
from howdah.jobs.net.signing import new_key
from howdah.process import isolation

_TERM_SECONDS = 0.25
"""Between SIGTERM and SIGKILL, as YARN's NodeManager has it."""
_SECRETS = "secrets.json"


@dataclass
class _Running:
    process: Child
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
        secret_env: values of `job.secret_env`.
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
        secret_env: Mapping[str, str] | None = None,
    ) -> None:
        self.application = application
        self.attempt, self.started = attempt, time.time()
        self._directory, self._config_path = os.path.abspath(directory), config_path
        self._nodes, self._address, self._namespaces = list(nodes), address, namespaces
        self._lock = threading.Lock()
        self._count = 0
        self._started = 0
        self._running: dict[str, _Running] = {}
        self._key = new_key()
        self._driver_file = os.path.join(self._directory, "driver.json")
        with contextlib.suppress(FileNotFoundError):
            os.remove(self._driver_file)
        self._secret_names = frozenset(secret_env or {})
        os.makedirs(self._directory, exist_ok=True)
        _write_private(os.path.join(self._directory, _SECRETS), dict(secret_env or {}))

    def listen_address(self) -> str:
        return self._address

    def session_key(self) -> str:
        return self._key

    def publish(self, driver: DriverAddress) -> None:
        os.makedirs(self._directory, exist_ok=True)
        _write_private(self._driver_file, driver.to_dict())

    def containers(self) -> list[Container]:
        with self._lock:
            self._preempt()
            self._fill()
            found = []
            for name, one in self._running.items():
                code = one.process.code
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
        live = sum(one.process.alive for one in self._running.values())
        for _ in range(wanted - live):
            self._start()

    def _start(self) -> None:
        self._started += 1
        name = f"container_{self.attempt:02}_{self._started:06}"
        node = self._nodes[(self._started - 1) % len(self._nodes)]
        home = os.path.join(self._directory, "containers", name)
        # As on a cluster: secrets reach the training processes by the file only.
        env = {k: v for k, v in isolation.environment().items() if k not in self._secret_names}
        env |= {"LOG_DIRS": home}
        disk = os.path.join(self._directory, "nodes", node)
        if os.path.isdir(disk):
            home = os.path.join(disk, name)
            env |= {"LOG_DIRS": home, "TMPDIR": home, "HOWDAH_CACHE": os.path.join(disk, "howdah")}
        os.makedirs(home)
        argv = isolation.module(
            "howdah.jobs.local", "agent", self._directory, self._config_path, "--container", name,
            "--nodes", node,
        )  # fmt: skip
        if self._namespaces:
            argv = ["ip", "netns", "exec", node, *argv]  # becomes the agent: no process between
        # It outlives a killed driver, as on YARN, and waits for the next attempt's.
        log = os.path.join(home, "agent.log")
        process = Child(argv, cwd=home, env=env, output=log, grace=_TERM_SECONDS, death_signal=None)
        self._running[name] = _Running(process, node)

    def _end(self, name: str, reason: Reason) -> None:
        one = self._running.get(name)
        if one is not None and one.process.alive:
            one.reason = one.reason or reason
            one.process.end(group=True)


def _write_private(path: str, value: dict[str, str]) -> None:
    """A JSON file for this user alone, whole or not at all."""
    part = path + ".part"
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(value, file)
    os.replace(part, path)


class LocalAgent(AgentBackend):
    """The backend of an agent that LocalDriver has started."""

    def __init__(self, directory: str, container: str, node: str) -> None:
        self.container_id, self.node = container, node
        self._driver_file = os.path.join(directory, "driver.json")
        self._secrets = os.path.join(directory, _SECRETS)

    def secret_env(self) -> Mapping[str, str]:
        with open(self._secrets, encoding="utf-8") as file:
            return json.load(file)

    def find_driver(self, timeout: float) -> DriverAddress:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            try:
                with open(self._driver_file, encoding="ascii") as file:
                    return DriverAddress.from_dict(json.load(file))
            except FileNotFoundError:
                time.sleep(0.1)
        raise ClusterError(
            "the job's driver has not published its address", where=self._driver_file
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run a driver, or one of its agents."""
    parser = argparse.ArgumentParser(prog="python -m howdah.jobs.local")
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
    storage.configure(retry_seconds=config.run.storage_retry_seconds, mode=config.most_open)
    storage.be_patient()
    path = os.path.abspath(args.config)
    if args.role == "agent":
        return _agent(config, path, LocalAgent(args.directory, args.container, args.nodes))
    try:
        secret_env = secret_file.values(config, os.environ)
    except HowdahError as error:
        print(render(error), file=sys.stderr, flush=True)
        return error.exit_code
    backend = LocalDriver(
        args.directory,
        path,
        application=args.application,
        nodes=args.nodes.split(","),
        address=args.address,
        namespaces=args.namespaces,
        attempt=args.attempt,
        secret_env=secret_env,
    )
    from howdah.jobs.driver.driver import run

    try:
        return run(config, path, backend)
    finally:
        backend.end_all()


def _agent(config: Config, path: str, backend: LocalAgent) -> int:
    from howdah.jobs.agent.agent import run

    return run(config, path, backend)


if __name__ == "__main__":
    sys.exit(main())
