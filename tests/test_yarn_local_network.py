"""Ranks in network namespaces, and a network between them that eats what they send."""

import os
import subprocess
import uuid

import pytest

from tests.fixtures_dataset import build_dataset
from tests.local_jobs import LocalJob
from tests.training_runs import NO_DROPOUT, SETTINGS, _nested
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.full,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make network namespaces"),
]


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture
def hosts():
    """Namespaces: a driver's and two nodes', joined by one bridge for the driver and one for ranks.

    The bridges lie in a namespace of their own: nothing of this machine's network is touched.
    """
    mark = uuid.uuid4().hex[:5]
    hub, names = f"hub{mark}", [f"{kind}{mark}" for kind in ("d", "a", "b")]
    made = []
    try:
        for name in (hub, *names):
            ip("netns", "add", name)
            made.append(name)
            ip("-n", name, "link", "set", "lo", "up")
        for bridge in ("manage", "ranks"):
            ip("-n", hub, "link", "add", bridge, "type", "bridge")
            ip("-n", hub, "link", "set", bridge, "up")
        for number, name in enumerate(names, 1):
            for bridge, net in (("manage", "10.77.0"), ("ranks", "10.78.0")):
                port = f"{bridge[0]}{name}"
                ip("-n", hub, "link", "add", port, "type", "veth", "peer", "name", bridge,
                   "netns", name)  # fmt: skip
                ip("-n", hub, "link", "set", port, "master", bridge, "up")
                ip("-n", name, "addr", "add", f"{net}.{number}/24", "dev", bridge)
                ip("-n", name, "link", "set", bridge, "up")
        yield hub, names
    finally:
        for name in made:
            ip("netns", "del", name)


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_packets_dropped_between_ranks(hosts, tmp_path, tiny_model_dir, framework):
    hub, (driver, a, b) = hosts
    build_dataset(str(tmp_path / "data"), model_dir=tiny_model_dir, rows={"train": 240})
    values = SETTINGS | NO_DROPOUT | {
        "data.dataset": str(tmp_path / "data"), "model.base": tiny_model_dir,
        "training.framework": framework, "training.max_steps": 10**6,
        "training.num_train_epochs": 10**6, "evaluation.splits": [],
    }  # fmt: skip
    yarn = {"min_workers": 1, "max_workers": 2, "commit_every": 5, "hang_seconds": 10,
            "gloo_timeout_seconds": 20, "network_interface": "ranks"}  # fmt: skip
    with LocalJob(
        tmp_path / "job", light=False, nodes=f"{a},{b}", env={"CUDA_VISIBLE_DEVICES": ""},
        prefix=("ip", "netns", "exec", driver), yarn=yarn,
        extra=("--namespaces", "--address", "10.77.0.1"), **_nested(values),
    ) as job:  # fmt: skip
        status = job.trains(2, seconds=150)
        ip("-n", hub, "link", "set", f"r{b}", "nomaster")
        job.wait(
            lambda s: any("does not arrive" in e["what"] for e in s["events"]), "the cause", 90
        )
        ip("-n", hub, "link", "set", f"r{b}", "master", "ranks")
        job.trains(2, status["generation"], 150)
        assert any("the state of step" in event for event in job.events())
    wait_until(lambda: not job.processes())
