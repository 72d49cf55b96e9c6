"""The guard of `howdah train`: what it does to a job whose command was killed."""

import os
import signal
import subprocess
import sys

import pytest

from howdah.core.processes import process_start
from howdah.training.run.local_dir import RankRecord
from tests import ROOT
from tests.support.waiting import wait_until

LIMIT = 60  # seconds; detects a hang

RANK = """
import signal, sys, time
from howdah.training.run.local_dir import RankRecord
directory, rank, kind = sys.argv[1:]
def save(number, frame):
    time.sleep(0.3)
    open(f"{directory}/saved-{rank}", "w").close()
    sys.exit(143)
signal.signal(signal.SIGTERM, save if kind == "saves" else signal.SIG_IGN)
RankRecord.of_this_process(int(rank)).write(directory)
time.sleep(600)
"""
LAUNCHER = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as mpirun, for as long as its teardown time
directory, code, *kinds = sys.argv[1:]
for rank, kind in enumerate(kinds):
    subprocess.Popen([sys.executable, "-c", code, directory, str(rank), kind])
time.sleep(600)
"""
TRAIN = """
import sys, time
from howdah.core.child import Child
from howdah.training.launch.guard import guarded
directory, seconds, *launcher = sys.argv[1:]
with Child([sys.executable, "-c", *launcher]) as child:
    with guarded(directory, child.pid, float(seconds)):
        print(child.pid, flush=True)
        sys.stdin.readline()
"""


class Job:
    """A `howdah train` with two ranks, as bare as can be."""

    def __init__(self, directory: str, seconds: float, *kinds: str) -> None:
        self.directory = directory
        argv = [sys.executable, "-c", TRAIN, directory, str(seconds), LAUNCHER, directory, RANK]
        self.train = subprocess.Popen(
            [*argv, *kinds], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT), "HOWDAH_STARTED": "1.0"},
        )  # fmt: skip
        self.launcher = int(self.train.stdout.readline())
        wait_until(lambda: len(RankRecord.read_all(directory)) == len(kinds), LIMIT)
        self.ranks = RankRecord.read_all(directory)

    def wait_for_its_end(self) -> None:
        self.train.wait(LIMIT)
        wait_until(lambda: process_start(self.launcher) is None, LIMIT)
        wait_until(lambda: not any(rank.alive for rank in self.ranks), LIMIT)

    def saved(self) -> list[str]:
        return sorted(one for one in os.listdir(self.directory) if one.startswith("saved"))


@pytest.fixture
def job(tmp_path):
    """Makes jobs, and ends them."""
    made = []

    def make(seconds, *kinds):
        made.append(Job(str(tmp_path), seconds, *kinds))
        return made[-1]

    yield make
    for one in made:
        one.train.kill()
        one.train.communicate()
        for pid in [one.launcher, *(rank.pid for rank in one.ranks if rank.alive)]:
            if process_start(pid) is not None:
                os.kill(pid, signal.SIGKILL)


def test_the_ranks_save_and_end_and_the_launcher_with_them(job):
    one = job(LIMIT * 5, "saves", "saves")
    one.train.kill()
    one.wait_for_its_end()
    assert one.saved() == ["saved-0", "saved-1"]


def test_a_rank_that_does_not_end_is_killed_when_its_time_is_over(job):
    one = job(1.0, "saves", "hangs")
    one.train.kill()
    one.wait_for_its_end()
    assert one.saved() == ["saved-0"]


def test_at_a_good_end_nothing_is_signalled(job, tmp_path):
    one = job(LIMIT * 5, "saves", "saves")
    one.train.communicate("over\n", LIMIT)
    assert one.train.returncode == 0
    assert one.saved() == []
