"""Ranks in network namespaces, and a network between them that eats what they send."""

import json
import os
import subprocess
import uuid

import pytest

from tests.fixtures.dataset import build_dataset
from tests.runs import fault_table
from tests.runs.jobs.local_jobs import LocalJob
from tests.runs.training_runs import NO_DROPOUT, ROOT, SETTINGS, _nested
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.mpi,
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


full = pytest.mark.full


@full
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_packets_dropped_between_ranks(hosts, tmp_path, tiny_model_dir, framework):
    hub, (driver, a, b) = hosts
    build_dataset(str(tmp_path / "data"), model_dir=tiny_model_dir, rows={"train": 240})
    values = SETTINGS | NO_DROPOUT | {
        "data.dataset": str(tmp_path / "data"), "model.base": tiny_model_dir,
        "training.framework": framework, "training.max_steps": 10**6,
        "training.num_train_epochs": 10**6, "evaluation.splits": [],
    }  # fmt: skip
    job_keys = {"min_workers": 1, "max_workers": 2, "commit_every": 5, "hang_seconds": 10,
            "network_interface": "ranks"}  # fmt: skip
    with LocalJob(
        tmp_path / "job", light=False, nodes=f"{a},{b}", env={"CUDA_VISIBLE_DEVICES": ""},
        prefix=("ip", "netns", "exec", driver), job=job_keys,
        extra=("--namespaces", "--address", "10.77.0.1"), **_nested(values),
    ) as job:  # fmt: skip
        status = job.trains(2, seconds=150)
        ip("-n", hub, "link", "set", f"r{b}", "nomaster")
        # Gloo gives up before `hang_seconds`: both ranks leave, and neither was lost.
        cause = ("between them drops data", "cannot reach each other")
        job.wait(
            lambda s: any(words in e["what"] for e in s["events"] for words in cause),
            "the cause",
            90,
        )
        ip("-n", hub, "link", "set", f"r{b}", "master", "ranks")
        job.trains(2, status["generation"], 150)
        assert any("the state of step" in event for event in job.events())
    wait_until(lambda: not job.processes())


WHERE = {
    "short step": "steps of 15 s", "step": "steps of 30 s", "evaluate": "in an evaluation of 120 s",
    "change": "in a change of worlds, steps of 30 s", "join": "while a world is being formed",
    "leave": "while a world is being left",
}  # fmt: skip


def times(job, word):
    """Times of the events with a word, in Unix seconds."""
    return [event["time"] for event in job.status["events"] if word in event["what"]]


