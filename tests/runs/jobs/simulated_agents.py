"""Agents of a large job without their processes: what they and Gloo's clients ask of a driver.

The driver is a real one, in a process of its own:
`python -m tests.runs.jobs.simulated_agents DIRECTORY AGENTS NODES`. Its agents are coroutines of
one thread (`Swarm`); ranks that connect are threads (`connect`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import http.client
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from howdah.jobs.backend import Container, DriverAddress, DriverBackend
from howdah.jobs.driver import driver
from howdah.jobs.net import signing
from tests import ROOT
from tests.support.waiting import wait_until

ADDRESS_BYTES = 136
"""Of Gloo's tcp::Address: a sockaddr_storage and a sequence number."""
Ask = Callable[[str, str, str, bytes], tuple[int, bytes]]
"""(method, scope, key, body) -> (status, body)."""


# ------------------------------------------------------------------------------- Gloo's clients
def address(scope: str, rank: int, peer: int) -> bytes:
    """What a rank leaves for a peer: never the same for two of them."""
    return f"{scope} {rank} for {peer}".encode().ljust(ADDRESS_BYTES, b".")


def connect(ask: Ask, scope: str, rank: int, size: int, *, barrier: Callable[[], object]) -> int:
    """The requests of one rank for one mesh, as Gloo's http store makes them; their number.

    Source: gloo/rendezvous/context.cc (connectFullMesh), horovod/common/gloo/http_store.cc.

    Args:
        ask: the store.
        barrier: comes back when all ranks have connected.
    Raises:
        AssertionError: a peer's value has another address for this rank.
    """
    requests = 0

    def request(method: str, key: str, body: bytes = b"") -> tuple[int, bytes]:
        nonlocal requests
        requests += 1
        status, answer = ask(method, scope, key, body)
        assert status in (200, 404), (status, scope, key)
        return status, answer

    request("PUT", f"rank_{rank}", f"host-{rank}".encode())
    for peer in range(rank):
        request("GET", f"rank_{peer}")
    others = [peer for peer in range(size) if peer != rank]
    request("PUT", str(rank), b"".join(address(scope, rank, peer) for peer in others))
    for peer in others:
        while request("GET", str(peer))[0] != 200:
            time.sleep(0.01)
        _, value = request("GET", str(peer))
        at = (rank if rank < peer else rank - 1) * ADDRESS_BYTES
        assert len(value) == (size - 1) * ADDRESS_BYTES
        assert value[at : at + ADDRESS_BYTES] == address(scope, peer, rank)
    barrier()
    request("DELETE", str(rank))
    return requests


def by_http(port: int) -> Ask:
    """A store behind an agent's relay, asked as Gloo does: a connection for each request."""

    def ask(method: str, scope: str, key: str, body: bytes) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request(method, f"/{scope}/{key}", body)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    return ask


