"""The parts of elastic training, each by itself: memory, link, heartbeat, connections, metrics."""

from __future__ import annotations

import io
import json
import math
import os
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from howdah.errors import UsageError
from howdah.models.runs.metrics_log import MetricsLog, read_metrics
from howdah.training.checkpoint.elastic_state import ElasticState
from howdah.training.checkpoint.state import TrainState
from howdah.training.comm.base import Comm, Waits
from howdah.training.comm.connections import Connections
from howdah.training.elastic.control_channel import ChannelConsole, ControlChannel
from howdah.training.elastic.heartbeat import Heartbeat, Told
from howdah.training.run.metrics_logger import MetricsLogger
from tests.runs.jobs.local_jobs import ROOT

WAIT = 30  # seconds; detects a hang


# ----------------------------------------------------------------------------------- the memory
class Together(Comm):
    """Ranks that are threads of this process."""

    def __init__(self, rank: int, size: int, table: list, barrier: threading.Barrier) -> None:
        super().__init__()
        self.rank, self.size, self._table, self._barrier = rank, size, table, barrier
        self.broadcasts = 0

    def _all(self, value: np.ndarray) -> list:
        self._table[self.rank] = value
        self._barrier.wait(WAIT)
        values = list(self._table)
        self._barrier.wait(WAIT)
        return values

    def sum(self, values: np.ndarray) -> np.ndarray:
        return np.sum(self._all(values), axis=0)

    def gather(self, array: np.ndarray) -> np.ndarray:
        return np.concatenate(self._all(array))

    def _broadcast(self, array: np.ndarray, root: int) -> np.ndarray:
        self.broadcasts += 1
        return self._all(array)[root].copy()

    def reduce_gradients(self, *_):
        raise NotImplementedError

    begin_sum = begin_exchange = begin_gather = reduce_rows = reduce_gradients

    def shutdown(self) -> None: ...