@full  # in every run a rank that stops without a word: test_phases.py
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("framework", "survivors", "during"),
    [
        ("torch", 2, "short step"),
        ("torch", 2, "step"), ("tensorflow", 2, "step"),
        ("torch", 8, "step"), ("tensorflow", 8, "step"),
        ("torch", 2, "evaluate"), ("tensorflow", 2, "evaluate"),
        ("torch", 2, "change"), ("tensorflow", 2, "change"),
        ("torch", 2, "join"), ("tensorflow", 2, "join"),
        ("torch", 2, "leave"), ("tensorflow", 2, "leave"),
    ],
)  # fmt: skip
def test_a_host_vanishes_without_a_word(
    hosts, tmp_path, tiny_model_dir, framework, survivors, during
):
    """All packets to and from it are dropped; steps take 30 s (15 by default), and Gloo by itself
    waits three minutes for a peer. The survivors go on from memory within 60 s of the loss being
    known: when the step under way is computed, and the sockets to the others have been shut."""
    hub, (driver, a, b) = hosts
    rows = {"train": 480, "validation": 600}
    build_dataset(str(tmp_path / "data"), model_dir=tiny_model_dir, rows=rows)
    values = SETTINGS | NO_DROPOUT | {
        "data.dataset": str(tmp_path / "data"), "model.base": tiny_model_dir,
        "training.framework": framework, "training.max_steps": 10**6,
        "training.num_train_epochs": 10**6, "evaluation.splits": [],
        "training.per_device_max_tokens": 4096,
        "evaluation.every_steps": 1 if during == "evaluate" else 10**6,
    }  # fmt: skip
    seconds = 15.0 if during == "short step" else 30.0
    slow = {
        "join": {"join": 40.0}, "evaluate": {"evaluate": 4 * seconds},
        "leave": {"step": 1.0, "leave": 400.0},
    }.get(during, {"step": seconds})  # fmt: skip
    path = os.pathsep.join([os.path.join(ROOT, "tests", "workers", "slow"), str(ROOT)])
    env = {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": path, "SLOW": json.dumps(slow),
           "STRUCK": str(tmp_path)}  # fmt: skip
    job_keys = {"workers": survivors + 1, "min_workers": 1, "max_workers": survivors + 2,
            "commit_every": 1, "hang_seconds": 180, "max_restarts": 3,
            "gloo_timeout_seconds": 180, "contact_seconds": 15,
            "network_interface": "ranks"}  # fmt: skip
    with LocalJob(
        tmp_path / "job", light=False, nodes=",".join([a] * survivors + [b]), env=env,
        prefix=("ip", "netns", "exec", driver), job=job_keys,
        extra=("--namespaces", "--address", "10.77.0.1"), **_nested(values),
    ) as job:  # fmt: skip
        if during == "join":
            status = job.wait(
                lambda s: any(e["what"].startswith("generation 1") for e in s["events"]),
                "a world that forms", 300,
            )  # fmt: skip
        elif during == "evaluate":
            status = job.wait(
                lambda s: sum("evaluating" in r["doing"] for r in s["ranks"]) == survivors + 1,
                "an evaluation", 400,
            )  # fmt: skip
        else:
            status = job.trains(survivors + 1, seconds=400)
        pids = {r["pid"] for r in status["ranks"] if r["node"] == a}
        assert len(pids) == survivors
        if during == "change":
            job.ask(type="scale", workers=survivors)
            job.wait(lambda s: s["state"] == "resizing", "a change", 60)
        if during == "leave":
            job.ask(type="scale", workers=survivors)
            job.wait(
                lambda _: len(list(tmp_path.glob("leaving.*"))) == survivors + 1,
                "ranks that have agreed to leave", 120,
            )  # fmt: skip
        for bridge in "mr":
            ip("-n", hub, "link", "set", f"{bridge}{b}", "nomaster")
        (tmp_path / "leave").touch()  # hvd.shutdown() asks the other ranks, one of which is gone
        # The driver hears nothing of the agent for contact_seconds.
        job.wait(lambda s: any(" was lost: " in e["what"] for e in s["events"]), "a loss", 120)
        status = job.wait(
            lambda s: any(e["what"].startswith("generation 2") for e in s["events"]),
            "the next world", 120,
        )  # fmt: skip
        lost_at = times(job, " was lost: ")[0]
        again = next(e for e in status["events"] if e["what"].startswith("generation 2"))
        print(f"{framework}, {survivors} survivors, {during}: {again['time'] - lost_at:.1f} s")
        assert again["time"] - lost_at < 120  # twice the 60 s: Gloo alone would take longer
        step = status["step"] or 0  # a new worker may have come in time: a world of any size
        job.wait(lambda s: (s["step"] or 0) > step, "a step after the loss", 400)
        fault = f"host lost, {WHERE[during]}, {survivors} survivors"
        state = "memory" if during != "join" else "the base model"
        fault_table.add_local(framework, fault, again["time"] - lost_at, state)
        if during != "join":  # where the first world never began nothing is in memory
            assert f"which {survivors} of them have in memory" in again["what"]
        job.wait(lambda s: s["restarts"] == 1, "the loss to be counted", 120)
        status = job.status
        assert pids <= {r["pid"] for r in status["ranks"] if r["rank"] is not None}
        assert not [e for e in status["events"] if "killed by Howdah" in e["what"]]
    wait_until(lambda: not job.processes())
