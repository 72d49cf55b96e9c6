"""One rank 0 at a time: one that is demoted, or fenced off by a later attempt, writes nothing.

Several `Run` objects in one process stand for processes of several machines; where real processes
matter (locks, signals, a training that goes on) they are real.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import numpy as np
import pytest

from howdah import storage
from howdah.config.loader import from_dict
from howdah.errors import CheckpointError
from howdah.models.runs.identity import Identity
from howdah.models.runs.metrics_log import read_metrics
from howdah.process.env import RankEnv
from howdah.training.checkpoint.fence import FencedOff
from howdah.training.checkpoint.state import TrainState
from howdah.training.comm.base import Waits
from howdah.training.elastic.heartbeat import Heartbeat
from howdah.training.run.mirror import Mirror
from howdah.training.run.run import Run
from tests import ROOT as REPOSITORY

ROOT = str(REPOSITORY)
IDENTITY = Identity(base_model="b", dataset="d", tokenizer="t", labels=("x",), plan="p")
STEP = {"lr": 1e-4, "grad_norm": 1.0, "rows": 8, "real_tokens": 100, "padded_tokens": 102}


@pytest.fixture(autouse=True)
def signals_as_they_were():
    """Runs that a test leaves open, as a lost process does, keep no signal from later tests."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    signal.set_wakeup_fd(-1)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def machines(tmp_path, monkeypatch):
    """Makes runs of one remote directory, each with a machine's local directory of its own."""
    directory = f"memory://{tmp_path.name}/run"

    def make(machine: str, *, linked: bool = False, **sections) -> Run:
        (tmp_path / machine).mkdir(exist_ok=True)
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / machine))
        sections = {"training": {"logging_steps": 1}, **sections}
        config = from_dict({"run": {"directory": directory}, **sections})
        heartbeat = Heartbeat(None, Waits()) if linked else None
        run = Run(config, RankEnv(), console=io.StringIO(), heartbeat=heartbeat)
        run.open()
        return run

    yield directory, make
    storage.remove(directory, recursive=True)


def take_steps(run: Run, upto: int, state: TrainState | None = None) -> TrainState:
    state = state or TrainState()
    run.begin(state, total_steps=20)
    while state.step < upto:
        state.step += 1
        run.step_done(state, loss=1.0 / state.step, **STEP)
    run.end_steps()
    return state


def everything(directory: str) -> dict[str, bytes]:
    """Every file of a run directory."""
    contents = {}
    for entry in storage.list_dir(directory):
        if entry.is_dir:
            contents |= everything(entry.path)
        else:
            contents[entry.path] = storage.read_bytes(entry.path)
    return contents


def finish(run: Run, state: TrainState) -> None:
    run.finish(state, {"test": {"accuracy": 0.93}})
    run.close("finished")


# ------------------------------------------------------------------------- fenced off
@pytest.mark.parametrize("way", ["it leaves", "it finishes", "it takes a step"])
def test_an_attempt_that_wakes_up_after_its_successor_changes_nothing(machines, way):
    directory, make = machines
    first = make("one")
    state = take_steps(first, 2)
    first._mirror.publish()
    second = make("two")
    finish(second, take_steps(second, 6))
    before = everything(directory)
    assert storage.read_json(f"{directory}/run.json")["status"] == "finished"
    if way == "it takes a step":
        take_steps(first, 4, state)
        first._mirror.publish()  # as every ten seconds
        assert "no longer published" in first._console.getvalue()
    for _ in range(2):  # the way out closes once more
        with pytest.raises(FencedOff):
            if way == "it finishes":
                finish(first, state)
            else:
                first.close("failed", CheckpointError("a later attempt has taken over"))
    assert everything(directory) == before
    run = storage.read_json(f"{directory}/run.json")
    assert [one["attempt"] for one in run["attempts"]] == [1, 2]
    assert run["metrics"]["test"]["accuracy"] == 0.93
    assert [line["step"] for line in read_metrics(directory)] == [1, 2, 3, 4, 5, 6]


def test_a_fenced_off_mirror_sends_nothing_and_says_so_once(tmp_path):
    remote, lines = f"memory://{tmp_path.name}/mirror", []
    (tmp_path / "a").write_text("one")
    mirror = Mirror(seconds=3600, say=lines.append)
    checks = []

    def check():
        checks.append(True)
        if len(checks) > 1:
            raise FencedOff("a later attempt has taken over")

    mirror.check = check
    mirror.add(str(tmp_path / "a"), f"{remote}/a")
    mirror.publish()
    mirror.publish()  # nothing has changed: nothing is asked
    assert len(checks) == 1
    (tmp_path / "a").write_text("two!")
    mirror.publish()
    mirror.publish()
    assert len(checks) == 2 and len(lines) == 1
    mirror.close()
    assert storage.read_text(f"{remote}/a") == "one"
    storage.remove(remote, recursive=True)


