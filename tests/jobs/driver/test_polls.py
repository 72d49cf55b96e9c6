"""What wakes the threads in which a driver holds its agents' polls."""

import collections
import signal
import threading

import pytest

from howdah.config.model import Config
from howdah.jobs.driver import driver
from tests.runs.jobs.simulated_agents import DriverProcess, NoCluster, Swarm
from tests.support.waiting import wait_until

AGENTS = 40


@pytest.fixture
def one(tmp_path, monkeypatch):
    """A driver that takes its agents' requests, and counts how often it looks into a mailbox."""
    looks = collections.Counter()
    real = driver._Mailbox.after

    def counted(self, have):
        looks[id(self)] += 1
        return real(self, have)

    monkeypatch.setattr(driver._Mailbox, "after", counted)
    config = Config.model_validate(
        {
            "run": {"directory": str(tmp_path / "run")},
            "training": {"global_batch_size": AGENTS},
            "job": {"workers": AGENTS},
        }
    )
    kept = {number: signal.getsignal(number) for number in
            (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}  # fmt: skip
    made = driver._Driver(config, NoCluster(str(tmp_path), AGENTS, AGENTS))
    made.looks = looks
    yield made
    made._server.stop()
    for number, handler in kept.items():
        signal.signal(number, handler)


def test_an_event_of_one_agent_does_not_wake_the_polls_of_the_others(one):
    names = [f"agent-{number}" for number in range(AGENTS)]
    have = {}
    for name in names:
        one._register({"agent": name, "node": name, "facts": {}})
        answer = one._poll({"agent": name, "have": 0, "wait": 0})
        have[name] = answer["orders"][-1][0]
    begun, answers = dict(one.looks), {}

    def poll(name):
        answers[name] = one._poll({"agent": name, "have": have[name], "wait": 5.0})

    threads = {name: threading.Thread(target=poll, args=(name,), daemon=True) for name in names}
    for thread in threads.values():
        thread.start()
    boxes = [id(one._mail[name]) for name in names]
    # Once before it waits, and once as it begins to.
    wait_until(lambda: all(one.looks[box] >= begun[box] + 2 for box in boxes))
    with one._lock:  # all of them wait: each held the lock until then
        before = dict(one.looks)
    for number in range(20):
        event = {"type": "commit", "process": 1, "step": number}
        one._report({"agent": names[0], "state": {}, "events": [[number + 1, event]]})
    with one._lock:
        one._send(names[1], {"type": "change"})
    threads[names[1]].join(30)
    assert answers[names[1]]["orders"][0][1] == {"type": "change"}
    with one._lock:
        assert all(one.looks[box] == before[box] for box in boxes[2:])
    with one._lock:
        for name in names:
            one._send(name, {"type": "change"})
    for thread in threads.values():
        thread.join(30)


@pytest.mark.parametrize("agents", [60, pytest.param(512, marks=pytest.mark.full)])
def test_a_driver_serves_simulated_agents_until_they_have_a_world(tmp_path, agents):
    import asyncio

    nodes = agents // 2
    with DriverProcess(tmp_path, agents, nodes) as process:
        swarm = Swarm(process.address, agents, nodes=nodes, poll_seconds=5.0)

        async def until_all_are_placed():
            task = asyncio.ensure_future(swarm.run())
            while len(swarm.worlds) < agents and not task.done():
                await asyncio.sleep(0.05)
            task.cancel()

        asyncio.run(asyncio.wait_for(until_all_are_placed(), 120))
        assert swarm.registered == agents
        slots = [order["slot"] for order in swarm.worlds.values()]
        assert sorted(slot["rank"] for slot in slots) == list(range(agents))
        assert {slot["local_size"] for slot in slots} == {2}
        assert swarm.refused == 0
