"""300 strangers at a driver's port while its agents work."""

import asyncio
import json
import threading

import pytest

from howdah.jobs.net import wire
from tests.runs.jobs.local_jobs import LocalJob
from tests.runs.jobs.simulated_agents import DriverProcess, Swarm
from tests.support.jobs.strangers import Strangers, resident_bytes
from tests.support.waiting import wait_until

AGENTS = 40
MIB = 2**20


@pytest.fixture
def driver(tmp_path):
    with DriverProcess(tmp_path, AGENTS, AGENTS) as process:
        yield process


@pytest.fixture
def swarm(driver):
    """Simulated agents, in a thread of their own; each has a world."""
    one = Swarm(driver.address, AGENTS, nodes=AGENTS)
    loop = asyncio.new_event_loop()
    task = loop.create_task(one.run())

    def run():
        try:
            loop.run_until_complete(task)
        except asyncio.CancelledError:
            pass

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: len(one.worlds) == AGENTS or task.done(), 120)
    one.task = task
    yield one
    loop.call_soon_threadsafe(task.cancel)
    thread.join()
    loop.close()


@pytest.mark.full  # a job among strangers is in every run
def test_strangers_cost_a_driver_no_memory_and_no_agent(driver, swarm):
    address = driver.address
    before, most, cpu = resident_bytes(driver.process.pid), 0, driver.cpu_seconds()
    with Strangers(address.port) as strangers:
        reports = len(swarm.waits)

        def go_on():
            nonlocal most
            most = max(most, resident_bytes(driver.process.pid))
            assert not swarm.task.done()
            return len(swarm.waits) >= reports + 12 * AGENTS and strangers.connections > 1500

        wait_until(go_on, 120)
        # One that comes now is heard as well.
        late = wire.Client(address.address, address.port, address.key)
        facts = {"agent": "late", "node": "n", "facts": {}}
        assert late.call("/register", facts, 30)["welcome"] is False
        late.close()
        cpu = driver.cpu_seconds() - cpu
    assert most - before < 30 * MIB
    assert swarm.refused == swarm.dismissed == 0
    path = driver.directory / "run" / "job" / "status.json"
    status = wait_until(lambda: path.exists() and json.loads(path.read_text()))
    assert not [event for event in status["events"] if "lost" in event["what"]]
    assert len(status["ranks"]) == AGENTS
    lines = [line for line in driver.log.read_text().splitlines() if "127.0.0.1" in line]
    assert 1 <= len(lines) <= 5
    print(f"{strangers.connections} connections, {(most - before) / MIB:.1f} MiB, {cpu:.1f} s CPU")


def test_a_job_that_begins_among_strangers_runs_to_its_end(tmp_path):
    """Real agents and light training processes: they register after the strangers have come."""
    with LocalJob(
        tmp_path, nodes="a,b", env={"STEP_SECONDS": "0.1"}, training={"max_steps": 40},
        job={"workers": 2, "min_workers": 2, "max_workers": 2, "commit_every": 5},
    ) as one:  # fmt: skip
        place = one.job / "driver.json"
        wait_until(place.exists)
        with Strangers(int(json.loads(place.read_text())["port"])):
            one.trains(2)
            code, verdict, status = one.end()
        assert (code, verdict["status"], status["step"]) == (0, "SUCCEEDED", 40)
        assert (status["restarts"], status["generation"]) == (0, 1)
        assert not [event for event in one.events() if " was lost" in event]
