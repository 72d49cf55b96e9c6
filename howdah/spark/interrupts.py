"""Ctrl-C and SIGTERM raise, so that a command stops Spark and removes its files before it ends."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator

from howdah.errors import Interrupted, Terminated


class _Stop(BaseException):
    """SIGTERM. Not an Exception, which Py4J would treat as a failed connection."""


@contextlib.contextmanager
def interrupts(what: str = "the ETL", *, remedy: str = "nothing was committed") -> Iterator[None]:
    """Raise Interrupted at SIGINT and Terminated at SIGTERM, after the block's own clean-up.

    Args:
        what: the command, for the message.
        remedy: of the error: what is there now.
    """
    main = threading.current_thread() is threading.main_thread()

    def terminate(number: int, frame: object) -> None:
        _leave_connection()
        raise _Stop

    before = {}
    if main:
        before[signal.SIGTERM] = signal.signal(signal.SIGTERM, terminate)
        before[signal.SIGINT] = signal.getsignal(signal.SIGINT)  # Spark replaces it
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"{what} was interrupted", remedy=remedy) from None
    except _Stop:
        raise Terminated(f"{what} was asked to end", remedy=remedy) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave_connection() -> None:
    """Let this thread's next call to the JVM open a connection of its own.

    On the present one the answer to the interrupted call is still to come: the clean-up, which
    renames and removes files by calls, would take it for the answer to its own. After SIGINT
    PySpark's handler has closed the connection.
    """
    spark = sys.modules.get("pyspark")
    gateway = None if spark is None else spark.SparkContext._gateway
    if gateway is not None:
        by_thread = getattr(gateway._gateway_client, "thread_connection", None)
        if by_thread is not None:  # None (PYSPARK_PIN_THREAD=false): each call takes one for itself
            by_thread.connection = None