# -------------------------------------------------------------------------------------- agents
@dataclass
class Swarm:
    """Agents that poll and report as real ones do, without processes.

    Their training processes say at once that they are ready; `worlds` holds the newest place that
    each agent has been given.
    """

    driver: DriverAddress
    count: int
    nodes: int
    poll_seconds: float = 2.0
    worlds: dict[int, dict[str, Any]] = field(default_factory=dict)
    registered: int = 0
    dismissed: int = 0
    refused: int = 0
    waits: list[float] = field(default_factory=list)
    """Seconds that each report has taken."""
    events: dict[int, list[Any]] = field(default_factory=dict)
    left: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Until every agent was ordered to leave, or this is cancelled."""
        await asyncio.gather(*(self._agent(number) for number in range(self.count)))

    def happened(self, number: int, event: dict[str, Any]) -> None:
        """An agent has an event to report; from the thread of the swarm."""
        events = self.events.setdefault(number, [])
        events.append([events[-1][0] + 1 if events else 1, event])

    async def _agent(self, number: int) -> None:
        name, node = f"agent-{number}", f"node-{number % self.nodes}"
        poll, report = _Line(self.driver), _Line(self.driver)
        await asyncio.sleep(number / self.count * 2)  # containers do not all come in one moment
        facts = {"agent": name, "node": node, "facts": {}}
        answer = await poll.call("/register", facts)
        assert answer["welcome"], name
        self.registered += 1
        await asyncio.gather(self._polls(number, name, poll), self._reports(number, name, report))

    async def _polls(self, number: int, name: str, line: _Line) -> None:
        have = 0
        while True:
            message = {"agent": name, "have": have, "wait": self.poll_seconds}
            answer = await line.call("/poll", message)
            if answer is None:
                self.refused += 1
                return
            for serial, order in answer["orders"]:
                have = max(have, serial)
                if order["type"] == "start":
                    process = order["process"]
                    self.happened(number, {"type": "started", "process": process, "pid": 1})
                    self.happened(number, {"type": "ready", "process": process})
                elif order["type"] == "world":
                    self.worlds[number] = order
                elif order["type"] == "leave":
                    self.dismissed += 1
                    await line.call("/poll", {"agent": name, "have": have, "wait": 0})
                    return

    async def _reports(self, number: int, name: str, line: _Line) -> None:
        beat, sent = 0, 0
        while not self.left.is_set():
            beat += 1
            world = self.worlds.get(number, {})
            state = {
                "process": 1,
                "beat": {"type": "beat", "phase": "wait", "phase_seconds": 0.1, "n": beat},
                "beat_age": 0.1,
                "kernel": {"state": "S", "cpu_seconds": float(beat), "resident_bytes": 2**30},
                "step": {"type": "step", "step": beat, "total_steps": 10**6, "loss": 0.5,
                         "step_seconds": 0.1, "wait_seconds": 0.1} if world else {},
            }  # fmt: skip
            batch = [one for one in self.events.get(number, []) if one[0] > sent]
            begun = time.perf_counter()
            answer = await line.call("/report", {"agent": name, "events": batch, "state": state})
            self.waits.append(time.perf_counter() - begun)
            if answer is None:
                self.refused += 1
                return
            sent = batch[-1][0] if batch else sent
            until = time.monotonic() + answer["again"]
            while time.monotonic() < until:  # an event is reported at once
                events = self.events.get(number)
                if events and events[-1][0] > sent:
                    break
                await asyncio.sleep(0.1)


class _Line:
    """A kept connection to the driver; every request is signed as jobs/net/wire.py wants it."""

    def __init__(self, to: DriverAddress) -> None:
        self._to, self._session, self._counter = to, secrets.token_hex(16), 0
        self._ends: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, path: str, message: Any) -> Any:
        """The answer; None where the driver does not know the agent (any more)."""
        if self._ends is None:
            self._ends = await asyncio.open_connection(self._to.address, self._to.port)
        reader, writer = self._ends
        body = json.dumps(message).encode()
        self._counter += 1
        headers = signing.request_headers(
            self._to.key, "POST", path, self._session, self._counter, body
        )
        lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}",
                 *(f"{name}: {value}" for name, value in headers.items()), "", ""]  # fmt: skip
        writer.write("\r\n".join(lines).encode() + body)
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        answer = await reader.readexactly(length)
        return json.loads(answer) if status == 200 else None


# ------------------------------------------------------------------------------------ a driver
class NoCluster(DriverBackend):
    """Containers that are there already; a file holds the driver's address."""

    application, attempt = "application_simulated", 1

    def __init__(self, directory: str, count: int, nodes: int) -> None:
        self._directory = directory
        self._containers = [
            Container(f"agent-{n}", f"node-{n % nodes}", "running") for n in range(count)
        ]

    def listen_address(self):
        return "127.0.0.1"

    def session_key(self):
        return "ab" * 32

    def publish(self, address):
        path = os.path.join(self._directory, "driver.json")
        Path(path + ".new").write_text(json.dumps(dataclasses.asdict(address)))
        os.rename(path + ".new", path)

    def containers(self):
        return self._containers

    def keep(self, count):
        pass

    def release(self, container):
        pass

    def progress(self, fraction):
        pass

    def add_page(self, url):
        return None

    def finish(self, status, diagnostics):
        Path(self._directory, "finish.json").write_text(json.dumps([status, diagnostics]))


class DriverProcess:
    """A real driver in a process of its own, for `count` agents on `nodes` nodes."""

    def __init__(self, directory: Path, count: int, nodes: int) -> None:
        self.directory = directory
        self.log = directory / "driver.log"
        words = [sys.executable, "-m", "tests.runs.jobs.simulated_agents",
                 str(directory), str(count), str(nodes)]  # fmt: skip
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=log, cwd=ROOT)
        path = directory / "driver.json"
        wait_until(lambda: path.exists() or self.process.poll() is not None)
        self.address = DriverAddress(**json.loads(path.read_text()))

    def cpu_seconds(self) -> float:
        """Processor time that the driver has used so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def __enter__(self) -> DriverProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def main(directory: str, count: str, nodes: str) -> int:
    """A driver's process."""
    from howdah.config.model import Config

    config = Config.model_validate(
        {
            "run": {"directory": os.path.join(directory, "run"), "name": "simulated"},
            "training": {"global_batch_size": int(count)},
            "yarn": {"python": sys.executable},
            "job": {"workers": int(count)},
        }
    )
    return driver.run(config, "", NoCluster(directory, int(count), int(nodes)))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
