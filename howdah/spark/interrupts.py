"""Ctrl-C and SIGTERM raise, so that a command stops Spark and removes its files before it ends."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator

from howdah.core.processes import silence_filtered
from howdah.errors import HowdahError, Interrupted, Terminated

_ERRORS: dict[int, tuple[type[HowdahError], str]] = {
    signal.SIGINT: (Interrupted, "was interrupted"),
    signal.SIGTERM: (Terminated, "was terminated"),
}


class _Stop(BaseException):
    """One of these signals. Not an Exception, which Py4J would treat as a failed connection, nor
    a KeyboardInterrupt, at which it closes a connection that may be closed by then."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def interrupts(what: str = "the ETL", *, remedy: str = "nothing was committed") -> Iterator[None]:
    """Raise Interrupted at SIGINT and Terminated at SIGTERM, after the block's own clean-up.

    Spark's jobs are cancelled first: a session that was there before the block stays, and would go
    on with them.

    Args:
        what: the command, for the message.
        remedy: of the error: what is there now.
    """

    def stop(number: int, frame: object) -> None:
        silence_filtered()  # the JVM's stack traces of what is cancelled now
        _leave_connection()
        _cancel_jobs()
        raise _Stop(number)

    before = {}
    try:
        if _in_main_thread():
            for number in _ERRORS:
                before[number] = signal.signal(number, stop)
        yield
    except (_Stop, KeyboardInterrupt) as error:  # PySpark's handler raises the second
        number = error.number if isinstance(error, _Stop) else signal.SIGINT
        kind, how = _ERRORS[number]
        raise kind(f"{what} {how}", remedy=remedy) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def sigint_kept() -> Iterator[None]:
    """Put SIGINT's handler back after the block, in which PySpark makes a context and sets its own.

    PySpark's handler calls the JVM on the connection of the call that was interrupted, takes the
    answer to that call for its own, and Py4J may end in an error of a closed connection.
    """
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if _in_main_thread():
            signal.signal(signal.SIGINT, before)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _leave_connection() -> None:
    """Let this thread's next call to the JVM open a connection of its own.

    On the present one the answer to the interrupted call is still to come: the clean-up, which
    renames and removes files by calls, would take it for the answer to its own.
    """
    spark = sys.modules.get("pyspark")
    gateway = None if spark is None else spark.SparkContext._gateway
    if gateway is not None:
        by_thread = getattr(gateway._gateway_client, "thread_connection", None)
        if by_thread is not None:  # None (PYSPARK_PIN_THREAD=false): each call takes one for itself
            by_thread.connection = None


def _cancel_jobs() -> None:
    spark = sys.modules.get("pyspark")
    context = None if spark is None else spark.SparkContext._active_spark_context
    if context is not None:
        with contextlib.suppress(Exception):  # of a JVM that has ended
            context.cancelAllJobs()