def together(memories: list[ElasticState], world: int) -> list[tuple[int | None, int]]:
    """All meet in one world, and share what is remembered: (holder, broadcasts) of each."""
    size = len(memories)
    table, barrier = [None] * size, threading.Barrier(size)
    results: list = [None] * size

    def rank(number: int) -> None:
        comm = Together(number, size, table, barrier)
        memory = memories[number]
        memory.meet(comm, world)
        if memory.holder is not None:
            memory.share(comm)
        results[number] = (memory.holder, comm.broadcasts)

    threads = [threading.Thread(target=rank, args=(n,)) for n in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert None not in results
    return results


def remembering(step: int | None, value: float = 0.0) -> ElasticState:
    memory = ElasticState(every=5)
    memory.on = True
    if step is not None:
        memory.hold({"step": step}, {"model/x": np.full(3, value, np.float32)})
    return memory


def values(memories: list[ElasticState]) -> list[float]:
    return [float(memory.tensors["model/x"][0]) for memory in memories]


def test_a_world_without_state_in_memory_has_no_holder():
    memories = [remembering(None), remembering(None)]
    assert together(memories, 1) == [(None, 0), (None, 0)]


def test_every_rank_takes_the_newest_state():
    memories = [remembering(None), remembering(10, 1.0), remembering(15, 2.0), remembering(15, 2.0)]
    assert {holder for holder, _ in together(memories, 2)} == {2}
    assert values(memories) == [2.0] * 4
    assert {memory.step for memory in memories} == {15}


def test_survivors_of_one_world_send_nothing():
    memories = [remembering(15, 2.0), remembering(15, 2.0)]
    assert together(memories, 2) == [(0, 0), (0, 0)]


def test_states_of_one_step_from_different_worlds_are_made_one():
    first, second = remembering(15, 1.0), remembering(15, 2.0)
    together([second], 3)  # alone in a world of its own meanwhile
    assert all(sent for _, sent in together([first, second], 4))
    assert values([first, second]) == [1.0, 1.0]


def test_a_commit_takes_the_place_of_the_last_one():
    memory, commits = ElasticState(every=5, committed=lambda step: commits.append(step)), []
    memory.commit({"step": 5}, lambda: pytest.fail("not asked for in a static job"))
    assert memory.step is None and not memory.due(5)
    memory.on = True
    assert [step for step in range(1, 12) if memory.due(step)] == [5, 10]
    memory.commit({"step": 5, "due": True}, lambda: {"model/x": np.zeros(1)})
    memory.commit({"step": 5, "due": False}, lambda: pytest.fail("the same step is not copied"))
    comm = Together(0, 1, [None], threading.Barrier(1))
    memory.meet(comm, 2)
    assert memory.share(comm)[0] == {"step": 5, "due": False}
    assert commits == [5, 5]


# ------------------------------------------------------------------------------------- the link
@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    gone = threading.Event()
    yield ours, ControlChannel(theirs.detach(), gone.set)
    ours.close()


def test_orders_come_down_and_words_go_up(pair):
    ours, link = pair
    stops, losses = [], threading.Event()
    link.listen(on_stop=stops.append, on_loss=losses.set)
    orders = [
        {"type": "world", "generation": 1, "env": {"HOROVOD_RANK": 0}},
        {"type": "world", "generation": 2, "env": {"HOROVOD_RANK": 1, "HOROVOD_ELASTIC": "1"}},
        {"type": "of a later version"},
        {"type": "stop", "save": False},
        {"type": "change", "generation": 3, "lost": True},
    ]
    ours.sendall(b"".join(json.dumps(order).encode() + b"\n" for order in orders))
    assert losses.wait(WAIT)
    world = link.next_world()
    assert (world.generation, world.env["HOROVOD_RANK"], world.elastic) == (2, "1", True)
    assert stops == [False]
    assert link.change_pending
    console = ChannelConsole(link)
    print("one\ntwo", end="", file=console)
    print(" and a half", file=console, flush=True)
    link.send("finished")
    lines = ours.makefile()
    sent = [json.loads(lines.readline()) for _ in range(3)]
    assert sent == [
        {"type": "say", "line": "one"},
        {"type": "say", "line": "two and a half"},
        {"type": "finished"},
    ]


def test_a_process_ends_with_its_agent():
    ours, theirs = socket.socketpair()
    code = (
        "import time; from howdah.training.elastic.control_channel import ControlChannel; "
        "link = ControlChannel.of_environment();"
        "link.listen(on_stop=print, on_loss=print); link.send('ready'); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"HOWDAH_LINK_FD": str(theirs.fileno()), "PYTHONPATH": str(ROOT)},
        pass_fds=[theirs.fileno()],
    ) as process:
        theirs.close()
        assert json.loads(ours.makefile().readline()) == {"type": "ready"}
        ours.close()
        assert process.wait(WAIT) == 143


def test_a_link_that_is_none_is_refused(monkeypatch):
    monkeypatch.setenv("HOWDAH_LINK_FD", "987")
    with pytest.raises(UsageError, match="HOWDAH_LINK_FD"):
        ControlChannel.of_environment()
    assert ControlChannel.of_environment() is None


# ------------------------------------------------------------------------------------ the heartbeat
def test_inside_a_collective_the_phase_is_wait(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    waits = Waits()
    heartbeat = Heartbeat(None, waits)
    heartbeat.enter("compute")
    now[0] += 3
    assert (heartbeat.doing().phase, heartbeat.doing().seconds) == ("compute", 3.0)
    with waits.counted():
        now[0] += 5
        with waits.counted():  # one inside another counts once
            assert (heartbeat.doing().phase, heartbeat.doing().seconds) == ("wait", 5.0)
    now[0] += 1
    assert waits.total == 5.0
    assert (heartbeat.doing().phase, heartbeat.doing().idle_seconds) == ("compute", 1.0)
    with heartbeat.during("evaluate"):
        assert (heartbeat.doing().phase, heartbeat.doing().seconds) == ("evaluate", 0.0)
    assert heartbeat.doing().phase == "compute"


def test_an_evaluation_s_waits_are_not_those_of_the_next_step(monkeypatch):
    monkeypatch.setattr("howdah.training.elastic.heartbeat._STEP_SECONDS", 0.0)
    sent, waits = [], Waits()
    channel = SimpleNamespace(send=lambda kind, **fields: sent.append((kind, fields)))
    heartbeat = Heartbeat(channel, waits)
    heartbeat.begin(0, 0, 100)
    for step in range(1, 10):
        waits.total += 0.1
        heartbeat.step_done(step=step, epoch=0.0, loss=1.0, rows=8, seconds=1.0)
        with heartbeat.during("evaluate"):
            waits.total += 5.0
    steps = [fields for kind, fields in sent if kind == "step"]
    assert (steps[-1]["step_seconds"], steps[-1]["wait_seconds"]) == (0.9, 0.1)


def test_a_phase_that_takes_long_is_told_and_a_short_wait_is_not(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    waits, told = Waits(), Told()
    heartbeat = Heartbeat(None, waits)

    def lines(seconds: int) -> list[str]:
        reports = []
        for _ in range(seconds):
            now[0] += 1
            reports.append(told.line(heartbeat.doing(), heartbeat.activity.snapshot()))
        return [line for line in reports if line is not None]

    assert lines(2) == [] and lines(2) == ["starting the framework"] and lines(60) == []
    heartbeat.enter("compute")  # steps have lines of their own
    assert lines(60) == []
    with heartbeat.activity.doing("evaluate", "evaluating test", total=100, unit="rows"):
        heartbeat.activity.advanced(20)
        assert lines(4) == ["evaluating test: 20 of 100 rows, about 12 s left"]
        heartbeat.activity.advanced(20)
        assert lines(5) == [] and len(lines(6)) == 1
    with heartbeat.during("save", "writing the export"), waits.counted():
        assert lines(20) == ["writing the export"]
        assert lines(20) == ["writing the export; waiting for the other ranks"]


def test_steps_report_work_and_wait_apart(pair, monkeypatch):
    ours, link = pair
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    waits = Waits()
    heartbeat = Heartbeat(link, waits)
    with waits.counted():
        now[0] += 50  # while the world formed: no step's
    heartbeat.begin(1, 0, 6)
    for step, wait in ((1, 0.5), (2, 0.5), (3, 0.5), (4, 1.0), (5, 3.0), (6, 3.0)):
        with waits.counted():
            now[0] += wait
        # The first ones compile: they say nothing of how long a step takes.
        seconds = 40.0 if step <= 3 else 4.0
        heartbeat.step_done(step=step, epoch=0.5, loss=0.25, rows=12, seconds=seconds)
        now[0] += 1.0
    lines = ours.makefile()
    compiles, _, _, first, second, third = (json.loads(lines.readline()) for _ in range(6))
    assert (compiles["rank"], compiles["step"], compiles["total_steps"]) == (1, 1, 6)
    assert "step_seconds" not in compiles
    assert (first["step_seconds"], first["wait_seconds"]) == (3.0, 1.0)
    assert first["examples_per_second"] == 3.0
    assert 1.0 < second["wait_seconds"] < third["wait_seconds"] < 3.0
    assert third["step_seconds"] + third["wait_seconds"] == pytest.approx(4.0)


# ------------------------------------------------------------------------------- connections
def test_connections_opened_inside_are_broken_and_no_others():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with socket.create_connection(address) as before:
            other_end, _ = server.accept()
            with Connections() as opened:
                inside = socket.create_connection(address)
                accepted, _ = server.accept()
            got = []
            waiting = threading.Thread(target=lambda: got.append(accepted.recv(1)))
            waiting.start()
            assert opened.shut() == 2  # both ends are this process's
            waiting.join(WAIT)
            assert got == [b""]
            other_end.sendall(b"x")
            assert before.recv(1) == b"x"
            inside.close()
            accepted.close()
            assert opened.shut() == 0
            other_end.close()


# ------------------------------------------------------------------------------------- metrics
def write(log: MetricsLog, *places: tuple) -> None:
    for step, *split in places:
        log.write(step=step, loss=1.0, **({"split": split[0]} if split else {}))


def read(directory) -> list[tuple]:
    return [(one["step"], one.get("split")) for one in read_metrics(str(directory))]


def test_a_line_has_the_time_it_was_written_at_to_the_millisecond(tmp_path, monkeypatch):
    path = str(tmp_path / "metrics.jsonl")
    log = MetricsLog(path, path, 1)
    monkeypatch.setattr("howdah.models.runs.metrics_log.time.time", lambda: 1795456123.4567)
    log.write(step=1, loss=0.123456789, grad_norm=math.nan)
    log.close()
    (line,) = read_metrics(str(tmp_path))
    assert (line["time"], line["loss"], line["grad_norm"]) == (1795456123.457, 0.1234568, None)


def test_steps_done_again_count_once(tmp_path):
    path = str(tmp_path / "metrics.jsonl")
    log = MetricsLog(path, path, 1)
    write(log, (1,), (2,), (2, "validation"), (3,), (4,), (4, "validation"))
    write(log, (3,), (4,), (4, "validation"), (5,))
    write(log, (2, "test"))  # of the best step, at the end
    assert read(tmp_path) == [
        (1, None), (2, None), (2, "validation"), (3, None), (4, None), (4, "validation"),
        (5, None), (2, "test"),
    ]  # fmt: skip


def test_who_becomes_rank_0_writes_what_the_lost_one_had_not_published(tmp_path):
    path = str(tmp_path / "metrics.jsonl")
    lost = MetricsLog(path, path, 1)
    write(lost, (1,), (2,))  # it had come to step 5, and published these
    figures = MetricsLogger(1, console=None, log=None)
    figures.begin(0, total_steps=10)
    state = TrainState()
    for _ in range(5):
        state.step += 1
        figures.step_done(state, loss=0.5, lr=0.1, grad_norm=1.0, rows=2, real_tokens=4,
                          padded_tokens=4)  # fmt: skip
        if state.step == 2:
            figures.evaluated(state, "validation", {"loss": 0.5})
    figures.write_to(MetricsLog(path, path, 2))
    figures.show_on(io.StringIO())
    figures.begin(4, total_steps=10)  # all go on from step 4
    assert read(tmp_path) == [
        (1, None), (2, None), (2, "validation"), (3, None), (4, None),
    ]  # fmt: skip
