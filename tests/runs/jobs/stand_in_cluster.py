"""A driver whose cluster is files: what YARN would decide, tests decide.

    python -m tests.runs.jobs.stand_in_cluster driver DIRECTORY CONFIG [--nodes a,b] [--attempt 2]

Containers are processes, each a session of its own; its files are DIRECTORY/containers/<id>/.
Agents outlive a killed driver, as on YARN, and wait for the next attempt's. DIRECTORY/capacity
holds how many containers there may be, DIRECTORY/preempt/<id> preempts one. What lies in
DIRECTORY/nodes/<node>/, where that is there, is the disk of that node's containers. With
--namespaces the nodes are network namespaces of those names (root only), and --address is the
driver's own in the one it runs in.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import sys
import threading
import time
from dataclasses import dataclass

from howdah import storage
from howdah.config.loader import load
from howdah.core.child import Child
from howdah.errors import ClusterError, HowdahError, render
from howdah.jobs import secret_file
from howdah.jobs.backend import AgentBackend, Container, DriverAddress, DriverBackend
from howdah.jobs.net.signing import new_key
from howdah.process import isolation

_TERM_SECONDS = 0.25
_SECRETS = "secrets.json"


@dataclass
class _Running:
    process: Child
    node: str
    reason: str | None = None


class StandInDriver(DriverBackend):
    """Its nodes are names; containers take turns."""

    def __init__(self, directory, config_path, args, secret_env):
        self.application, self.attempt, self.started = args.application, args.attempt, time.time()
        self._directory, self._config_path = os.path.abspath(directory), config_path
        self._args, self._nodes = args, args.nodes.split(",")
        self._lock = threading.Lock()
        self._count = self._started = 0
        self._running = {}
        self._key = new_key()
        self._driver_file = os.path.join(self._directory, "driver.json")
        with contextlib.suppress(FileNotFoundError):
            os.remove(self._driver_file)
        self._secret_names = frozenset(secret_env)
        os.makedirs(self._directory, exist_ok=True)
        _write_private(os.path.join(self._directory, _SECRETS), secret_env)

    def listen_address(self):
        return self._args.address

    def session_key(self):
        return self._key

    def publish(self, driver):
        _write_private(self._driver_file, dataclasses.asdict(driver))

    def containers(self):
        folder = os.path.join(self._directory, "preempt")
        with self._lock:
            for name in os.listdir(folder) if os.path.isdir(folder) else []:
                self._end(name, "preempted")
                os.remove(os.path.join(folder, name))
            self._fill()
            containers = []
            for name, one in self._running.items():
                code = one.process.code
                if code is None:
                    containers.append(Container(name, one.node, "running"))
                else:
                    reason = one.reason or ("failed" if code else None)
                    containers.append(Container(name, one.node, "ended", code, reason))
            live = sum(one.state == "running" for one in containers)
            missing = range(max(0, self._count - live))
            return containers + [Container(f"asked-{n}", "", "requested") for n in missing]

    def keep(self, count):
        with self._lock:
            self._count = count
            self._fill()

    def release(self, container):
        with self._lock:
            self._end(container, "killed")

    def progress(self, fraction):
        pass

    def add_page(self, url):
        return None

    def finish(self, status, diagnostics):
        self.end_all()
        verdict = {"status": status, "diagnostics": diagnostics}
        path = os.path.join(self._directory, "finish.json")
        storage.write_whole(path, json.dumps(verdict).encode())

    def end_all(self):
        """End every container."""
        with self._lock:
            self._count = 0
            for name in self._running:
                self._end(name, "killed")

    def _capacity(self):
        try:
            with open(os.path.join(self._directory, "capacity"), encoding="ascii") as file:
                return int(file.read())
        except (FileNotFoundError, ValueError):
            return sys.maxsize

    def _fill(self):
        live = sum(one.process.alive for one in self._running.values())
        for _ in range(min(self._count, self._capacity()) - live):
            self._start()

    def _start(self):
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
            "tests.runs.jobs.stand_in_cluster", "agent", self._directory, self._config_path,
            "--container", name, "--nodes", node,
        )  # fmt: skip
        if self._args.namespaces:
            argv = ["ip", "netns", "exec", node, *argv]  # becomes the agent: no process between
        log = os.path.join(home, "agent.log")
        process = Child(argv, cwd=home, env=env, output=log, grace=_TERM_SECONDS, death_signal=None)
        self._running[name] = _Running(process, node)

    def _end(self, name, reason):
        one = self._running.get(name)
        if one is not None and one.process.alive:
            one.reason = one.reason or reason
            one.process.end(group=True)


def _write_private(path, value):
    """A JSON file for this user alone, whole or not at all."""
    part = path + ".part"
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(value, file)
    os.replace(part, path)


class StandInAgent(AgentBackend):
    """The backend of an agent that StandInDriver has started."""

    def __init__(self, directory, container, node):
        self.container_id, self.node = container, node
        self._driver_file = os.path.join(directory, "driver.json")
        self._secrets = os.path.join(directory, _SECRETS)

    def secret_env(self):
        with open(self._secrets, encoding="utf-8") as file:
            return json.load(file)

    def find_driver(self, timeout):
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            try:
                with open(self._driver_file, encoding="ascii") as file:
                    return DriverAddress(**json.load(file))
            except FileNotFoundError:
                time.sleep(0.1)
        raise ClusterError(
            "the job's driver has not published its address", where=self._driver_file
        )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=("driver", "agent"))
    parser.add_argument("directory")
    parser.add_argument("config")
    parser.add_argument("--application", default=f"local-{os.getpid()}")
    parser.add_argument("--nodes", default="localhost")
    parser.add_argument("--address", default="127.0.0.1")
    parser.add_argument("--namespaces", action="store_true")
    parser.add_argument("--attempt", type=int, default=1)
    parser.add_argument("--container")
    args = parser.parse_args()
    path = os.path.abspath(args.config)
    try:
        config = load(path, [])
        storage.configure(retry_seconds=config.run.storage_retry_seconds, mode=config.most_open)
        storage.be_patient()
        if args.role == "agent":
            from howdah.jobs.agent.agent import run

            return run(config, path, StandInAgent(args.directory, args.container, args.nodes))
        secret_env = secret_file.values(config, os.environ)
    except HowdahError as error:
        print(render(error), file=sys.stderr, flush=True)
        return error.exit_code
    from howdah.jobs.driver.driver import run

    backend = StandInDriver(args.directory, path, args, secret_env)
    try:
        return run(config, path, backend)
    finally:
        backend.end_all()


if __name__ == "__main__":
    sys.exit(main())
