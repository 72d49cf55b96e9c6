"""Retry while a storage does not answer: a NameNode's restart must not end a training run.

Only `StorageUnavailable` is retried; every other error is an answer. For each storage one line says
that waiting began and one that it ended, however many threads wait. Each attempt counts as
progress of the thread that waits (howdah/core/activity.py), since retries end by themselves.

The limit weighs waiting against giving up: a user at a terminal gets an error after two minutes, a
job in a cluster's containers, whose work would be lost, waits half an hour.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from howdah import redact
from howdah.core import activity, paths
from howdah.errors import ConfigError, StorageUnavailable

T = TypeVar("T")
ENVIRONMENT = "HOWDAH_STORAGE_RETRY_SECONDS"
DEFAULT_SECONDS = 120.0
PATIENT_SECONDS = 1800.0
"""Where giving up loses a run: longer than a NameNode's restart with its block reports."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0

_lock = threading.Lock()
_waiting: dict[str, int] = {}
"""Callers that wait now, by storage (scheme and authority)."""
_of_thread = threading.local()


def limit_seconds() -> float:
    """How long to retry, in seconds; 0: not at all. $HOWDAH_STORAGE_RETRY_SECONDS, else 120, and in
    this thread at most as long as `at_most` allows."""
    return min(_configured_seconds(), getattr(_of_thread, "most", float("inf")))


@contextlib.contextmanager
def at_most(seconds: float, *, once: bool = False) -> Iterator[None]:
    """Inside, this thread waits for storage at most this long, whatever is configured.

    Args:
        once: a storage that has not answered inside is not called again: further calls fail at
            once, as for a listing of many things on few storages.
    """
    before = getattr(_of_thread, "most", float("inf")), getattr(_of_thread, "away", None)
    _of_thread.most = min(before[0], seconds)
    if once and before[1] is None:
        _of_thread.away = {}
    try:
        yield
    finally:
        _of_thread.most, _of_thread.away = before


def _configured_seconds() -> float:
    text = os.environ.get(ENVIRONMENT, "")
    if not text:
        return DEFAULT_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise ConfigError(
            "not a number of seconds", where=ENVIRONMENT, expected="0 or more", got=repr(text),
            remedy=f"set ${ENVIRONMENT} to a number such as 120, or unset it",
        )  # fmt: skip
    return seconds


def run(path: str, action: Callable[[], T]) -> T:
    """The action's result; it is called again while it raises StorageUnavailable, up to the limit.

    Args:
        path: a path on the storage.
        action: one attempt; safe to call again.
    Raises:
        StorageUnavailable: that of the last attempt, with how long it was retried; or, where this
            thread waits once for each storage, that of the earlier call.
    """
    limit = limit_seconds()
    pause, began = _FIRST_PAUSE, None
    where = f"{paths.scheme(path)}://{paths.authority(path)}"
    away: dict[str, StorageUnavailable] | None = getattr(_of_thread, "away", None)
    if away is not None and where in away:
        raise away[where]
    try:
        while True:
            try:
                result = action()
            except StorageUnavailable as error:
                now = time.monotonic()
                if began is None:
                    if limit > 0:
                        _begin(where, error, limit)
                    began = now
                left = began + limit - now
                if left <= 0:
                    if away is not None:
                        away[where] = error
                    raise _timed_out(error, now - began) from None
                activity.current().note(
                    f"waiting for {where}, {now - began:.0f} s of {limit:.0f} s"
                )
                rest = min(pause, left) * random.uniform(0.5, 1.0)
                # hang_seconds may be as short as the longest pause.
                with activity.current().at_most(rest):
                    time.sleep(rest)
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                if began is not None:
                    _over(where, time.monotonic() - began)
                    began = None
                    activity.current().note("")
                activity.current().advanced()
                return result
    finally:
        if began is not None and limit > 0:
            activity.current().note("")
            with _lock:
                _waiting[where] -= 1


def _begin(where: str, error: StorageUnavailable, limit: float) -> None:
    with _lock:
        first = not _waiting.get(where)
        _waiting[where] = _waiting.get(where, 0) + 1
    if first:
        cause = f" ({error.got})" if error.got else ""
        # The cause may be a URL with a token.
        say(redact.text(f"{where}: {error.what}{cause}; trying again for up to {limit:.0f} s"))


def _over(where: str, seconds: float) -> None:
    with _lock:
        _waiting[where] -= 1
        last = not _waiting[where]
    if last:
        say(f"{where}: answers again after {seconds:.0f} s")


def _timed_out(error: StorageUnavailable, seconds: float) -> StorageUnavailable:
    if seconds > 0:
        error.got = f"{error.got or error.what}; tried again for {seconds:.0f} s"
    return error


def _print(line: str) -> None:
    print(f"howdah: {line}", file=sys.stderr, flush=True)


say: Callable[[str], None] = _print
"""Takes the lines about waiting: stderr, unless `storage.configure(say=)` replaces it."""