# ------------------------------------------------------------------------- demoted
def test_a_rank_0_that_hears_of_its_successor_before_it_is_demoted_goes_on(machines, tmp_path):
    """The new rank 0 is faster to open the directory than the old one to let go of it."""
    directory, make = machines
    output = tmp_path / "output"
    output.write_text("a line\n")
    os.environ["HOWDAH_LOG"] = str(output)
    old, new = make("one", linked=True), make("two", linked=True)
    old.enter(RankEnv(0, 2), 1)
    old.share(SimpleNamespace(broadcast_json=lambda shared: shared, backend="none"))
    take_steps(old, 3)
    new.enter(RankEnv(0, 2), 2)
    old._mirror.publish()  # at this very moment
    assert not storage.exists(f"{directory}/logs/rank.0")
    old.enter(RankEnv(1, 2), 2)
    take_steps(old, 6, TrainState(step=3))
    old._mirror.publish()
    assert storage.read_text(f"{directory}/logs/rank.0") == "a line\n"
    old.close("finished")
    finish(new, take_steps(new, 6, TrainState(step=3)))


@pytest.mark.parametrize("same_machine", [True, False])
def test_a_demoted_rank_0_lets_go_of_the_run_directory(machines, same_machine):
    directory, make = machines
    old = make("one", linked=True)
    old.enter(RankEnv(0, 2), 1)
    take_steps(old, 3)
    tensors = {"model/x": np.zeros(3, np.float32)}
    old.checkpoints.save(3, tensors, old.meta(TrainState(step=3, plan={"step": 0})),
                         identity=IDENTITY, wait=True)  # fmt: skip
    new = make("one" if same_machine else "two", linked=True)

    old.enter(RankEnv(1, 2), 2)  # the second world has another rank 0
    assert old.checkpoints is None and not old.is_main
    new.enter(RankEnv(0, 2), 2)
    state = take_steps(new, 6, TrainState(step=3))
    take_steps(old, 6, TrainState(step=3))  # every rank counts, and remembers its lines
    shown = len(old._console.getvalue())
    old.say("as on every rank other than 0")
    old._mirror.publish()
    finish(new, state)
    before = everything(directory)
    old.close("finished")
    assert everything(directory) == before
    assert len(old._console.getvalue()) == shown
    run = storage.read_json(f"{directory}/run.json")
    assert (run["status"], [one["attempt"] for one in run["attempts"]]) == ("finished", [1, 2])
    lines = read_metrics(directory)
    assert [line["step"] for line in lines][-3:] == [4, 5, 6]


def test_one_that_becomes_rank_0_again_has_a_later_fence_and_writes_what_is_missing(machines):
    directory, make = machines
    one, two = make("one", linked=True), make("two", linked=True)
    one.enter(RankEnv(0, 2), 1)
    take_steps(one, 2)
    one.enter(RankEnv(1, 2), 2)
    two.enter(RankEnv(0, 2), 2)
    assert one.owned is None
    for run in (one, two):
        take_steps(run, 4, TrainState(step=2))
    one.enter(RankEnv(0, 1), 3)  # the other was lost, with lines that it had not published
    assert one.attempt == 3
    finish(one, take_steps(one, 6, TrainState(step=4)))
    assert [line["step"] for line in read_metrics(directory)][-4:] == [3, 4, 5, 6]


_RANK = textwrap.dedent(
    """
    import json, os, sys
    sys.path.insert(0, {root!r})
    from howdah.config.loader import from_dict
    from howdah.training.comm.base import Waits
    from howdah.process.env import RankEnv
    from howdah.training.elastic.heartbeat import Heartbeat
    from howdah.training.run.run import Run
    from howdah.training.checkpoint.state import TrainState
    from tests.training.run.test_possession import take_steps

    every = {{"logging_steps": 1}}
    config = from_dict({{"run": {{"directory": {directory!r}}}, "training": every}})
    run = Run(config, RankEnv(), console=sys.stderr, heartbeat=Heartbeat(None, Waits()))
    run.open()
    for line in sys.stdin:
        order = json.loads(line)
        if "world" in order:
            run.enter(RankEnv(order["rank"], 2), order["world"])
        elif "upto" in order:
            state = take_steps(run, order["upto"], TrainState(step=order["after"]))
        else:
            run.finish(state, {{}})
            run.close("finished")
        print("done", flush=True)
    """
)


class Rank:
    """A process with a `Run` that takes orders on stdin."""

    def __init__(self, directory: str) -> None:
        words = [sys.executable, "-c", _RANK.format(root=ROOT, directory=directory)]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def order(self, **order) -> None:
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def done(self) -> None:
        assert self.process.stdout.readline() == "done\n"


def test_two_real_processes_change_places_on_one_machine(tmp_path):
    directory = str(tmp_path / "run")
    a, b = Rank(directory), Rank(directory)
    try:
        a.order(rank=0, world=1)
        a.done()
        a.order(upto=3, after=0)
        a.done()
        b.order(rank=0, world=2)  # waits for the lock, which the other one still has
        a.order(rank=1, world=2)
        a.done()
        b.done()
        for one in (a, b):
            one.order(upto=5, after=3)
            one.done()
        b.order(end=True)
        b.done()
        a.order(end=True)
        a.done()
    finally:
        for one in (a, b):
            one.process.kill()
            one.process.wait()
    run = storage.read_json(os.path.join(directory, "run.json"))
    assert (run["status"], [one["attempt"] for one in run["attempts"]]) == ("finished", [1, 2])
    assert [(line["step"], line["attempt"]) for line in read_metrics(directory)] == [
        (1, 1), (2, 1), (3, 1), (4, 2), (5, 2),
    ]  # fmt: skip
