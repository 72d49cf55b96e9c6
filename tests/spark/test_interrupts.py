"""A signal during a call to the JVM: the calls of the clean-up get their own answers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.spark

# The main thread waits for a lock of the JVM that another thread holds, until a signal: NUMBER
PROGRAM = """
import os, sys, threading
from howdah.config.data import SparkOptions
from howdah.errors import Interrupted, Terminated
from howdah.spark.interrupts import interrupts
from howdah.spark.session import session
from tests.support.waiting import wait_until

answers = []
with session(SparkOptions(master="local[1]", driver_memory="512m")) as spark:
    jvm = spark._jvm
    lock = jvm.java.util.concurrent.locks.ReentrantLock()
    held, over = threading.Event(), threading.Event()

    def other():
        lock.lock()
        held.set()
        wait_until(lock.hasQueuedThreads)
        os.kill(os.getpid(), int(sys.argv[1]))
        over.wait()
        lock.unlock()

    thread = threading.Thread(target=other)
    thread.start()
    held.wait()
    try:
        with interrupts("the test"):
            try:
                lock.lock()
            finally:
                over.set()  # now the answer to the interrupted call comes
                answers += [jvm.java.lang.Integer.parseInt(str(n)) for n in (7, 8)]
                thread.join()
                answers += [jvm.java.lang.Integer.parseInt(str(n)) for n in (9, 10)]
    except (Interrupted, Terminated):
        print("ANSWERS", answers)
"""


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGTERM, marks=pytest.mark.full), signal.SIGINT]
)
def test_calls_after_a_signal_get_their_own_answers(number):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(int(number))],
        env=os.environ | {"PYTHONPATH": os.getcwd()}, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0 and "ANSWERS [7, 8, 9, 10]" in done.stdout, done.stderr[-3000:]
