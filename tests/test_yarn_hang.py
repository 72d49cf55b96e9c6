"""Who hangs, who waits for whom, and who is slow."""

import pytest

from yarn import hang
from yarn.driver_members import Member
from yarn.hang import Pace, View


def view(rank=0, phase="wait", seconds=100.0, silent=0.5, **more):
    return View(f"m{rank}", rank, phase, seconds, silent, **more)


@pytest.mark.parametrize(
    ("other", "word"),
    [
        (view(1, "compute", 50.0, step_seconds=0.1), "in phase compute"),
        (view(1, "compute", 10.0, step_seconds=0.1), None),
        (view(1, "compute", 50.0), None),  # its first step compiles
        (view(1, "compute", 500.0), "in phase compute"),
        (view(1, "compute", 50.0, step_seconds=20.0), None),  # its steps are that long
        (view(1, "save", 100.0), None),
        (view(1, "save", 500.0), "in phase save"),
        (view(1, "wait", 100.0, 60.0, stopped=True), "stopped by a signal"),
        (view(1, "compute", 50.0, step_seconds=0.1, stopped=True), "stopped by a signal, in phase"),
        (view(1, "evaluate", 100.0, 60.0), "silent"),
        (view(1, "evaluate", 100.0, 60.0, busy=True), None),  # it holds Python's lock, and works
        (view(1, "wait", 100.0, 10.0), None),
    ],
)
def test_who_hangs(other, word):
    found = hang.hanging([view(0), other], 45.0)
    assert (word is None) == (not found)
    if word:
        assert [one.member for one in found] == ["m1"]
        assert word in found[0].why


def test_all_wait_and_nobody_is_missing():
    assert hang.blocked([view(0), view(1, seconds=60.0)], 45.0) == 60.0
    assert hang.blocked([view(0), view(1, seconds=10.0)], 45.0) is None
    assert hang.blocked([view(0), view(1, "compute")], 45.0) is None
    assert hang.blocked([view(0)], 45.0) is None


def test_the_slow_one_is_who_works_long_not_who_waits_long():
    even = {0: Pace(0.10, 0.01), 1: Pace(0.11, 0.0), 2: Pace(0.10, 0.01)}
    assert hang.stragglers(even) == set()
    assert hang.stragglers({**even, 3: Pace(0.30, 0.0)}) == {3}
    assert hang.stragglers({0: Pace(0.1, 0.2), 1: Pace(0.3, 0.0)}) == {1}
    assert hang.stragglers({0: Pace(0.1, 0.2)}) == set()


def test_a_member_s_silence_is_measured_by_its_own_beats():
    member = Member("m", "n", {}, contact=0.0)
    member.begin_process(10.0)
    state = {"process": 1, "beat": {"phase": "wait", "phase_seconds": 2.0}, "beat_age": 0.5,
             "kernel": {"state": "S", "cpu_seconds": 5.0}}  # fmt: skip
    member.reported(state, 20.0)
    assert member.view(21.0).silent_seconds == pytest.approx(1.5)
    assert member.view(21.0).phase_seconds == pytest.approx(3.5)
    member.reported({**state, "beat_age": 30.5, "kernel": {"state": "T", "cpu_seconds": 5.0}}, 50.0)
    assert member.view(50.0).silent_seconds == pytest.approx(30.5)
    assert member.view(50.0).stopped
    member.reported({**state, "process": 0}, 60.0)  # of a process that is gone
    assert member.view(60.0).silent_seconds == pytest.approx(40.5)
