"""bench/harness.py: rounds of a long bench that was stopped."""

import pytest

from bench import harness

BEGUN = {"ours": {"seconds": [0.5, 0.25]}}


@pytest.fixture(autouse=True)
def results(tmp_path, monkeypatch):
    place = tmp_path / "bench" / "results"
    monkeypatch.setattr(harness, "RESULTS", place)
    (tmp_path / "bench").mkdir()
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "steps.py").write_text("one = 1\n")
    return place


def rounds(**settings):
    return harness.Rounds("long", sources=("training",), **settings)


def test_a_second_start_finds_the_rounds_that_ended():
    assert rounds(steps=3).kept("base") == []
    rounds(steps=3).keep("base", BEGUN)
    rounds(steps=3).keep("base", BEGUN)
    rounds(steps=3).keep("small", {})
    assert rounds(steps=3).kept("base") == [BEGUN, BEGUN]
    assert rounds(steps=3).kept("small") == [{}]


def test_a_second_start_runs_only_the_rounds_that_are_missing():
    left = iter([{"ms": 1}, {"ms": 2}, {"ms": 3}])
    assert rounds().up_to(2, "base", lambda: next(left)) == [{"ms": 1}, {"ms": 2}]
    assert rounds().up_to(3, "base", lambda: next(left)) == [{"ms": 1}, {"ms": 2}, {"ms": 3}]
    assert rounds().up_to(1, "base", lambda: next(left)) == [{"ms": 1}]
    assert rounds().kept("base") == [{"ms": 1}, {"ms": 2}, {"ms": 3}]


def test_rounds_of_other_settings_sources_or_machines_do_not_count(tmp_path, monkeypatch):
    rounds(steps=3).keep("base", BEGUN)
    assert rounds(steps=4).kept("base") == []
    source = tmp_path / "training" / "steps.py"
    before = source.read_text()
    source.write_text("one = 2\n")
    assert rounds(steps=3).kept("base") == []
    source.write_text(before)
    assert rounds(steps=3).kept("base") == [BEGUN]
    here = harness.machine()
    monkeypatch.setattr(harness, "machine", lambda: {**here, "cores": here["cores"] + 1})
    assert rounds(steps=3).kept("base") == []


def test_a_source_may_be_a_file(tmp_path):
    one = tmp_path / "bench" / "one.py"
    one.write_text("a = 1\n")
    harness.Rounds("long", sources=("bench/one.py",)).keep("base", BEGUN)
    assert harness.Rounds("long", sources=("bench/one.py",)).kept("base") == [BEGUN]
    one.write_text("a = 2\n")
    assert harness.Rounds("long", sources=("bench/one.py",)).kept("base") == []
