"""The guard of `howdah train`: what becomes of the rank when the command is killed."""

import contextlib
import os
import signal
import subprocess
import sys

import pytest

from howdah.core.processes import process_start
from tests import ROOT
from tests.support.waiting import wait_until

LIMIT = 60  # seconds; detects a hang

RANK = """
import os, signal, subprocess, sys, time
directory, kind = sys.argv[1:]
def save(number, frame):
    time.sleep(0.3)
    open(f"{directory}/saved", "w").close()
    sys.exit(143)
signal.signal(signal.SIGTERM, save if kind == "saves" else signal.SIG_IGN)
own = subprocess.Popen(["sleep", "600"], process_group=0)
with open(f"{directory}/up-", "w") as file:
    file.write(str(own.pid))
os.rename(f"{directory}/up-", f"{directory}/up")
if kind == "is stopped":
    os.kill(os.getpid(), signal.SIGSTOP)
while True:
    time.sleep(600)
"""
TRAIN = """
import sys
from howdah.core.child import Child
from howdah.training.launch.guard import guarded
seconds, *rank = sys.argv[1:]
with Child([sys.executable, "-c", *rank]) as child:
    with guarded(child.pid, float(seconds)):
        print(child.pid, flush=True)
        sys.stdin.readline()
    print("not guarded", flush=True)
    sys.stdin.readline()
"""


class Training:
    """A `howdah train`, as bare as can be, and its rank, which has started a process."""

    def __init__(self, directory: str, seconds: float, kind: str) -> None:
        self.directory = directory
        self.command = subprocess.Popen(
            [sys.executable, "-c", TRAIN, str(seconds), RANK, directory, kind],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        self.rank = int(self.command.stdout.readline())
        up = os.path.join(directory, "up")
        wait_until(lambda: os.path.exists(up), LIMIT)
        with open(up, encoding="ascii") as file:
            self.pids = [self.rank, int(file.read())]

    def wait_for_its_end(self) -> None:
        self.command.wait(LIMIT)
        wait_until(lambda: not any(map(process_start, self.pids)), LIMIT)

    @property
    def saved(self) -> bool:
        return os.path.exists(os.path.join(self.directory, "saved"))


@pytest.fixture
def training(tmp_path):
    """Begins trainings, and ends them."""
    made = []

    def make(seconds, kind):
        made.append(Training(str(tmp_path), seconds, kind))
        return made[-1]

    yield make
    for one in made:
        one.command.kill()
        one.command.communicate()
        for pid in one.pids:
            if process_start(pid) is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def test_the_rank_saves_and_ends_and_what_it_has_started_with_it(training):
    one = training(LIMIT * 5, "saves")
    one.command.kill()
    one.wait_for_its_end()
    assert one.saved


@pytest.mark.parametrize("kind", ["hangs", "is stopped"])
def test_a_rank_that_does_not_end_is_killed_when_its_time_is_over(training, kind):
    one = training(1.0, kind)
    one.command.kill()
    one.wait_for_its_end()
    assert not one.saved


def test_at_a_good_end_the_guard_signals_nothing(training):
    one = training(0.0, "saves")
    print("over", file=one.command.stdin, flush=True)
    assert one.command.stdout.readline() == "not guarded\n"
    assert all(map(process_start, one.pids))
    one.command.communicate("over\n", LIMIT)
    assert one.command.returncode == 0
    assert not one.saved
