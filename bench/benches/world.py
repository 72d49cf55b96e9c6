"""A large job's driver: what a world costs it, and what agents that poll and report cost it.

The driver is a real one in a process of its own. Its agents are simulated
(tests/runs/jobs/simulated_agents.py): one thread polls and reports for all of them; for the world,
each rank is a thread that makes every request of Gloo's clients and answers them as an agent's
relay does (jobs/net/meshes.py), with a signed connection of its own to the driver. One rank's
requests go through a real relay by HTTP; for the others loopback, which costs the driver nothing,
is left out.
`BENCH_RANKS` (512) and `BENCH_AGENTS` (2000) set the sizes.

Bar: a world of 512 ranks takes less than 30 s of the driver's core.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path

from bench import harness
from howdah.jobs.backend import DriverAddress
from howdah.jobs.net import wire
from howdah.jobs.net.meshes import Meshes
from howdah.jobs.net.relay import Relay
from tests.runs.jobs.simulated_agents import DriverProcess, Swarm, by_http, connect
from tests.support.waiting import wait_until

_MESHES = ("global", "cross_0", "global_process_set_hash_1f", "cross_0_process_set_hash_1f")
_RANKS = int(os.environ.get("BENCH_RANKS", "512"))
_AGENTS = int(os.environ.get("BENCH_AGENTS", "2000"))
_STEADY_SECONDS = 30.0


class _Rank(threading.Thread):
    """One rank and the relay of its agent; `loopback`: over HTTP, as it is in a job."""

    def __init__(
        self, number: int, to: DriverAddress, barriers: dict[str, threading.Barrier], mesh: str,
        *, generation: int, loopback: bool,
    ) -> None:  # fmt: skip
        super().__init__(daemon=True)
        self._number, self._barriers, self._size = number, barriers, _RANKS
        client = wire.Client(to.address, to.port, to.key)
        self.driver_requests = 0
        self.requests = 0
        self.seconds = 0.0
        self._relay: Relay | None = None

        def request(method: str, path: str, body: bytes) -> tuple[int, bytes]:
            self.driver_requests += 1
            return client.request(method, path, body, 60.0)

        meshes = Meshes(lambda: (generation, mesh), request)
        self._ask = meshes.answer
        if loopback:
            self._relay = Relay(client, None, assignment=lambda: (generation, mesh), refused=print)
            self._relay.start()
            self._ask = by_http(self._relay.port)

    def run(self) -> None:
        begun = time.perf_counter()
        for scope in _MESHES:
            self.requests += connect(
                self._ask, scope, self._number, self._size, barrier=self._barriers[scope].wait
            )
        self.seconds = time.perf_counter() - begun
        if self._relay is not None:
            self._relay.stop()


def _swarm(driver: DriverProcess, count: int) -> Swarm:
    swarm = Swarm(driver.address, count, nodes=count)

    def run() -> None:
        with contextlib.suppress(OSError, EOFError):  # the driver is killed when all is measured
            asyncio.run(swarm.run())

    threading.Thread(target=run, daemon=True).start()
    return swarm


def _world() -> dict:
    """A world of `_RANKS`, each on a node of its own, while their agents poll and report."""
    with (
        tempfile.TemporaryDirectory() as directory,
        DriverProcess(Path(directory), _RANKS, _RANKS) as driver,
    ):
        begun = time.perf_counter()
        swarm = _swarm(driver, _RANKS)
        wait_until(lambda: len(swarm.worlds) == _RANKS, 300)
        formed, formed_cpu = time.perf_counter() - begun, driver.cpu_seconds()
        barriers = {scope: threading.Barrier(_RANKS) for scope in _MESHES}
        slots = {number: order["slot"] for number, order in swarm.worlds.items()}
        generation = swarm.worlds[0]["generation"]
        names = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
        ranks = [
            _Rank(
                slot["rank"], driver.address, barriers, ",".join(str(slot[n]) for n in names),
                generation=generation, loopback=slot["rank"] == _RANKS - 1,
            )
            for slot in slots.values()
        ]  # fmt: skip
        begun = time.perf_counter()
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        seconds = time.perf_counter() - begun
        cpu = driver.cpu_seconds()
        (far,) = (rank for rank in ranks if rank._number == _RANKS - 1)
        return {
            "ranks": _RANKS,
            "formed_seconds": formed,
            "formed_driver_cpu_seconds": formed_cpu,
            "rendezvous_seconds": seconds,
            "rendezvous_driver_cpu_seconds": cpu - formed_cpu,
            "driver_cpu_seconds": cpu,
            "gloo_requests": sum(rank.requests for rank in ranks),
            "driver_requests": sum(rank.driver_requests for rank in ranks),
            "loopback_requests": far.requests,
            "refused": swarm.refused,
        }


def _steady() -> dict:
    """`_AGENTS` agents that poll and report; every one has a world."""
    with (
        tempfile.TemporaryDirectory() as directory,
        DriverProcess(Path(directory), _AGENTS, _AGENTS) as driver,
    ):
        begun = time.perf_counter()
        swarm = _swarm(driver, _AGENTS)
        wait_until(lambda: len(swarm.worlds) == _AGENTS or swarm.refused, 300)
        formed, before = time.perf_counter() - begun, driver.cpu_seconds()
        swarm.waits.clear()
        begun = time.perf_counter()
        wait_until(lambda: time.perf_counter() - begun > _STEADY_SECONDS, 300)
        cpu = driver.cpu_seconds() - before
        waits = sorted(swarm.waits)
        return {
            "agents": _AGENTS,
            "formed_seconds": formed,
            "formed_driver_cpu_seconds": before,
            "driver_core": cpu / (time.perf_counter() - begun),
            "report_median_seconds": statistics.median(waits),
            "report_99_seconds": waits[int(len(waits) * 0.99)],
            "reports": len(waits),
            "refused": swarm.refused,
        }


def main() -> None:
    """Both, printed; results in bench/results/world.json."""
    figures = {"world": _world(), "steady": _steady()}
    for what, values in figures.items():
        print(f"\n{what}:")
        for name, value in values.items():
            print(f"  {name}: {value:,.3f}" if isinstance(value, float) else f"  {name}: {value:,}")
    harness.report("world", [], **figures)


if __name__ == "__main__":
    main()
