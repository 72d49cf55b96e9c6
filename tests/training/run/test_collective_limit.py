"""A collective that never comes back, where nothing else would end it.

A simulation: the main thread is held up inside `Waits.counted`, as NCCL would hold it on a GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from howdah.errors import ClusterError
from howdah.training.comm.base import Waits
from howdah.training.run.collective_limit import CollectiveLimit
from tests import ROOT as REPOSITORY

ROOT = str(REPOSITORY)
_RANK = """
import sys, threading
from howdah.config.loader import from_dict
from howdah.training.run.collective_limit import CollectiveLimit
from howdah.training.comm.base import Waits
from howdah.process.env import RankEnv
from howdah.training.run.run import Run

directory, saves, inside = sys.argv[1:]
config = from_dict({"run": {"directory": directory}, "checkpoint": {"grace_seconds": 1.0}})
run = Run(config, RankEnv(), console=sys.stderr, log=sys.stderr)
run.open()
held = threading.Event()
saved = lambda: print("saved", file=sys.stderr, flush=True)
run.last_save.arm(held.wait if saves == "hang" else saved)
waits = Waits()
CollectiveLimit(run, waits, 1.0, margin=0.5).start()
with getattr(waits, inside)():
    held.wait()
"""


def rank(directory, saves, inside="counted"):
    return subprocess.run(
        [sys.executable, "-c", _RANK, str(directory), saves, inside], capture_output=True,
        text=True, env=os.environ | {"PYTHONPATH": ROOT}, timeout=120, cwd=ROOT,
    )  # fmt: skip


@pytest.mark.parametrize("inside", ["counted", "limited"])
def test_it_ends_the_process_with_the_reason_the_stacks_and_a_save(tmp_path, inside):
    """Also in a pass through a divided model, whose collectives are not counted one by one."""
    done = rank(tmp_path / "run", "well", inside)
    assert done.returncode == ClusterError.exit_code
    assert "a collective does not return" in done.stderr
    assert "at most 1 s" in done.stderr
    assert "most recent call first" in done.stderr
    assert "saved" in done.stderr.splitlines()
    failure = json.loads((tmp_path / "run" / "logs" / "failure.0.json").read_text())
    assert failure["error"]["error"] == "ClusterError"


def test_a_save_that_hangs_too_does_not_keep_the_process(tmp_path):
    done = rank(tmp_path / "run", "hang")
    assert done.returncode == ClusterError.exit_code
    assert "could not be saved in time" in done.stderr


def test_a_pass_through_a_divided_model_is_no_time_of_waiting():
    waits = Waits()
    with waits.limited():
        assert waits.longest_since is not None and waits.since is None
        with waits.counted():
            assert waits.longest_since < waits.since
    assert waits.longest_since is None and waits.total < 60


def test_many_short_collectives_are_none_that_lasts(monkeypatch):
    waits, ends, clock = Waits(), [], iter(range(100))
    limit = CollectiveLimit(None, waits, 5.0)

    class Ended(Exception):
        pass

    def end(waited):
        ends.append(waited)
        raise Ended

    def sleep(seconds):
        """Time passes: a collective of 3 s after another, and then one that stays."""
        now = next(clock)
        monkeypatch.setattr(time, "monotonic", lambda: float(now))
        waits.since = float(now - now % 4) if now < 40 else 40.0
        if now < 40 and now % 4 == 3:
            waits.since = None

    monkeypatch.setattr(limit, "_end", end)
    monkeypatch.setattr(time, "sleep", sleep)
    with pytest.raises(Ended):
        limit._watch()
    assert ends == [5.0]
