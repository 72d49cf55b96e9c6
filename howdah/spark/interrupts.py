"""Ctrl-C and SIGTERM end a command in order: Spark stopped, application killed, files removed."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

from howdah.errors import Interrupted, Terminated


class _Stop(BaseException):
    """SIGTERM. No Exception: Py4J would take it for a failure of its connection."""


@contextlib.contextmanager
def interrupts(what: str = "the ETL") -> Iterator[None]:
    """SIGINT and SIGTERM end what runs in order: Spark stopped, own files removed.

    Args:
        what: runs, for the message.
    """
    main = threading.current_thread() is threading.main_thread()

    def terminate(number: int, frame: object) -> None:
        raise _Stop

    before = {}
    if main:
        before[signal.SIGTERM] = signal.signal(signal.SIGTERM, terminate)
        before[signal.SIGINT] = signal.getsignal(signal.SIGINT)  # Spark puts its own in its place
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"{what} was interrupted", remedy="nothing was committed") from None
    except _Stop:
        raise Terminated(f"{what} was asked to end", remedy="nothing was committed") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
