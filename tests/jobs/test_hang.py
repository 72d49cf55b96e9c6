"""Ranks that hang, that wait for others, and that are slow."""

import pytest

from howdah.jobs import hang
from howdah.jobs.driver.members import Member
from howdah.jobs.hang import Pace, View


def view(rank=0, phase="wait", seconds=1000.0, idle=100.0, silent=0.5, **more):
    return View(f"m{rank}", rank, phase, seconds, idle, silent, **more)


@pytest.mark.parametrize(
    ("other", "word"),
    [
        # A phase may last as long as it gets on, and no longer than hang_seconds without.
        *[
            (view(1, phase, idle=idle), word)
            for phase in ("import", "prepare", "compute", "input", "evaluate", "save", "end")
            for idle, word in ((44.0, None), (46.0, f"no progress for 46 s in phase {phase}"))
        ],
        (view(1, "compute", idle=50.0, busy=True), None),  # its first step compiles
        (view(1, "compute", idle=500.0, busy=True), "in phase compute"),
        (view(1, "compute", idle=50.0, step_seconds=20.0), None),  # its steps are that long
        (view(1, "compute", idle=250.0, step_seconds=20.0), "in phase compute"),
        (view(1, "evaluate", idle=250.0, step_seconds=20.0), "in phase evaluate"),
        (view(1, "evaluate", idle=100.0, busy=True), None),  # a micro-batch of minutes
        (view(1, "cache", idle=100.0), None),  # another process of the node fetches
        (view(1, "join", idle=100.0), None),
        (view(1, "join", idle=500.0), "in phase join"),
        (view(1, "wait", silent=60.0, stopped=True), "stopped by a signal"),
        (view(1, "compute", idle=50.0, stopped=True), "stopped by a signal, no progress"),
        (view(1, "evaluate", silent=60.0), "silent for 60 s, last in phase evaluate"),
        (view(1, "evaluate", silent=60.0, awake=True, busy=True), None),  # holds Python's lock
        (view(1, "wait", silent=10.0), None),
        (view(1, "wait", idle=10_000.0), None),  # however long it waits for another
    ],
)
def test_who_hangs(other, word):
    hanging = hang.hanging([view(0), other], 45.0)
    assert (word is None) == (not hanging)
    if word:
        assert [one.member for one in hanging] == ["m1"]
        assert word in hanging[0].why


def test_a_world_whose_ranks_all_wait_is_blocked():
    assert hang.blocked([view(0), view(1, seconds=60.0)], 45.0) == 60.0
    assert hang.blocked([view(0), view(1, silent=20.0)], 45.0) is None
    assert hang.blocked([view(0), view(1, seconds=10.0)], 45.0) is None
    assert hang.blocked([view(0), view(1, "compute")], 45.0) is None
    assert hang.blocked([view(0)], 45.0) is None


def test_the_slow_one_is_who_works_long_not_who_waits_long():
    even = {0: Pace(0.10, 0.01), 1: Pace(0.11, 0.0), 2: Pace(0.10, 0.01)}
    assert hang.stragglers(even) == set()
    assert hang.stragglers({**even, 3: Pace(0.30, 0.0)}) == {3}
    assert hang.stragglers({0: Pace(0.1, 0.2), 1: Pace(0.3, 0.0)}) == {1}
    assert hang.stragglers({0: Pace(0.1, 0.2)}) == set()


def report(age=0.5, cpu=5.0, letter="S", **beat):
    beat = {"phase": "evaluate", "phase_seconds": 900.0, "idle_seconds": 2.0,
            "idle_cpu_seconds": 0.0, **beat}  # fmt: skip
    kernel = {"state": letter, "cpu_seconds": cpu}
    return {"process": 1, "beat": beat, "beat_age": age, "kernel": kernel}


def test_a_member_s_silence_is_measured_by_its_own_beats():
    member = Member("m", "n", {}, contact=0.0)
    member.begin_process(10.0)
    member.reported(report(), 20.0)
    assert member.view(21.0).silent_seconds == pytest.approx(1.5)
    assert member.view(21.0).phase_seconds == pytest.approx(901.5)
    assert member.view(21.0).idle_seconds == pytest.approx(3.5)
    member.reported(report(age=30.5, letter="T"), 50.0)
    assert member.view(50.0).silent_seconds == pytest.approx(30.5)
    assert member.view(50.0).stopped
    member.reported({**report(), "process": 0}, 60.0)  # of a process that is gone
    assert member.view(60.0).silent_seconds == pytest.approx(40.5)


def test_a_rank_that_computes_is_distinguished_from_one_whose_threads_use_the_processor():
    member = Member("m", "n", {}, contact=0.0)
    member.begin_process(10.0)
    member.reported(report(idle_seconds=60.0, idle_cpu_seconds=1.8), 100.0)  # Horovod's thread
    assert not member.view(101.0).busy
    member.reported(report(idle_seconds=60.0, idle_cpu_seconds=15.0), 200.0)
    assert member.view(201.0).busy
    assert not member.view(230.0).awake  # no processor used since its last word
    member.reported(report(age=30.0, idle_seconds=60.0, idle_cpu_seconds=15.0, cpu=25.0), 229.5)
    assert member.view(230.0).awake
    member.reported(report(age=40.0, letter="R", idle_seconds=60.0), 300.0)
    assert member.view(300.0).awake and member.view(300.0).busy  # on a node with too much work


def test_a_rank_stopped_right_after_a_second_of_computing_is_not_awake():
    member = Member("m", "n", {}, contact=0.0)
    member.begin_process(10.0)
    member.reported(report(age=0.0, phase="wait"), 100.0)
    member.reported(report(age=4.0, phase="wait", letter="T", cpu=6.0), 104.0)
    assert not member.view(104.0).awake
    assert hang.stands_still(member.view(104.0), 3.0, 3.0).startswith("stopped by a signal for 4 s")
