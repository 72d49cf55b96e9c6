"""A background save is throttled, until training waits for it."""

from __future__ import annotations

import io
import threading

import numpy as np
import pytest

from howdah.models.runs.identity import Identity
from howdah.training.checkpoint import manager as checkpoint
from howdah.training.checkpoint import throttle
from howdah.training.checkpoint.fence import Fence
from howdah.training.checkpoint.throttle import WriteThrottle

MIB = 2**20


class Clock:
    """Time that passes only in waits."""

    def __init__(self, monkeypatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(throttle.time, "monotonic", lambda: self.now)
        wait, test = threading.Event.wait, threading.current_thread()

        def passes(event, timeout=None):
            if threading.current_thread() is not test:  # a thread of another test
                return wait(event, timeout)
            return self._pass(timeout, event.is_set())

        monkeypatch.setattr(threading.Event, "wait", passes)

    def _pass(self, seconds: float, over: bool) -> None:
        self.now += 0.0 if over else seconds


@pytest.fixture
def clock(monkeypatch) -> Clock:
    return Clock(monkeypatch)


def test_a_save_is_spread_evenly(clock):
    target = io.BytesIO()
    file = WriteThrottle(64 * MIB).wrap(target)
    took = []
    for _ in range(4):
        begun = clock.now
        assert file.write(memoryview(b"x" * 16 * MIB)) == 16 * MIB
        took.append(clock.now - begun)
    assert took == pytest.approx([1.0] * 4)
    assert target.getvalue() == b"x" * 64 * MIB


def test_a_large_save_takes_half_a_minute_and_no_longer(clock):
    size = 10**12
    throttled, begun = WriteThrottle(size), clock.now
    for _ in range(10):
        throttled.passed(size // 10)
    assert clock.now - begun == pytest.approx(30.0)


def test_no_burst_makes_up_for_the_time_that_a_slow_storage_took(clock):
    throttled, begun = WriteThrottle(MIB), clock.now
    clock.now += 60.0  # the storage was stuck
    throttled.passed(16 * MIB)
    assert clock.now - begun == pytest.approx(61.0)


def test_a_checkpoint_is_read_back_as_slowly_as_it_was_written(clock, tmp_path):
    size = 48 * MIB
    (tmp_path / "run").mkdir()
    saves = checkpoint.Checkpoints(str(tmp_path / "run"), fence=Fence.take(str(tmp_path)))
    written = []
    saves._saved = lambda step, path: written.append(clock.now)
    tensors = {"model/w": np.zeros(size // 4, np.float32)}
    identity = Identity("b", "d", "t", ("l",), "p")
    saves._write(saves._fence, 1, tensors, {}, identity, None, None, False, WriteThrottle(size))
    assert written[0] - 100.0 == pytest.approx(3.0, abs=0.1)
    assert clock.now - written[0] == pytest.approx(3.0, abs=0.1)


def test_a_save_that_is_waited_for_is_not_throttled():
    throttled = WriteThrottle(MIB)
    written = threading.Thread(target=throttled.passed, args=(10**9 * 16 * MIB,), daemon=True)
    written.start()
    throttled.hurry()
    written.join(60)
    assert not written.is_alive()
