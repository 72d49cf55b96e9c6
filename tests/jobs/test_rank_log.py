"""A rank's logs in the run directory: one file for each process that began with that rank."""

import pytest

from howdah import storage
from howdah.jobs.status import rank_log
from howdah.storage import growing


@pytest.fixture
def run(tmp_path):
    """A run directory, remote by its URL."""
    return f"file://{tmp_path}/run"


def put(run, name, text):
    storage.write_whole(storage.join(run, "logs", name), text.encode())


def lines_of(run, rank):
    """All that is there now."""
    out = []
    assert rank_log.follow(run, rank, lambda: True, out.append, poll_seconds=0)
    return out


def test_one_process_has_no_heading(run):
    put(run, "rank.0", "first\nlast")
    put(run, "rank.1", "another rank's\n")
    put(run, "rank.10", "one more rank's\n")
    assert lines_of(run, 0) == ["first", "last"]


def test_attempts_and_replacements_come_in_their_order(run):
    for name in ("rank.1", "rank.1.2-1", "rank.1.2-10", "rank.1.2-3"):
        put(run, name, f"of {name}\n")
    expected = []
    for name in ("rank.1", "rank.1.2-1", "rank.1.2-3", "rank.1.2-10"):
        expected += [f"==> {name} <==", f"of {name}"]
    assert lines_of(run, 1) == expected


def test_a_first_attempt_that_left_no_log_hides_none(run):
    put(run, "rank.0.2-1", "of the second attempt\n")
    assert lines_of(run, 0) == ["of the second attempt"]


def test_what_grows_is_shown_once_and_a_later_attempt_under_its_name(run):
    path = storage.join(run, "logs", "rank.0")

    def rounds():
        yield  # nothing is there yet
        put(run, "rank.0", "a\nb")
        yield
        storage.write_whole(growing.part_path(path, 3), b"c\nd\n")
        yield
        put(run, "rank.0.2-1", "again\n")
        yield
        put(run, "rank.0.2-1", "again\nand on\nto the end")

    steps, out = rounds(), []
    assert rank_log.follow(
        run, 0, lambda: next(steps, "over") == "over", out.append, poll_seconds=0
    )
    assert out == ["a", "bc", "d", "==> rank.0.2-1 <==", "again", "and on", "to the end"]


def test_an_unfinished_line_of_a_log_that_is_begun_anew_is_dropped(run):
    def rounds():
        put(run, "rank.0", "one\ntw")
        yield
        put(run, "rank.0", "anew\n")
        yield

    steps, out = rounds(), []
    assert rank_log.follow(
        run, 0, lambda: next(steps, "over") == "over", out.append, poll_seconds=0
    )
    assert out == ["one", "anew"]


def test_no_log_is_none(run):
    assert not rank_log.follow(run, 0, lambda: True, print, poll_seconds=0)
    put(run, "rank.1", "another rank's\n")
    assert not rank_log.follow(run, 0, lambda: True, print, poll_seconds=0)
