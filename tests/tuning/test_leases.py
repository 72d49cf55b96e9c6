"""Who may work on a trial, as a function of what was seen when."""

from __future__ import annotations

import pytest

from howdah.tuning.leases import Leases


@pytest.fixture
def workers(tmp_path):
    """Two workers of this process: neither sees the other as dead."""
    with Leases(str(tmp_path), 3600.0, print) as one, Leases(str(tmp_path), 3600.0, print) as two:
        yield one, two


def test_one_of_two_workers_gets_a_trial(workers):
    one, two = workers
    assert one.free([0, 1]) == two.free([0, 1]) == {0: 0, 1: 0}
    assert one.take(0, 0) == 1
    assert two.take(0, 0) is None  # it has looked before the other took it
    assert two.free([0, 1]) == {1: 0}


def test_a_trial_goes_on_under_the_next_attempt(workers):
    one, two = workers
    one.take(0, 0)
    one.end(0, "released")
    assert two.free([0]) == {0: 1}
    assert two.take(0, 1) == 2
    assert two.losses(0) == 0
    two.end(0, "lost")
    assert one.take(0, 2) == 3
    assert one.losses(0) == 1


def test_a_worker_that_was_suspended_finds_its_successor(workers, monkeypatch):
    one, two = workers
    one.take(0, 0)
    now = [0.0]
    monkeypatch.setattr("howdah.tuning.leases.time.monotonic", lambda: now[0])
    assert two.free([0]) == {}
    one.renew()
    now[0] = 3600.0
    assert two.free([0]) == {}  # its beat has changed
    now[0] = 7200.0
    assert two.free([0]) == {0: 1}
    two.take(0, 1)
    one.renew()
    assert one.superseded(0) and not two.superseded(0)
    one.end(0, "released")
    assert two.read(0, 1).state == "held"  # of the successor's files it writes none
    assert two.losses(0) == 1


def test_a_worker_of_this_machine_that_is_gone_is_not_waited_for(tmp_path, workers):
    one, _ = workers
    one.take(0, 0)
    path = tmp_path / "leases" / "0.1.json"
    path.write_text(path.read_text().replace('"start": ', '"start": 9'))
    with Leases(str(tmp_path), 3600.0, print) as later:
        assert later.free([0]) == {0: 1}
