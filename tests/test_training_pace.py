"""The pace of a save in the background."""

from __future__ import annotations

import io
import threading

import numpy as np
import pytest

from training import checkpoint, pace
from training.fence import Fence
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


def test_a_checkpoint_is_read_back_at_the_pace_it_was_written(clock, tmp_path):
    size = 48 * MIB
    (tmp_path / "run").mkdir()
    saves = checkpoint.Checkpoints(str(tmp_path / "run"), fence=Fence.take(str(tmp_path)))
    written = []
    saves._saved = lambda step, path: written.append(clock.now)
    tensors = {"model/w": np.zeros(size // 4, np.float32)}
    identity = checkpoint.Identity("b", "d", "t", ("l",), "p")
    saves._write(saves._fence, 1, tensors, {}, identity, None, None, False, Pace(size))
    assert written[0] - 100.0 == pytest.approx(3.0, abs=0.1)
    assert clock.now - written[0] == pytest.approx(3.0, abs=0.1)


def test_nobody_waits_for_the_pace():
    paced = Pace(MIB)
    written = threading.Thread(target=paced.spent, args=(10**9 * 16 * MIB,), daemon=True)
    written.start()
    paced.hurry()
    written.join(60)
    assert not written.is_alive()
