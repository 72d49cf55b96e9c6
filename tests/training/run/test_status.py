"""What is shown of a run: on a terminal that goes away, and by `howdah status`."""

import errno
import fcntl
import io
import os
import pty
import sys
import threading

import pytest

from howdah.training.run import status
from howdah.training.run.local_dir import RunLock
from howdah.training.run.metrics_logger import MetricsLogger
from howdah.training.run.progress import Progress, StepMetrics

STEP = StepMetrics(
    step=1, epoch=0.1, loss=1.0, lr=1e-4, grad_norm=1.0, examples_per_second=1.0,
    tokens_per_second=1.0, padding_ratio=1.0,
)  # fmt: skip


@pytest.mark.parametrize("bar", [False, True])
def test_a_terminal_that_was_closed_does_not_end_training(monkeypatch, bar):
    monkeypatch.setenv("TERM", "xterm" if bar else "dumb")
    user, terminal = pty.openpty()
    progress = Progress(os.fdopen(terminal, "w"))
    progress.begin(0, 10)
    assert (progress._bar is not None) == bar
    os.close(user)
    progress.say("evaluating")
    progress.step(1)
    progress.show(STEP, 10, 1.0)
    progress.end()


def test_a_bar_on_a_closed_terminal_can_be_stopped(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    user, terminal = pty.openpty()
    progress = Progress(os.fdopen(terminal, "w"))
    progress.begin(0, 10)
    os.close(user)
    progress.end()


def test_what_others_write_to_stderr_is_not_for_the_bar(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    user, terminal = pty.openpty()
    progress, log = Progress(os.fdopen(terminal, "w")), sys.stderr
    progress.begin(0, 10)
    assert sys.stderr is log
    progress.end()
    os.close(user)


class Slow(io.StringIO):
    """A stream whose first write another thread's line comes in the middle of."""

    def __init__(self, other):
        super().__init__()
        self._other = other

    def write(self, text):
        count = super().write(text)
        if (other := self._other) is not None:
            self._other = None
            other()
        return count


def test_lines_of_several_threads_do_not_mix():
    shown = Slow(lambda: progress.say("of the mirror"))
    progress = Progress(shown)
    progress.say("of the loop")
    assert shown.getvalue() == "of the loop\nof the mirror\n"
    log = Slow(lambda: metrics.log("of the mirror"))
    metrics = MetricsLogger(1, console=None, log=log)
    metrics.log("of the loop")
    assert log.getvalue() == "of the loop\nof the mirror\n"


# ------------------------------------------------------------------------------ howdah status
def as_on_nfs(file, operation):
    """flock(2) on NFS: an exclusive lock needs a file that is open to write."""
    mode = fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE
    if operation & fcntl.LOCK_EX and mode == os.O_RDONLY:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    return flock(file, operation)


flock = fcntl.flock


@pytest.mark.parametrize("prefix", ["", "file://"])
@pytest.mark.parametrize("name", [".lock", ".launch.lock"])
def test_a_run_that_holds_its_lock_is_running_on_nfs_too(monkeypatch, tmp_path, name, prefix):
    monkeypatch.setattr(fcntl, "flock", as_on_nfs)
    directory = prefix + str(tmp_path)
    assert status.state(directory) == "LOST"
    lock = RunLock(str(tmp_path), name, directory)
    lock.take()
    assert status.state(directory) == "RUNNING"
    lock.release()
    assert status.state(directory) == "LOST"


def test_a_run_begins_while_howdah_status_looks_at_its_lock(tmp_path):
    with open(tmp_path / ".lock", "w+") as file:
        flock(file, fcntl.LOCK_SH)
        looking = threading.Timer(0.1, file.close)
        looking.start()
        RunLock(str(tmp_path), ".lock", str(tmp_path)).take()
        looking.join()
