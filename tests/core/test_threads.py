"""Failures of threads are handled (howdah/core/threads.py)."""

import subprocess
import sys
import threading

import pytest

from howdah.core import threads
from howdah.errors import DataError


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(threads, "_FIRST_PAUSE_SECONDS", 0.01)


def test_a_thread_that_returns_has_ended():
    done = []
    threads.start(done.append, 1, name="t", failed=threads.RESTART).join(10)
    assert done == [1]


def test_failed_work_is_restarted_and_each_failure_is_reported():
    reports, calls, done = [], [], threading.Event()

    def work():
        calls.append(1)
        if len(calls) < 4:
            raise DataError("half a file", where="requests/1.json")
        done.set()

    thread = threads.start(work, name="requests", failed=threads.RESTART, say=reports.append)
    assert done.wait(10)
    thread.join(10)
    assert len(reports) == 3
    assert "thread requests failed: half a file (requests/1.json)" in reports[0]
    assert "begins again" in reports[0]


def test_a_function_handles_a_failure(capsys):
    taken = []
    thread = threads.start(lambda: 1 // 0, name="poll", failed=taken.append)
    thread.join(10)
    assert isinstance(taken[0], ZeroDivisionError)
    err = capsys.readouterr().err
    assert "thread poll failed: ZeroDivisionError" in err
    assert "Traceback" in err  # no code foresaw it: the log shows where


PROGRAM = """
import signal, sys, threading
from howdah.core import threads
threads._EXIT_SECONDS = {patience}
signal.signal(signal.SIGTERM, {handler})
threads.start(lambda: 1 // 0, name="t", failed=threads.end_process)
threading.Event().wait(60)
"""


@pytest.mark.parametrize(
    ("handler", "code"), [("lambda *_: sys.exit(7)", 7), ("signal.SIG_IGN", 1)]
)
def test_end_process_ends_by_sigterm_or_by_force(handler, code):
    program = PROGRAM.format(patience=1.0, handler=handler)
    ended = subprocess.run([sys.executable, "-c", program], timeout=60, check=False)
    assert ended.returncode == code


class Panic(BaseException):
    """An error that is not an Exception, like pyo3's PanicException."""


def test_a_panic_is_a_failure_like_any_other(capsys):
    def panic() -> None:
        raise Panic("called `Option::unwrap()` on a `None` value")

    taken = []
    threads.start(panic, name="compute", failed=taken.append).join(10)
    assert isinstance(taken[0], Panic)
    assert "thread compute failed: Panic: called" in capsys.readouterr().err
    calls, done = [], threading.Event()

    def work() -> None:
        calls.append(1)
        if len(calls) < 3:
            raise Panic
        done.set()

    threads.start(work, name="t", failed=threads.RESTART, say=lambda line: None)
    assert done.wait(10)


def test_sys_exit_ends_the_thread_alone():
    taken = []
    threads.start(sys.exit, name="t", failed=taken.append).join(10)
    assert not taken
