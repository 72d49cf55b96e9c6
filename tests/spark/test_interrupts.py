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

# The signal NUMBER arrives when a call was sent and its answer is still to come
SENT = """
import os, sys
from howdah.config.data import SparkOptions
from howdah.errors import DataError, HowdahError
from howdah.spark.errors import translated
from howdah.spark.interrupts import interrupts
from howdah.spark.session import session

class Socket:
    def __init__(self, socket):
        self._socket = socket
        self._sent = False

    def __getattr__(self, name):
        return getattr(self._socket, name)

    def sendall(self, data):
        self._socket.sendall(data)
        if not self._sent:
            self._sent = True
            os.kill(os.getpid(), int(sys.argv[1]))

try:
    with (
        interrupts("the test"),
        session(SparkOptions(master="local[1]", driver_memory="512m")) as spark,
        translated("read the source", DataError),
    ):
        connection = spark._jvm._gateway_client.get_thread_connection()
        connection.socket = Socket(connection.socket)
        spark._jvm.java.lang.Integer.parseInt("7")
except HowdahError as error:
    print("ENDED", error.exit_code, error.what)
"""

# The signal NUMBER arrives while a job runs, in a session that the caller keeps
KEPT = """
import os, sys, threading, time
from howdah.config.data import SparkOptions
from howdah.errors import HowdahError
from howdah.spark.interrupts import interrupts
from howdah.spark.session import session
from tests.support.waiting import wait_until

options = SparkOptions(master="local[1]", driver_memory="512m")
with session(options) as kept:
    active = kept.sparkContext.statusTracker().getActiveJobsIds

    def other():
        wait_until(active)
        os.kill(os.getpid(), int(sys.argv[1]))

    threading.Thread(target=other).start()
    try:
        with interrupts("the test"), session(options) as spark:
            spark.sparkContext.parallelize([1]).foreach(lambda _: time.sleep(600))
    except HowdahError as error:
        wait_until(lambda: not active())
        print("ENDED", error.exit_code, kept.range(3).count())
"""


def run(program, number):
    return subprocess.run(
        [sys.executable, "-c", program, str(int(number))],
        env=os.environ | {"PYTHONPATH": os.getcwd()}, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip


SIGNALS = [pytest.param(signal.SIGTERM, marks=pytest.mark.full), signal.SIGINT]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_during_a_call_is_no_failure_of_spark(number):
    done = run(SENT, number)
    assert f"ENDED {128 + number} the test was " in done.stdout, done.stderr[-3000:]
    assert done.returncode == 0 and "Traceback" not in done.stderr


@pytest.mark.parametrize("number", SIGNALS)
def test_a_job_in_a_session_that_stays_is_cancelled(number):
    done = run(KEPT, number)
    assert f"ENDED {128 + number} 3" in done.stdout, done.stderr[-3000:]


@pytest.mark.parametrize("number", SIGNALS)
def test_calls_after_a_signal_get_their_own_answers(number):
    done = run(PROGRAM, number)
    assert done.returncode == 0 and "ANSWERS [7, 8, 9, 10]" in done.stdout, done.stderr[-3000:]
