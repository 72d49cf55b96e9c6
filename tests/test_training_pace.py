"""The pace of a save in the background."""

from __future__ import annotations

import io
import threading

import pytest

from training import pace
from training.pace import Pace

MIB = 2**20


class Clock:
    """Time that passes only where somebody waits."""

    def __init__(self, monkeypatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(pace.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(
            threading.Event, "wait", lambda event, timeout: self._pass(timeout, event.is_set())
        )

    def _pass(self, seconds: float, over: bool) -> None:
        self.now += 0.0 if over else seconds


@pytest.fixture
def clock(monkeypatch) -> Clock:
    return Clock(monkeypatch)


def test_a_save_is_spread_evenly(clock):
    target = io.BytesIO()
    file = Pace(64 * MIB).keep(target)
    took = []
    for _ in range(4):
        begun = clock.now
        assert file.write(memoryview(b"x" * 16 * MIB)) == 16 * MIB
        took.append(clock.now - begun)
    assert took == pytest.approx([1.0] * 4)
    assert target.getvalue() == b"x" * 64 * MIB


def test_a_large_save_takes_half_a_minute_and_no_longer(clock):
    size = 10**12
    paced, begun = Pace(size), clock.now
    for _ in range(10):
        paced.spent(size // 10)
    assert clock.now - begun == pytest.approx(30.0)


def test_what_a_slow_storage_took_is_not_made_up_by_a_burst(clock):
    paced, begun = Pace(MIB), clock.now
    clock.now += 60.0  # the storage stood still
    paced.spent(16 * MIB)
    assert clock.now - begun == pytest.approx(61.0)


def test_nobody_waits_for_the_pace():
    paced = Pace(MIB)
    written = threading.Thread(target=paced.spent, args=(10**9 * 16 * MIB,), daemon=True)
    written.start()
    paced.hurry()
    written.join(60)
    assert not written.is_alive()
