"""When a job's steps count as having stopped."""

from howdah.jobs.stall import Stall


def steps(stall: Stall, count: int, each: float) -> float:
    for step in range(count):
        assert stall.look(step, step * each) is None
    return (count - 1) * each


def test_a_stall_is_found_once_and_again_after_progress():
    stall = Stall(10, 5)
    now = steps(stall, 20, 1.0)
    assert stall.look(19, now + 9.9) is None
    assert stall.look(19, now + 10) == 10
    assert stall.look(19, now + 100) is None
    assert stall.look(20, now + 101) is None
    assert stall.look(20, now + 111) == 10


def test_short_steps_have_the_least_time():
    stall = Stall(10, 300)
    now = steps(stall, 50, 0.1)
    assert stall.look(49, now + 299) is None
    assert stall.look(49, now + 300) == 300


def test_without_steps_or_after_the_last_one_there_is_none():
    stall = Stall(2, 1)
    assert stall.look(None, 1000) is None
    assert stall.look(0, 1001) is None
    assert stall.look(0, 9000) is None  # too few steps for a median
    now = steps(Stall(2, 1), 10, 1.0)
    assert stall.look(None, now + 5000) is None


def test_reports_that_skip_steps_count_each():
    stall = Stall(10, 1)
    for number in range(10):
        stall.look(number * 10, number * 20.0)  # two seconds a step
    assert stall.look(90, 180 + 19) is None
    assert stall.look(90, 180 + 20) == 20


def test_steps_that_are_repeated_after_a_loss_are_no_stall():
    stall = Stall(10, 5)
    now = steps(stall, 20, 1.0)
    assert stall.look(10, now + 9) is None  # back to the checkpoint
    assert stall.look(10, now + 18) is None
    assert stall.look(10, now + 19) == 10
