"""The activity of a thread, and its last progress."""

import re
import threading

import pytest

from howdah import storage
from howdah.core import activity
from howdah.core.activity import Activity
from howdah.core.speed import Speed
from howdah.errors import StorageUnavailable
from howdah.storage import retry
from howdah.storage.calls import TimedCalls

WAIT = 60  # seconds; detects a hang


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def test_a_snapshot_shows_the_progress_of_the_work(clock):
    work = Activity("prepare")
    with (
        work.followed(),
        activity.current().doing("evaluate", "evaluating test", total=100_000, unit="rows"),
    ):
        clock[0] += 500
        activity.current().advanced(31_000)
        clock[0] += 7
        snapshot = work.snapshot()
        assert (snapshot.phase, snapshot.seconds, snapshot.idle_seconds) == ("evaluate", 507.0, 7.0)
        assert snapshot.text == "evaluating test: 31,000 of 100,000 rows, about 19 min left"
        with activity.current().doing("", "fetching train-3", total=96 * 2**20, unit="bytes"):
            activity.current().advanced(12 * 2**20)
            assert work.snapshot().text.endswith("left; fetching train-3: 12 of 96 MiB")
            assert work.snapshot().phase == "evaluate"
    assert (work.snapshot().phase, work.snapshot().idle_seconds) == ("prepare", 0.0)


def test_without_an_activity_nothing_is_recorded():
    current = activity.current()
    assert activity.current() is current
    with activity.current().doing("save"), activity.current().at_most(5):
        activity.current().advanced(3)
        activity.current().note("x")
        assert (current.snapshot().phase, current.snapshot().text) == ("", "")


def test_a_thread_that_waits_for_another_has_its_progress(clock):
    main, saver = Activity("compute"), Activity("save", "saving step 7")
    with main.followed(), activity.current().waiting_for(saver):
        clock[0] += 50
        assert main.snapshot().idle_seconds == 50
        saver.advanced()
        clock[0] += 3
        snapshot = main.snapshot()
        assert (snapshot.phase, snapshot.idle_seconds, snapshot.text) == (
            "save",
            3.0,
            "saving step 7",
        )
    clock[0] += 4
    assert (main.snapshot().phase, main.snapshot().idle_seconds) == ("compute", 4.0)


def test_a_call_with_a_limit_does_not_count_as_hanging_before_it(clock):
    work = Activity("save")
    with work.at_most(60):
        with work.at_most(10):
            clock[0] += 50
            assert work.snapshot().idle_seconds == 0.0
        clock[0] += 30
        assert work.snapshot().idle_seconds == 20.0
    assert work.snapshot().idle_seconds == 0.0


def test_retries_of_a_storage_call_are_progress(monkeypatch):
    monkeypatch.setenv(retry.ENVIRONMENT, "30")
    work, seen = Activity("save"), []

    def attempt():
        seen.append(work.snapshot())
        if len(seen) < 4:
            raise StorageUnavailable("no answer")
        return "done"

    with work.followed():
        assert retry.run("hdfs://nn:8020/x", attempt) == "done"
    assert "waiting for hdfs://nn:8020" in seen[-1].text
    assert seen[-1].text.endswith("of 30 s")
    assert work.snapshot().text == ""
    # Each attempt is progress, although nothing has answered yet.
    assert all(one.idle_seconds < 15.0 for one in seen)


def test_calls_with_a_limit_of_their_own_are_marked():
    work_done, began, go_on = Activity("save"), threading.Event(), threading.Event()

    def call():
        began.set()
        assert go_on.wait(WAIT)

    def work():
        work_done.follow()
        TimedCalls().run(call, 3600.0)

    thread = threading.Thread(target=work)
    thread.start()
    assert began.wait(WAIT)
    assert work_done.snapshot().idle_seconds == 0.0
    assert work_done._limits
    go_on.set()
    thread.join(WAIT)
    assert not work_done._limits


def test_what_is_read_and_written_is_progress(tmp_path, clock):
    work = Activity("save")

    def fill(file):
        clock[0] += 100
        file.write(b"x")
        assert work.snapshot().idle_seconds == 0.0

    with work.followed():
        storage.write_stream(str(tmp_path / "a"), fill)
        clock[0] += 100
        storage.size(str(tmp_path / "a"))
        assert work.snapshot().idle_seconds == 0.0


# ----------------------------------------------------------------------------------- speed
def test_time_left_follows_the_present_speed():
    speed = Speed()
    assert speed.left(0.0, 1000) is None
    for step in range(501):
        speed.mark(step * 0.1, step)
    assert speed.left(50.0, 1000) == pytest.approx(50.0, abs=0.5)
    for step in range(1, 61):  # another job has taken the cores
        speed.mark(50.0 + step * 0.5, 500 + step)
    assert speed.left(80.0, 1000) == pytest.approx(0.5 * 440, rel=0.05)
    # A step that takes longer than those before: it counts while it lasts.
    assert speed.left(400.0, 1000) > 0.5 * 440 * 5


@pytest.mark.parametrize("after", [3.5, 5.0, 10.0, 20.0])
def test_near_the_end_the_speed_of_half_a_minute_ago_does_not_count(after):
    """Another job takes the cores when 86 steps are left: 8.6 s become 43."""
    speed = Speed()
    for step in range(515):
        speed.mark(step * 0.1, step)
    began, step = 51.4, 514
    for _ in range(int(after / 0.5)):
        step += 1
        speed.mark(began + 0.5 * (step - 514), step)
    assert speed.left(began + 0.5 * (step - 514), 600) == pytest.approx(0.5 * (600 - step), rel=0.3)


def test_repeated_steps_do_not_count_as_speed():
    speed = Speed()
    for seconds, step in ((0.0, 0), (10.0, 10), (20.0, 20), (21.0, 11), (31.0, 21)):
        speed.mark(seconds, step)
    assert speed.left(31.0, 31) == pytest.approx(10.0, abs=0.5)


def test_stages_are_numbered_lines_and_one_that_fails_leaves_none():
    lines: list[str] = []
    with activity.Stages(("read", "write", "check"), lines.append) as stages:
        stages.begin("read")
        stages("12 rows")
        stages.begin("check")  # this work has nothing to write
    shown = [re.sub(r"\d+\.\d s$", "S", line) for line in lines]
    assert shown == ["12 rows", "1/3 read: S", "3/3 check: S"]
    lines.clear()
    with pytest.raises(ValueError, match="bad"), activity.Stages(("read",), lines.append) as stages:
        stages.begin("read")
        raise ValueError("bad")
    assert lines == []


def test_a_stage_that_takes_long_is_a_line_before_its_end(monkeypatch):
    monkeypatch.setattr(activity.Stages, "LONG", 0.01)
    printed = threading.Event()
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        printed.set()

    with activity.Stages(("read", "write"), say) as stages:
        stages.begin("write")
        assert printed.wait(30) and lines == ["2/2 write ..."]
    assert re.fullmatch(r"2/2 write: \d+\.\d s", lines[1])
