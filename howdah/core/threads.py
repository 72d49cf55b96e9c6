"""Starts every background thread of the project, so that its failure is handled.

An uncaught exception ends only its thread: the process would go on without that thread's work (a
status that is no longer written, requests that are no longer read). So `start` takes what a failure
does: restart the work, report it, or call a function.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from howdah.errors import HowdahError

RESTART = "restart"
"""For `start(failed=)`: report the failure and call the work again, after a growing pause."""
REPORT = "report"
"""For `start(failed=)`: only report the failure; nothing else depends on the thread."""

_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0
_EXIT_SECONDS = 30.0
"""Time for an orderly exit, after which `end_process` calls os._exit."""


def start(
    work: Callable[..., None],
    *args: Any,
    name: str,
    failed: str | Callable[[BaseException], None],
    say: Callable[[str], None] | None = None,
    daemon: bool = True,
) -> threading.Thread:
    """A started thread that calls `work(*args)`; it ends on return, and reports an exception.

    Every exception is one, also those that are not an `Exception`: a panic of a library written in
    Rust is `pyo3_runtime.PanicException`, a BaseException. SystemExit ends the thread alone.

    Args:
        work: the work. With RESTART it is called again after an exception, which must leave its
            state consistent.
        name: name of the thread, in reports and debuggers.
        failed: RESTART or REPORT; or a function that is called in the thread with the exception,
            after the report, to end what depends on the thread (`end_process`, for example).
        say: takes the report, one line; None: it goes to stderr.
        daemon: the process does not wait for it at its exit.
    """

    def run() -> None:
        pause = _FIRST_PAUSE_SECONDS
        while True:
            began = time.monotonic()
            try:
                return work(*args)
            except SystemExit:
                return None
            except BaseException as error:  # noqa: BLE001 - reported, and `failed` decides
                if time.monotonic() - began > _LONGEST_PAUSE_SECONDS:
                    pause = _FIRST_PAUSE_SECONDS
                again = f"; it begins again in {pause:.0f} s" if failed == RESTART else ""
                _report(f"thread {name} failed: {_text(error)}{again}", error, say)
                if failed != RESTART:
                    return None if failed == REPORT else failed(error)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    thread = threading.Thread(target=run, name=name, daemon=daemon)
    thread.start()
    return thread


def end_process(error: BaseException) -> None:
    """For `start(failed=)`: end this process by SIGTERM, and after a grace period by os._exit.

    A process without one of its threads may look healthy and do half of its work; one that has
    ended is replaced.
    """
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_EXIT_SECONDS)
    os._exit(getattr(error, "exit_code", 1))


def _text(error: BaseException) -> str:
    if isinstance(error, HowdahError):
        return error.what if error.where is None else f"{error.what} ({error.where})"
    return f"{type(error).__name__}: {error}"


def _report(line: str, error: BaseException, say: Callable[[str], None] | None) -> None:
    """Report one line; for an unexpected error also the traceback, on stderr."""
    if say is not None:
        say(line)
    else:
        print(f"howdah: {line}", file=sys.stderr, flush=True)
    if not isinstance(error, HowdahError):
        traceback.print_exception(error, file=sys.stderr)
